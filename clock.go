package ratelimit

import (
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// A timeline turns readings of a clock into instants. It reads the clock's
// monotonic side only, as the time since a base, which costs one clock where
// time.Now costs two, and it never goes back: while the clock is behind an
// earlier reading, the timeline stands still.
type timeline struct {
	clk    clock.Clock
	base   time.Time    // a reading of clk
	origin instant      // the instant of base
	steady bool         // whether clk is the system's, which never steps back
	coarse *CoarseClock // clk, if it is one: that never steps back either

	latest atomic.Uint64 // the latest instant told; kept if not steady
}

// newTimeline returns the timeline of clk, or of the system's clock if that is
// nil.
func newTimeline(clk clock.Clock) *timeline {
	steady := clk == nil
	if steady {
		clk = clock.New()
	}
	coarse, _ := clk.(*CoarseClock)
	base := clk.Now()
	if coarse != nil {
		base = coarse.base
	}
	return &timeline{clk: clk, base: base, origin: instantOf(base), steady: steady, coarse: coarse}
}

// Instants are counted from the Unix epoch as long as the clock is within
// these years. A clock that is not (one that a test set to the zero Time, say)
// is shifted by a multiple of a number of whole weeks, which leaves the
// borders of minutes, hours, days and weeks where they are.
const (
	epochEnd  = 4102444800       // 2100-01-01, in seconds
	epochTurn = 5000 * 7 * 86400 // 5,000 weeks, in seconds
)

func instantOf(t time.Time) instant {
	sec := t.Unix()
	if sec < 0 || sec >= epochEnd {
		sec = (sec%epochTurn + epochTurn) % epochTurn
	}
	return instant(sec)*1e9 + instant(t.Nanosecond())
}

// now returns the present instant, and by how much the clock is behind it.
func (t *timeline) now() (now instant, lag uint64) {
	switch {
	case t.steady:
		return t.origin + instant(time.Since(t.base)), 0 // from 2100 to maxInstant are 16 years
	case t.coarse != nil:
		return t.origin + instant(t.coarse.sinceBase()), 0
	}
	return t.unsteady()
}

// unsteady is now for a clock that may step back.
func (t *timeline) unsteady() (now instant, lag uint64) {
	now = t.at(t.clk.Since(t.base))
	for {
		latest := t.latest.Load()
		if now < latest {
			return latest, latest - now
		}
		if now == latest || t.latest.CompareAndSwap(latest, now) {
			return now, 0
		}
	}
}

// at returns the instant d after base, as near as instants come to it.
func (t *timeline) at(d time.Duration) instant {
	if d < 0 {
		return t.origin - min(t.origin, -instant(d))
	}
	return min(t.origin+instant(d), maxInstant)
}

// wall returns what the clock showed when now and lag were told.
func (t *timeline) wall(now instant, lag uint64) time.Time {
	return t.base.Add(time.Duration(now) - time.Duration(t.origin) - time.Duration(lag))
}

// until returns the time until the clock will have reached t.
func (t *timeline) until(at instant) time.Duration {
	v := view{tick: 1}
	v.now, v.lag = t.now()
	return v.until(at)
}

// in returns the instant that the clock will show after d.
func (t *timeline) in(d time.Duration) instant {
	now, lag := t.now()
	return after(now, uint64(d)-min(uint64(d), lag))
}
