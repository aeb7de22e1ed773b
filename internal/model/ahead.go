package model

import (
	"context"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// This file is the law of reservations, by definition: events that are reserved for later have not
// happened yet. They happen at their turn, on top of all that has happened until then. So one that
// is cancelled before is left out, and the others keep their turns.
//
// One that the turns of later ones depend on stays until a settlement finds that they do not:
// without it, they would come too early, because a window of StartOnFirstEvent, the refills of
// RefillInterval, the warmth of a WarmingUp or the count of a Lockout would begin later. For the
// same reason, a hold that was made before the turns may give nothing back.

// A booking is a reservation whose turn is ahead.
type booking struct {
	*Held              // nil once it is settled
	n          int     // events
	act, due   instant // when they are spent, and when they may happen
	end        instant // when its hold ends by itself
	back, turn bool    // as in an open
	void       bool    // whether it is cancelled
}

// A Reservation is a charge that can be cancelled.
type Reservation struct {
	due  instant
	held *Held // nil if there is nothing to cancel
}

// Reserve spends n events at the first instant at which they may happen, unless that is
// more than maxWait away, and returns the instant at which they are due. Events do not
// wait for room in a queue: the queue must have room when the other parts grant them. The
// reservation is nil if there is nothing to cancel.
func (k *Key) Reserve(
	now int64,
	n int,
	maxWait time.Duration,
) (due uint64, r *Reservation, err error) {
	_, flies := k.timeout()
	due, h, err := k.reserve(now, n, Terms{}, maxWait, !flies)
	if err != nil || h == nil {
		return due, nil, err
	}
	return due, &Reservation{due, h}, nil
}

// HoldWithin is Reserve. If the events are granted, it opens a hold of them, which lasts from
// their turn on. If not, Held is nil.
func (k *Key) HoldWithin(
	now int64,
	n int,
	terms Terms,
	maxWait time.Duration,
) (due uint64, _ *Held, err error) {
	return k.reserve(now, n, terms, maxWait, false)
}

// reserve is HoldWithin or, if the hold ends at its turn, Reserve.
func (k *Key) reserve(
	now int64,
	n int,
	terms Terms,
	maxWait time.Duration,
	turn bool,
) (due uint64, _ *Held, err error) {
	at := k.reach(now)
	if n == 0 {
		return at, new(Held), nil
	}
	act, due, err := k.after().turn(at, n, maxWait)
	if err != nil {
		return 0, nil, err
	}
	b := booking{
		Held: &Held{n},
		n:    n,
		act:  act,
		due:  due,
		end:  k.ends(due, terms.For),
		back: terms.GiveBack,
		turn: turn,
	}
	if turn {
		b.end = due
	}
	if act > at {
		k.ahead = append(k.ahead, b)
	} else {
		k.come(b)
	}
	return due, b.Held, nil
}

// turn returns when Reserve would spend n ≥ 1 events at now, and when they would be due.
func (k *Key) turn(now instant, n int, maxWait time.Duration) (act, due instant, err error) {
	if n > k.Limit() {
		return 0, 0, ratelimit.ErrNever
	}
	from := max(now, k.frontier)
	act = from
	for _, p := range k.parts {
		if _, queue := p.(delayer); queue {
			continue
		}
		t, ok := first(from, farthest, func(t instant) bool { return p.grantable(t, n) })
		if !ok {
			return 0, 0, ratelimit.ErrNever
		}
		act = max(act, k.whole(t))
	}
	for _, p := range k.parts {
		if _, queue := p.(delayer); queue && !p.grantable(act, n) {
			return 0, 0, ratelimit.ErrQueueFull
		}
	}
	due = k.whole(act + instant(k.delay(act)))
	switch {
	case due-now >= instant(ratelimit.Never):
		return 0, 0, ratelimit.ErrNever
	case due-now > instant(maxWait):
		return 0, 0, context.DeadlineExceeded
	}
	return act, due, nil
}

// Cancel settles r for nothing, before the events may happen.
func (k *Key) Cancel(now int64, r *Reservation) {
	if at := k.reach(now); r != nil && at < r.due {
		k.Settle(now, r.held, 0)
	}
}

// Ahead reports whether a reservation is for later than now.
func (k *Key) Ahead(now int64) bool {
	k.reach(now)
	return len(k.ahead) > 0
}

// after returns a copy of the key, in which the turns that are ahead have come.
func (k *Key) after() *Key {
	c := k.Clone()
	c.ahead = nil
	for _, b := range k.ahead {
		c.spend(b, b.n)
	}
	return c
}

// spend charges events of a booking at their turn.
func (k *Key) spend(b booking, n int) {
	indexes := k.indexes()
	for _, p := range k.parts {
		p.charge(p.earliest(b.act), n)
	}
	k.frontier = b.act
	k.flyUntil(indexes, b.end)
}

// come spends the events of a booking when its turn comes. Its hold is open from then on.
func (k *Key) come(b booking) {
	indexes := k.indexes()
	k.spend(b, b.n)
	if b.Held != nil && (!b.turn || b.end > b.act) {
		k.opens = append(
			k.opens,
			open{
				Held:    b.Held,
				back:    b.back,
				turn:    b.turn,
				due:     b.due,
				end:     b.end,
				indexes: indexes,
			},
		)
		k.endOldest()
	}
}

// settleAhead settles the i-th booking for n events, at most as many as it has. Void ones leave
// together, or else the i-th alone, if the others come no earlier then; those with nothing behind
// them always do.
func (k *Key) settleAhead(i, n int) {
	b := &k.ahead[i]
	b.Held, b.end, b.void = nil, b.act, n == 0
	others := func(j int) bool { return j != i }
	if n > 0 && k.fit(k, others, n) {
		b.n = n
	}
	stays := func(j int) bool { return !k.ahead[j].void }
	if !k.fit(k, stays, 0) {
		stays = others
		if n > 0 || !k.fit(k, stays, 0) {
			stays = everyTurn
		}
	}
	var left []booking
	for j, b := range k.ahead {
		if stays(j) {
			left = append(left, b)
		}
	}
	for len(left) > 0 && left[len(left)-1].void {
		left = left[:len(left)-1]
	}
	k.ahead = left
}

func everyTurn(int) bool { return true }

// fit reports whether no turn would come too early if those that do not stay had only n events, and
// what happened before them were that of another key.
func (k *Key) fit(before *Key, stays func(i int) bool, n int) bool {
	drifts := slices.ContainsFunc(k.parts, func(p part) bool {
		switch p.(type) {
		case *eventWindow, *intervalBucket, *warmingUp, *lockout:
			return true
		}
		return false
	})
	if !drifts {
		return true
	}
	all, other := k.Clone(), before.Clone()
	for i, b := range k.ahead {
		has := b.n
		if !stays(i) {
			has = n
		} else if other.grants(b) > max(b.act, all.grants(b)) {
			return false
		}
		all.spend(b, b.n)
		if has > 0 {
			other.spend(b, has)
		}
	}
	return true
}

// giveBack is called with a change of k that gives events of holds back. If a turn would then come
// too early, it makes the other change instead.
func (k *Key) giveBack(change, otherwise func(k *Key)) {
	changed := k.Clone()
	change(changed)
	if !k.fit(changed, everyTurn, 0) {
		otherwise(k)
		return
	}
	change(k)
}

// grants returns the first instant, from the turn of b on, at which all parts grant its events.
func (k *Key) grants(b booking) (at instant) {
	for _, p := range k.parts {
		t, ok := first(
			max(b.act, k.frontier),
			farthest,
			func(t instant) bool { return p.grantable(t, b.n) },
		)
		if !ok {
			t = farthest
		}
		at = max(at, k.whole(t))
	}
	return at
}
