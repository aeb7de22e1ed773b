package observe

import (
	"context"
	"math"

	"github.com/ratelimit-go/ratelimit"
)

// Crossed returns a [ratelimit.Observer] that calls f once for each decision by which the events in
// use of a key reach a fraction of its limit: Crossed(0.8, f) calls f when 80 of 100 events are in
// use, and fewer were before. It takes no memory. Events in use are those that the Limit of the
// [ratelimit.Decision] has and Remaining has not.
//
// In a [ratelimit.FixedWindow] or [ratelimit.CalendarWindow], f is called exactly once for each
// window and key in which the fraction is reached, while its limit is the same, by one process of a
// fleet that shares a store. Other limits regain room all the time, so that a key may reach the
// fraction again soon. The same is true of each key if events are given back, by a Settle, a
// Cancel, a Reset, or a [ratelimit.TakeAll] of several stores that one of them refuses.
//
// If the limit of a key changes ([ratelimit.WithLimits]), each call is compared with its own. So in
// one window, f is called for each limit whose fraction a call reaches: again for a higher one. It
// is not called for a lower one, if its fraction was in use before the change: no call reaches it.
//
// A Charge counts, and so does what a Settle counts in addition to what was held. After a Charge or
// a Settle that leaves nothing, it is unknown how much was left before. So f may be called again
// for such a key.
//
// Some decisions do not say what remains, and never call f:
//   - those of calls that have to wait for their turn, as the limit was used up when they came: if
//     such calls reach the fraction of the next window, f is not called in it;
//   - of a [ratelimit.LeakyBucket], those of each Wait that waits, and of a Reserve that fills the
//     bucket: it looks like a Reserve that waits for its turn;
//   - those that the [ratelimit.FailurePolicy] makes without a limit.
//
// Do not use Crossed with a [ratelimit.WarmingUp], which does not say how many events are in use:
// its Remaining is all of Limit, or 0.
//
// With leases of package redisstore, Remaining is what this process knows: f may be called late, or
// by several processes. Of a [ratelimit.All], Limit and Remaining are the least of all parts. To be
// told of one part, give the part a limiter of its own, and ask both with [ratelimit.TakeAll].
//
// Crossed panics if the fraction is not above 0 and at most 1, or if f is nil. The error matches
// [ratelimit.ErrInvalid].
func Crossed(fraction float64, f ratelimit.Observer) ratelimit.Observer {
	if !(fraction > 0 && fraction <= 1) { // NaN is neither
		const must = "must be above 0 and at most 1"
		panic(invalid("Crossed's fraction", fraction, must))
	}
	if f == nil {
		panic(invalid("Crossed's f", nil, "must be a function"))
	}
	return func(ctx context.Context, o ratelimit.Observation) {
		if crosses(fraction, &o) {
			f(ctx, o)
		}
	}
}

// crosses reports whether the events in use reach the fraction by o.
func crosses(fraction float64, o *ratelimit.Observation) bool {
	d := &o.Decision
	n := usedEvents(o)
	if n <= 0 || d.Limit <= 0 || !d.Checked() {
		return false
	}
	if o.Call == ratelimit.CallReserve && o.Waited > 0 && d.Remaining == 0 {
		return false // the events are used at their turn, and not of what was left
	}
	reached, after := reachedAt(fraction, d.Limit), d.Limit-d.Remaining
	return after-n < reached && reached <= after
}

// reachedAt returns the least number of events that is at least a fraction of limit. 0.07 of 100 is
// 7, although the nearest floating-point number to 0.07, times 100, is a little more.
func reachedAt(fraction float64, limit int) int {
	const rounding = 0x1p-50
	return int(math.Ceil(fraction * float64(limit) * (1 - rounding)))
}
