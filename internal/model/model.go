// Package model is a reference model of the algorithms: slow, exact, and as close to
// their written definitions as code can be. Tests compare the library with it. The definitions in
// internal/laws/complete are faster, and of small numbers only: a test there compares the model
// with them.
//
// Each algorithm only says whether n events may happen at an instant, and whether any earlier event
// still counts then. As time passes, each of the two answers changes at most once. So bisection
// finds the first instant at which an answer changes, and the most events that may happen now. This
// package contains no formula for them. Nor does it contain a formula for the events that come back
// when a hold is settled for less: the model replays all that has happened to the key since.
package model

import (
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

	// settle replays the history with n events in a charge, at most as many as it has.
	settle(index, n int)

	// earliest is the first instant, t or later, at which events can be charged, however many
	// there is room for.
	earliest(t instant) instant

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

// A witness is a part in which it is a fact what has passed until an instant, whatever is settled
// afterwards.
type witness interface {
	pass(t instant)
}

// A Key is the history of one key. Its clock must not go back, and stays
// within 0 ≤ now ≤ farthest.
type Key struct {
	parts []part

	// frontier is the instant of the latest turn that has come. In a copy in which all have,
	// nothing is granted before it.
	frontier instant

	reached instant // until when holds have ended by themselves

	opens []open    // in the order in which they were made
	ahead []booking // likewise

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
	case ratelimit.CalendarWindow:
		return []part{newCalendarWindow(a)}
	case ratelimit.SlidingWindow:
		return []part{newSlidingWindow(a)}
	case ratelimit.SlidingLog:
		log := &slidingLog{max: a.Limit, window: instant(a.Window), countDenied: a.CountDenied}
		return []part{log}
	case ratelimit.InFlight:
		return []part{newInFlight(a)}
	case ratelimit.Lockout:
		return []part{newLockout(a)}
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

// Clone returns an independent copy of the key, its open holds and its reservations.
func (k *Key) Clone() *Key {
	c := &Key{
		frontier: k.frontier,
		reached:  k.reached,
		opens:    slices.Clone(k.opens),
		ahead:    slices.Clone(k.ahead),
		tick:     k.tick,
	}
	for _, p := range k.parts {
		c.parts = append(c.parts, p.clone())
	}
	return c
}

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
		return k.after().granted(at, 0)
	case k.mayTake(at, n):
		delay := k.delay(at)
		k.charge(at, n)
		return k.granted(at, delay)
	default:
		return k.refused(at, n)
	}
}

// TakeUpTo asks for as many of n events as may happen at now, and returns how many: the most of
// which a Take is granted. If not even one is, it is a Take of one.
func (k *Key) TakeUpTo(now int64, n int) (granted int, d ratelimit.Decision) {
	at := k.reach(now)
	lo, hi := 0, n
	for lo < hi {
		mid := hi - (hi-lo)/2
		if k.mayTake(at, mid) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo, k.Take(now, max(min(1, n), lo))
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

// mayTake reports whether n ≥ 1 events may happen at t: no reservation is later, and
// every part grants them.
func (k *Key) mayTake(t instant, n int) bool {
	if len(k.ahead) > 0 || n > k.Limit() {
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
	d.Delay = delay
	if delay < ratelimit.Never {
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
	d := k.after().denied(now, n)
	if n <= k.Limit() && k.GivesBack() {
		d.RetryAfter = k.wait(now, func(t instant) bool {
			c := k.Clone()
			c.reach(int64(t))
			return c.mayTake(t, n)
		})
	}
	return d
}

// GivesBack reports whether events that are held or reserved come back if nobody settles them.
func (k *Key) GivesBack() bool {
	return slices.ContainsFunc(k.opens, func(o open) bool { return o.back }) ||
		slices.ContainsFunc(k.ahead, func(b booking) bool { return b.back })
}

// denied is refused, without recording anything.
func (k *Key) denied(now instant, n int) ratelimit.Decision {
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
	for step := instant(1); hi-lo > step; step *= 2 { // since most are near lo
		if cond(lo + step) {
			hi = lo + step
			break
		}
		lo += step
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
