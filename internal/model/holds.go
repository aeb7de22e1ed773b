package model

import (
	"cmp"
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
// when a bucket counts its refills.
//
// A hold that is open counts as what it holds. One that ends by itself stays like that, or is
// settled for nothing. Until then, nobody counts on it: RetryAfter and ResetAfter are what they
// would be if it never ended, except in an InFlight, whose events are over when their hold is.

// mostHolds is the most open holds of a key. If there are more, the oldest one ends early. That
// of an InFlight has as many as the InFlight grants.
const mostHolds = 4096

// A Held is the identity of a hold of n events, by which its key finds it. A nil one holds
// nothing.
type Held struct{ n int }

// Terms say when a hold ends by itself, and how.
type Terms struct {
	For      time.Duration // how long it lasts at most; 0 is the longest Timeout of an InFlight, or ten minutes
	GiveBack bool          // whether it is then settled for nothing, and not for what it holds
}

// An open is a hold that has neither been settled nor ended.
type open struct {
	*Held
	back    bool    // Terms.GiveBack
	due     instant // when the events may happen, which is ahead if they were reserved or queued
	end     instant // when the hold ends by itself
	indexes []int   // of the charge, in each part
}

// Hold is Take. If the events are granted, it opens a hold of them, which lasts from when they leave the
// queue on, if they are queued. If not, Held is nil.
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
	h := k.hold(n, at, at, k.whole(at+instant(delay)), terms)
	return h, k.granted(at, delay)
}

// HoldWithin is Reserve. If the events are granted, it opens a hold of them, which lasts from
// their turn on. If not, Held is nil.
func (k *Key) HoldWithin(now int64, n int, terms Terms, maxWait time.Duration) (due uint64, _ *Held, err error) {
	at := k.reach(now)
	if n == 0 {
		return at, new(Held), nil
	}
	act, due, err := k.turn(at, n, maxWait)
	if err != nil {
		return 0, nil, err
	}
	k.frontier = act
	return due, k.hold(n, at, act, due, terms), nil
}

// hold charges n events at act, and opens a hold of them.
func (k *Key) hold(n int, now, act, due instant, terms Terms) *Held {
	timeout, flies := k.timeout()
	if terms.For == 0 {
		terms.For = timeout
	}
	o := open{Held: &Held{n}, back: terms.GiveBack, due: due, indexes: k.indexes()}
	k.charge(act, n)
	k.opens = append(k.opens, o)
	k.last(&k.opens[len(k.opens)-1], due, terms.For)
	if !flies && len(k.opens) > mostHolds {
		k.end(0, now)
	}
	return o.Held
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

// last lets a hold last for a time from an instant on, but not beyond the last instant.
func (k *Key) last(o *open, from instant, d time.Duration) {
	o.end = min(k.whole(min(from, farthest)+instant(d)), farthest/k.tick*k.tick)
	for i, p := range k.parts {
		if f, ok := p.(*inFlight); ok {
			f.batches[o.indexes[i]].until = o.end
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
		k.settle(i, min(n, h.n), at)
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
	i := k.find(h)
	if i < 0 {
		return false
	}
	k.last(&k.opens[i], max(at, k.opens[i].due), d)
	return true
}

// Holds returns how many holds are open at now.
func (k *Key) Holds(now int64) int {
	k.reach(now)
	return len(k.opens)
}

// Holding reports whether h is an open hold of this key at now.
func (k *Key) Holding(now int64, h *Held) bool {
	k.reach(now)
	return k.find(h) >= 0
}

// find returns the index of the open hold h, or −1.
func (k *Key) find(h *Held) int {
	return slices.IndexFunc(k.opens, func(o open) bool { return o.Held == h })
}

// settle settles an open hold for n events, at most as many as it holds. If its turn is ahead
// and n is 0, that cancels it: earlier reservations that were cancelled while it stood behind
// them are removed as well.
func (k *Key) settle(i, n int, now instant) {
	o := k.opens[i]
	k.opens = slices.Delete(k.opens, i, i+1)
	for i, p := range k.parts {
		p.settle(o.indexes[i], n)
		if n == 0 && now < o.due {
			p.trim()
		}
	}
	k.frontier = min(k.frontier, k.latest())
}

// end ends an open hold by itself.
func (k *Key) end(i int, now instant) {
	n := k.opens[i].n
	if k.opens[i].back {
		n = 0
	}
	k.settle(i, n, now)
}

// reach ends the holds that end by themselves until now, which it returns. Of those that end at
// the same instant, the oldest ends first.
func (k *Key) reach(now int64) instant {
	for len(k.opens) > 0 {
		first := slices.MinFunc(k.opens, func(a, b open) int { return cmp.Compare(a.end, b.end) })
		if first.end > instant(now) {
			break
		}
		k.end(k.find(first.Held), first.end)
	}
	return instant(now)
}

// indexes returns the index of the next charge in each part.
func (k *Key) indexes() (all []int) {
	for _, p := range k.parts {
		all = append(all, p.charges())
	}
	return all
}
