package model

import "github.com/ratelimit-go/ratelimit"

// This file is what is counted of events that have happened: those of a hold, which may be
// fewer or more than were held, and those that nobody asked for.

// A Held is a charge that can be settled.
type Held struct {
	n       int
	indexes []int // of the charge, in each part; nil if nothing was charged
}

// Held returns the charge of a reservation. It is nil if r is.
func (r *Reservation) Held(n int) *Held {
	if r == nil {
		return nil
	}
	return &Held{n: n, indexes: r.indexes}
}

// Hold is Take. If the events are granted, it returns what Settle needs.
func (k *Key) Hold(now int64, n int) (*Held, ratelimit.Decision) {
	h := &Held{n: n}
	if n > 0 {
		h.indexes = k.indexes()
	}
	d := k.Take(now, n)
	if !d.Allowed {
		h = nil
	}
	return h, d
}

// TakeUpTo takes the most of n events that may be taken, and denies one if none may.
func (k *Key) TakeUpTo(now int64, n int) (granted int, _ ratelimit.Decision) {
	for granted = min(n, k.describe(instant(now)).Remaining); granted > 0 && !k.mayTake(instant(now), granted); {
		granted--
	}
	if granted == 0 {
		return 0, k.Take(now, min(n, 1))
	}
	return granted, k.Take(now, granted)
}

// Charge spends n events whether or not they may happen: now, or at the time of the last
// reservation. A blocked part blocks all of that, too.
func (k *Key) Charge(now int64, n int) ratelimit.Decision {
	for _, p := range k.parts {
		k.chargePart(p, instant(now), n)
	}
	return k.Peek(now)
}

// Settle says that n of the events of h have happened. If fewer were held, the others are
// charged now. If more were held, the key is as if only n had been, at the time of the hold,
// if nothing was granted since; otherwise, as much is given back as certainly still counts.
// Events in flight are over.
//
// In a token bucket, both are right if events were granted since only at the instant of the hold,
// or were given back: stores cannot all tell that from a key on which nothing was granted, or on
// which something was. Then got, the answer of the store, decides.
func (k *Key) Settle(now int64, h *Held, n int, got ratelimit.Decision) ratelimit.Decision {
	return k.settle(now, h, n, k.Clone().settle(now, h, n, true) == got)
}

func (k *Key) settle(now int64, h *Held, n int, more bool) ratelimit.Decision {
	ahead := k.behind(instant(now))
	for i, p := range k.parts {
		switch _, flies := p.(*inFlight); {
		case flies && h.indexes != nil:
			p.refund(h.indexes[i], 0, h.n, instant(now), ahead, more)
		case flies:
		case n < h.n:
			p.refund(h.indexes[i], n, h.n-n, instant(now), ahead, more)
		default:
			k.chargePart(p, instant(now), n-h.n)
		}
	}
	return k.Peek(now)
}

// chargePart charges n events to a part: now, or at the time of the last reservation.
func (k *Key) chargePart(p part, now instant, n int) {
	if n > 0 && k.Limit() > 0 {
		p.charge(k.whole(p.earliest(max(now, k.frontier))), n)
	}
}

// A debtor is a part that does not tell a debt from a reservation.
type debtor interface {
	// inDebt reports whether more was charged than there was room for at t.
	inDebt(t instant) bool
}

// behind reports whether a reservation or a debt of a bucket is ahead of now.
func (k *Key) behind(now instant) bool {
	if now < k.frontier {
		return true
	}
	for _, p := range k.parts {
		if p.earliest(now) > now {
			return true
		}
		if p, ok := p.(debtor); ok && p.inDebt(now) {
			return true
		}
	}
	return false
}

// Rings reports whether a part counts the events of segments or periods.
func (k *Key) Rings() bool {
	for _, p := range k.parts {
		switch p.(type) {
		case *slidingWindow, *rollingWindow:
			return true
		}
	}
	return false
}

// indexes returns the index of the next charge in each part.
func (k *Key) indexes() (all []int) {
	for _, p := range k.parts {
		all = append(all, p.charges())
	}
	return all
}
