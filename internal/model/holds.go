package model

import (
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// This file is the law of open holds, by definition: to settle a hold for n events is to replay
// the history of the key as if the hold had taken n. Each part keeps its charges, in the order
// in which and with the instants at which they were made, and replays those from the hold on.
//
// What was decided is part of the history and is not decided again: what was granted stays
// granted, at its instant, and what was denied stays denied, and noted where denials are noted.
// So are the facts that a decision has set: when a window of StartOnFirstEvent began, and from
// when a bucket counts its refills. A lock of a Lockout that was served is a fact as well.
//
// A hold that is open counts as what it holds. One that ends by itself stays like that, or is
// settled for nothing: RetryAfter is the time until a request is granted if nobody settles any.
// ResetAfter is what it would be if none ended, except in an InFlight, whose events are over when
// their hold is.

// mostHolds is the most open holds of a key. If there are more, the oldest one ends early. That
// of an InFlight has as many as the InFlight grants.
const mostHolds = 4096

// A Held is the identity of a hold of n events, by which its key finds it. A nil one holds
// nothing.
type Held struct{ n int }

// Terms say when a hold ends by itself, and how.
type Terms struct {
	// How long it lasts at most; 0 is the longest Timeout of an InFlight, or ten minutes.
	For      time.Duration
	GiveBack bool // whether it is then settled for nothing, and not for what it holds
}

// An open is a hold that has neither been settled nor ended.
type open struct {
	*Held
	back    bool    // Terms.GiveBack
	turn    bool    // whether it is only a reservation, which ends when its events may happen
	due     instant // when the events may happen, which is ahead if they were reserved or queued
	end     instant // when the hold ends by itself
	indexes []int   // of the charge, in each part
}

// Hold is Take. If the events are granted, it opens a hold of them, which lasts from when they
// leave the queue on, if they are queued. If not, Held is nil.
func (k *Key) Hold(now int64, n int, terms Terms) (*Held, ratelimit.Decision) {
	at := k.reach(now)
	if n == 0 || !k.mayTake(at, n) {
		d := k.Take(now, n)
		if !d.Allowed {
			return nil, d
		}
		return new(Held), d
	}
	delay := k.delay(at)
	due := k.whole(at + instant(delay))
	b := booking{
		Held: &Held{n},
		n:    n,
		act:  at,
		due:  due,
		end:  k.ends(due, terms.For),
		back: terms.GiveBack,
	}
	k.come(b)
	return b.Held, k.granted(at, delay)
}

// endOldest ends the oldest hold early if there are more than there may be.
func (k *Key) endOldest() {
	if _, flies := k.timeout(); !flies && len(k.opens) > mostHolds {
		k.end(0)
	}
}

// timeout is how long a hold lasts if its Terms do not say so. flies reports whether a part is
// an InFlight.
func (k *Key) timeout() (longest time.Duration, flies bool) {
	for _, p := range k.parts {
		if f, ok := p.(*inFlight); ok {
			longest, flies = max(longest, time.Duration(f.timeout)), true
		}
	}
	if !flies {
		return 10 * time.Minute, false
	}
	return longest, true
}

// ends returns when a hold ends that lasts for a time from an instant on, but not beyond the last
// instant.
func (k *Key) ends(from instant, d time.Duration) instant {
	if d == 0 {
		d, _ = k.timeout()
	}
	return min(k.whole(min(from, farthest)+instant(d)), farthest/k.tick*k.tick)
}

// flyUntil lets charges that are in flight be over at an instant.
func (k *Key) flyUntil(indexes []int, end instant) {
	for i, p := range k.parts {
		if f, ok := p.(*inFlight); ok && indexes[i] < len(f.batches) {
			f.batches[indexes[i]].until = end
		}
	}
}

// Settle says that n of the events of h have happened. The key is then as if n had been taken
// by the hold; 0 cancels it. If fewer were held, the others are charged now. Events in flight
// are over. If h is not an open hold of this key, nothing is given back.
func (k *Key) Settle(now int64, h *Held, n int) ratelimit.Decision {
	at := k.reach(now)
	if h == nil {
		return k.Peek(now)
	}
	if i := k.find(h); i >= 0 {
		k.giveBack(func(k *Key) { k.settle(i, min(n, h.n)) }, func(k *Key) { k.settle(i, h.n) })
	} else if i := k.findAhead(h); i >= 0 {
		k.settleAhead(i, min(n, h.n))
	}
	for _, p := range k.parts {
		if _, flies := p.(*inFlight); !flies {
			k.chargePart(p, at, n-h.n)
		}
	}
	return k.Peek(now)
}

// Release settles h for what it holds.
func (k *Key) Release(now int64, h *Held) ratelimit.Decision {
	if h == nil {
		return k.Peek(now)
	}
	return k.Settle(now, h, h.n)
}

// Extend lets h end by itself after d, counted from now, or from when its events may happen if that
// is ahead. It reports whether h is an open hold of this key.
func (k *Key) Extend(now int64, h *Held, d time.Duration) bool {
	at := k.reach(now)
	if i := k.findAhead(h); i >= 0 {
		k.ahead[i].end = k.ends(k.ahead[i].due, d)
		return true
	}
	i := k.find(h)
	if i < 0 {
		return false
	}
	o := &k.opens[i]
	o.end = k.ends(max(at, o.due), d)
	k.flyUntil(o.indexes, o.end)
	return true
}

// Holds returns how many holds are open at now, or will be at their turns.
func (k *Key) Holds(now int64) (holds int) {
	k.reach(now)
	for _, o := range k.opens {
		if !o.turn {
			holds++
		}
	}
	for _, b := range k.ahead {
		if b.Held != nil && !b.turn {
			holds++
		}
	}
	return holds
}

// find returns the index of the open hold h, or −1.
func (k *Key) find(h *Held) int {
	return slices.IndexFunc(k.opens, func(o open) bool { return o.Held == h })
}

// findAhead returns the index of the reservation h whose turn is ahead, or −1.
func (k *Key) findAhead(h *Held) int {
	return slices.IndexFunc(k.ahead, func(b booking) bool { return b.Held == h })
}

// settle settles an open hold for n events, at most as many as it holds.
func (k *Key) settle(i, n int) {
	o := k.opens[i]
	k.opens = slices.Delete(k.opens, i, i+1)
	for i, p := range k.parts {
		if p, ok := p.(witness); ok {
			p.pass(min(k.reached, o.end))
		}
		p.settle(o.indexes[i], n)
	}
}

// end ends an open hold by itself.
func (k *Key) end(i int) {
	n := k.opens[i].n
	if k.opens[i].back {
		n = 0
	}
	k.settle(i, n)
}

// reach lets the turns come, and ends the holds that end by themselves, until now, which it
// returns.
func (k *Key) reach(now int64) instant {
	for len(k.ahead) > 0 && k.ahead[0].act <= instant(now) {
		b := k.ahead[0]
		k.endUntil(b.act)
		k.ahead = k.ahead[1:]
		k.come(b)
	}
	k.endUntil(instant(now))
	return instant(now)
}

// endUntil ends the holds that end by themselves until an instant. Of those that end at the same
// instant, the oldest ends first.
func (k *Key) endUntil(until instant) {
	k.reached = until
	due := func(k *Key) (next int) {
		next = -1
		for i, o := range k.opens {
			if o.end <= until && (next < 0 || o.end < k.opens[next].end) {
				next = i
			}
		}
		return next
	}
	if due(k) < 0 {
		return
	}
	k.giveBack(func(k *Key) {
		for i := due(k); i >= 0; i = due(k) {
			k.end(i)
		}
	}, func(k *Key) {
		for i := due(k); i >= 0; i = due(k) {
			k.settle(i, k.opens[i].n)
		}
	})
}

// indexes returns the index of the next charge in each part.
func (k *Key) indexes() (all []int) {
	for _, p := range k.parts {
		all = append(all, p.charges())
	}
	return all
}
