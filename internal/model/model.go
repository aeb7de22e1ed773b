// Package model is a reference model of the algorithms: slow, exact, and as close to
// their written definitions as code can be. Tests compare the library with it.
//
// Each algorithm only says whether n events may happen at an instant, and whether any
// earlier event still counts then. As time passes, both answers change at most once. So
// the first instant at which they change, and the most events that may happen now, are
// found by bisection, and this package contains no formula for them. Nor does it contain one for
// what comes back when a hold is settled for less: it replays what happened to the key since.
package model

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// An instant is a number of nanoseconds since the Unix epoch. The sum of farthest and the
// longest wait does not overflow.
type instant = uint64

// farthest is the last instant of a clock or a reservation.
const farthest instant = 1<<62 - 1

// A part is the state of one key in one algorithm. It keeps an entry for every charge, in
// order. Callers pass only instants that are not before the latest remaining charge.
type part interface {
	// limit is the most events that can be granted to a fresh key at once.
	limit() int

	// grantable reports whether n events, 1 ≤ n ≤ limit, may happen at t. Once
	// true it stays true as t grows, and it is true for fewer events as well.
	grantable(t instant, n int) bool

	// forgotten reports whether no charge so far counts at t any more. Once true, it
	// stays true as t grows.
	forgotten(t instant) bool

	// charge spends n events at t.
	charge(t instant, n int)

	// charges returns the number of charges; the next one gets it as its index.
	charges() int

	// cancel gives back, at now, as much of a charge as can be given back.
	cancel(index int, now instant)

	// settle replays the history with n events in a charge, at most as many as it has.
	settle(index, n int)

	// trim removes cancelled reservations if all later charges are cancelled as well or have
	// no events.
	trim()

	// earliest is the first instant, t or later, at which events can be charged, however many
	// there is room for.
	earliest(t instant) instant

	// latest is the instant of the latest remaining charge. It matters only if it is ahead.
	latest() instant

	// clone returns an independent copy.
	clone() part
}

// A delayer is a part that delays events.
type delayer interface {
	part
	// delay is how long to hold events that happen at t.
	delay(t instant) time.Duration
}

// A denialCounter is a part that may count refused events.
type denialCounter interface {
	refuse(t instant, n int)
}

// A Key is the history of one key. Its clock must not go back, and stays
// within 0 ≤ now ≤ farthest.
type Key struct {
	parts []part

	// frontier is the instant of the latest remaining charge of any part. Nothing is
	// granted before it.
	frontier instant

	opens []open // in the order in which they were made

	// tick is the resolution of the store's time: everything happens at multiples of it.
	tick instant
}

// New returns a fresh key in a store whose clock counts in ticks. The parameters of alg
// must be valid.
func New(alg ratelimit.Algorithm, tick time.Duration) *Key {
	return &Key{parts: newParts(alg), tick: instant(tick)}
}

// whole returns t rounded up to a whole tick.
func (k *Key) whole(t instant) instant { return (t + k.tick - 1) / k.tick * k.tick }

func newParts(alg ratelimit.Algorithm) []part {
	switch a := alg.(type) {
	case ratelimit.TokenBucket:
		if a.Refill == ratelimit.RefillInterval {
			return []part{newIntervalBucket(a)}
		}
		return []part{newTokenBucket(a)}
	case ratelimit.LeakyBucket:
		return []part{newLeakyBucket(a)}
	case ratelimit.FixedWindow:
		if a.Start == ratelimit.StartOnFirstEvent {
			return []part{&eventWindow{max: a.Limit, window: instant(a.Window)}}
		}
		return []part{&fixedWindow{max: a.Limit, window: instant(a.Window)}}
	case ratelimit.SlidingWindow:
		return []part{newSlidingWindow(a)}
	case ratelimit.SlidingLog:
		return []part{&slidingLog{max: a.Limit, window: instant(a.Window), countDenied: a.CountDenied}}
	case ratelimit.InFlight:
		return []part{newInFlight(a)}
	case ratelimit.RollingWindow:
		return []part{newRollingWindow(a)}
	case ratelimit.WarmingUp:
		return []part{newWarmingUp(a)}
	case ratelimit.Unlimited:
		return []part{&plan{max: math.MaxInt}}
	case ratelimit.Blocked:
		return []part{&plan{}}
	case ratelimit.All:
		var parts []part
		for _, p := range a {
			parts = append(parts, newParts(p)...)
		}
		return parts
	}
	panic(fmt.Sprintf("model: unknown algorithm %T", alg))
}

// Clone returns an independent copy of the key and its open holds, without its reservations.
func (k *Key) Clone() *Key {
	c := &Key{frontier: k.frontier, opens: slices.Clone(k.opens), tick: k.tick}
	for _, p := range k.parts {
		c.parts = append(c.parts, p.clone())
	}
	return c
}

// Ahead reports whether a reservation is for later than now.
func (k *Key) Ahead(now int64) bool { return k.frontier > instant(now) }

// Parts returns the number of parts of an All, with nested Alls flattened.
func (k *Key) Parts() int { return len(k.parts) }

// Limit returns the most events that can be granted to a fresh key at once.
func (k *Key) Limit() int {
	limit := math.MaxInt
	for _, p := range k.parts {
		limit = min(limit, p.limit())
	}
	return limit
}

// Take asks for n events at now.
func (k *Key) Take(now int64, n int) ratelimit.Decision {
	at := k.reach(now)
	switch {
	case n == 0:
		return k.granted(at, 0)
	case k.mayTake(at, n):
		delay := k.delay(at)
		k.charge(at, n)
		return k.granted(at, delay)
	default:
		return k.refused(at, n)
	}
}

// Peek returns the decision of Take(now, 1) without changing anything. Remaining is
// therefore not reduced by the event.
func (k *Key) Peek(now int64) ratelimit.Decision {
	at := k.reach(now)
	if k.mayTake(at, 1) {
		return k.granted(at, k.delay(at))
	}
	return k.Clone().refused(at, 1)
}

// A Reservation is a charge that can be cancelled.
type Reservation struct {
	due     instant
	indexes []int // of the charge, in each part
	done    bool
}

// Reserve spends n events at the first instant at which they may happen, unless that is
// more than maxWait away, and returns the instant at which they are due. Events do not
// wait for room in a queue: the queue must have room when the other parts grant them. The
// reservation is nil if there is nothing to cancel.
func (k *Key) Reserve(now int64, n int, maxWait time.Duration) (due uint64, r *Reservation, err error) {
	at := k.reach(now)
	if n == 0 {
		return at, nil, nil
	}
	act, due, err := k.turn(at, n, maxWait)
	if err != nil {
		return 0, nil, err
	}
	r = &Reservation{due: due, indexes: k.indexes()}
	k.charge(act, n)
	k.frontier = act
	return due, r, nil
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
	switch due = k.whole(act + instant(k.delay(act))); {
	case due-now >= instant(ratelimit.Never):
		return 0, 0, ratelimit.ErrNever
	case due-now > instant(maxWait):
		return 0, 0, context.DeadlineExceeded
	}
	return act, due, nil
}

// Cancel gives back as much of r as still can be given back.
func (k *Key) Cancel(now int64, r *Reservation) {
	at := k.reach(now)
	if r == nil || r.done || at > r.due {
		return
	}
	r.done = true
	for i, p := range k.parts {
		p.cancel(r.indexes[i], at)
	}
	k.frontier = k.latest()
}

// latest is the instant of the latest remaining charge of any part.
func (k *Key) latest() (at instant) {
	for _, p := range k.parts {
		at = max(at, p.latest())
	}
	return at
}

// mayTake reports whether n ≥ 1 events may happen at t: no reservation is later, and
// every part grants them.
func (k *Key) mayTake(t instant, n int) bool {
	if t < k.frontier || n > k.Limit() {
		return false
	}
	for _, p := range k.parts {
		if !p.grantable(t, n) {
			return false
		}
	}
	return true
}

func (k *Key) charge(t instant, n int) {
	for _, p := range k.parts {
		p.charge(t, n)
	}
}

// delay is how long to hold events that happen at t.
func (k *Key) delay(t instant) time.Duration {
	var d time.Duration
	for _, p := range k.parts {
		if p, ok := p.(delayer); ok {
			d = max(d, p.delay(t))
		}
	}
	return d
}

// granted returns the decision that grants a request at now, after it was charged.
func (k *Key) granted(now instant, delay time.Duration) ratelimit.Decision {
	d := k.describe(now)
	d.Allowed = true
	if d.Delay = delay; delay < ratelimit.Never {
		d.Delay = time.Duration(k.whole(instant(delay)))
	}
	for i, p := range k.parts {
		if k.remaining(p, now) == d.Remaining {
			d.Part = i
			break
		}
	}
	return d
}

// refused records in the parts that n events were refused at now, and returns the
// decision.
func (k *Key) refused(now instant, n int) ratelimit.Decision {
	if n <= k.Limit() {
		for _, p := range k.parts {
			if p, ok := p.(denialCounter); ok {
				p.refuse(now, n)
			}
		}
	}
	d := k.describe(now)
	if n > k.Limit() {
		d.RetryAfter = ratelimit.Never
		d.Part = slices.IndexFunc(k.parts, func(p part) bool { return n > p.limit() })
		return d
	}
	for i, p := range k.parts {
		wait := k.wait(now, func(t instant) bool { return p.grantable(t, n) })
		if !unlimited(p) && wait > d.RetryAfter {
			d.RetryAfter, d.Part = wait, i
		}
	}
	return d
}

// describe returns a decision with the fields that do not depend on the request.
func (k *Key) describe(now instant) ratelimit.Decision {
	d := ratelimit.Decision{Limit: k.Limit(), Remaining: math.MaxInt}
	for _, p := range k.parts {
		d.Remaining = min(d.Remaining, k.remaining(p, now))
		d.ResetAfter = max(d.ResetAfter, k.wait(now, p.forgotten))
	}
	return d
}

// remaining is the most events that p would grant at now.
func (k *Key) remaining(p part, now instant) int {
	if now < k.frontier && !unlimited(p) {
		return 0
	}
	lo, hi := 0, p.limit()
	for lo < hi {
		mid := hi - (hi-lo)/2
		if p.grantable(now, mid) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// wait is the time from now to the first instant, not before the frontier, at
// which cond holds.
func (k *Key) wait(now instant, cond func(instant) bool) time.Duration {
	t, ok := first(max(now, k.frontier), now+instant(ratelimit.Never), cond)
	if !ok {
		return ratelimit.Never
	}
	return time.Duration(k.whole(t) - now)
}

// first returns the first instant in lo ≤ t ≤ hi at which cond holds, and
// whether there is one. Once cond holds, it must keep holding.
func first(lo, hi instant, cond func(instant) bool) (instant, bool) {
	if cond(lo) {
		return lo, true
	}
	if !cond(hi) {
		return 0, false
	}
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if cond(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi, true
}
