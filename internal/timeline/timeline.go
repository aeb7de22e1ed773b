// Package timeline converts the readings of a clock to instants.
package timeline

import (
	"reflect"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Timeline converts readings of a clock to instants. It follows the monotonic clock. To read the
// monotonic clock takes one clock read, where time.Now takes two. A Timeline never goes back: while
// the clock is behind an earlier reading, the timeline stands still.
//
// The monotonic clock does not count the time for which a machine was suspended, or by which its
// wall clock was set. So the timeline follows the wall clock if that is far ahead. If the wall
// clock is behind, because it was set back, the timeline does not follow.
//
// Limiters that share a store in memory share a timeline, so that they agree on the time even if
// the wall clock is set after one of them was made and before the next one is made.
type Timeline struct {
	clk      clock.Clock
	isSystem bool // whether clk is the system's
	// Whether the monotonic reading of clk, which is the system's, is never behind an instant that
	// was returned.
	steady bool
	coarse *Coarse // the readings of clk, if it is a coarse clock, which never steps back either

	anchor atomic.Pointer[anchor]
	latest atomic.Uint64 // for other clocks, the latest instant returned
}

// An anchor is a reading of a clock and the instant that it stands for.
type anchor struct {
	base   time.Time // an earlier reading, or this one; time is counted from there
	since  time.Duration
	shown  time.Time // the reading, taken when since had passed
	origin kernel.Instant
	due    atomic.Int64 // the time since base at which the wall clock is compared next
}

// New returns the timeline of clk, or of the system's clock if clk is nil.
// coarse has the readings of clk if it is a coarse clock, and is nil otherwise.
func New(clk clock.Clock, coarse *Coarse) *Timeline {
	t := &Timeline{clk: clk, coarse: coarse}
	switch {
	case isSystem(clk):
		t.clk, t.isSystem, t.steady = clock.New(), true, true
		t.anchor.Store(anchorAt(time.Now()))
	case coarse != nil:
		t.anchor.Store(anchorAt(coarse.Base))
	default:
		t.anchor.Store(anchorAt(clk.Now()))
	}
	return t
}

// isSystem reports whether clk is the system's clock: nil, or one that clock.New returned. Those
// have no state, so all of them are the same clock.
func isSystem(clk clock.Clock) bool {
	return clk == nil || reflect.TypeOf(clk) == reflect.TypeOf(clock.New())
}

// Tells reports whether t is the timeline of clk; a nil clk is the system's clock.
func (t *Timeline) Tells(clk clock.Clock) bool {
	if isSystem(clk) {
		return t.isSystem
	}
	return param.Same(clk, t.clk)
}

// IsOfSystem reports whether t follows the system's clock, also in readings that are coarse.
func (t *Timeline) IsOfSystem() bool { return t.isSystem || t.coarse != nil }

// Raise makes the timeline of a clock that is behind an instant stand still until then. It is
// called before t is used. The timeline of a coarse clock, which others may use, does not stand
// still, but goes on from that instant.
func (t *Timeline) Raise(to kernel.Instant) {
	now, _ := t.Now()
	if now >= to {
		return
	}
	if t.coarse != nil {
		from := t.anchor.Load()
		d := t.coarse.SinceBase()
		shown := from.shown.Add(d - from.since)
		next := &anchor{base: from.base, since: d, shown: shown, origin: to}
		t.anchor.CompareAndSwap(from, next)
		return
	}
	t.steady = false
	t.latest.Store(max(to, t.latest.Load()))
}

// Instants are counted from the Unix epoch while the clock shows a time in these years.
// A clock that does not (one that starts at the zero Time, for example) is shifted by a
// multiple of 5,000 weeks, which keeps minutes, hours, days and weeks aligned.
const (
	epochEnd  = 4102444800       // 2100-01-01, in seconds
	epochTurn = 5000 * 7 * 86400 // 5,000 weeks, in seconds
)

// InstantOf returns the instant of a time.
func InstantOf(t time.Time) kernel.Instant {
	sec := t.Unix()
	if shifted(sec) {
		sec = (sec%epochTurn + epochTurn) % epochTurn
	}
	return kernel.Instant(sec)*1e9 + kernel.Instant(t.Nanosecond())
}

func shifted(sec int64) bool { return sec < 0 || sec >= epochEnd }

func anchorAt(t time.Time) *anchor { return &anchor{base: t, shown: t, origin: InstantOf(t)} }

// Now returns the present instant, and by how much the clock is behind it.
func (t *Timeline) Now() (now kernel.Instant, lag uint64) {
	var d time.Duration
	from := t.anchor.Load()
	switch {
	case t.steady:
		d = time.Since(from.base)
	case t.coarse != nil:
		d = t.coarse.SinceBase()
	default:
		return t.unsteady()
	}
	if int64(d) >= from.due.Load() {
		from = t.compare(from, d)
	}
	return from.after(d), 0
}

// compare follows the wall clock, unless another caller does, and returns the anchor.
func (t *Timeline) compare(from *anchor, d time.Duration) *anchor {
	if from.compares(d) {
		at := time.Now()
		t.follow(from, at, at.Sub(from.base))
	}
	return t.anchor.Load()
}

// after returns the instant at which d has passed since the base. From 2100 to MaxInstant are 16
// years.
func (a *anchor) after(d time.Duration) kernel.Instant {
	return a.origin + kernel.Instant(d-a.since)
}

// compareEvery is the time after which the wall clock is compared again. It is long enough that
// this costs nothing: a comparison takes as long as two or three readings.
const compareEvery = 10 * time.Millisecond

// compares reports whether the caller has to compare the wall clock, when d has passed since
// the base.
func (a *anchor) compares(d time.Duration) bool {
	due := a.due.Load()
	return int64(d) >= due && a.due.CompareAndSwap(due, int64(d+compareEvery))
}

// farAhead is the time by which the wall clock must be ahead for a timeline to follow it. Slewing,
// by which NTP corrects a clock, changes it by at most half a millisecond a second, and Linux slews
// the monotonic clock as well. So a wall clock that is a second ahead was set, or its machine was
// suspended, or, elsewhere, it has been slewed for more than half an hour.
const farAhead = time.Second

// follow makes at, a reading of the clock, the anchor if its wall time is far ahead. passed is the
// time since the base, not read before it.
func (t *Timeline) follow(from *anchor, at time.Time, passed time.Duration) (moved bool) {
	if shifted(at.Unix()) ||
		InstantOf(at) <= max(from.at(passed)+uint64(farAhead), t.latest.Load()) {
		return false
	}
	next := anchorAt(at)
	next.base, next.since = from.base, passed
	return t.anchor.CompareAndSwap(from, next)
}

// Renew reads a coarse clock again, before a request is denied. It reports whether the
// reading has changed.
func (t *Timeline) Renew() bool { return t.coarse != nil && t.coarse.Refresh() }

// unsteady is Now for a clock that may step back, or far ahead. It loads the latest
// instant before it reads the clock: a clock that is behind that has stepped back, and
// was not only overtaken by another caller's reading. A state that was at hand before was
// left at that instant at the latest.
func (t *Timeline) unsteady() (now kernel.Instant, lag uint64) {
	for {
		latest := t.latest.Load()
		from := t.anchor.Load()
		d := t.clk.Since(from.base)
		if from.compares(d) {
			at := t.clk.Now()
			d = t.clk.Since(from.base) // it may have moved in between
			if t.follow(from, at, d) {
				continue
			}
		}
		now = from.at(d)
		if now < latest {
			return latest, latest - now
		}
		for now > latest && !t.latest.CompareAndSwap(latest, now) {
			latest = t.latest.Load()
		}
		return now, 0
	}
}

// at returns the instant at which d has passed since the base, limited to the range of instants: at
// its end, time stands still.
func (a *anchor) at(d time.Duration) kernel.Instant {
	if d < a.since {
		return a.origin - min(a.origin, kernel.Instant(a.since)-kernel.Instant(d))
	}
	return min(a.after(d), kernel.MaxInstant)
}

// Wall returns the time that the clock showed when Now returned now and lag.
func (t *Timeline) Wall(now kernel.Instant, lag uint64) time.Time {
	from := t.anchor.Load()
	return from.shown.Add(time.Duration(now) - time.Duration(from.origin) - time.Duration(lag))
}

// Time returns the latest reading of a coarse clock.
func (t *Timeline) Time() time.Time {
	d := t.coarse.SinceBase()
	from := t.compare(t.anchor.Load(), d)
	return from.shown.Add(d - from.since)
}

// Until returns the time until the clock reaches an instant.
func (t *Timeline) Until(at kernel.Instant) time.Duration {
	t.Renew()
	now, lag := t.Now()
	return kernel.Until(at, now, lag)
}

// In returns the instant that the clock will show after d.
func (t *Timeline) In(d time.Duration) kernel.Instant {
	now, lag := t.Now()
	return kernel.After(now, uint64(d)-min(uint64(d), lag))
}

// Clock returns the clock.
func (t *Timeline) Clock() clock.Clock { return t.clk }

// Flows reports whether the clock advances by itself, as every clock does that cannot be Set.
func (t *Timeline) Flows() bool {
	_, set := t.clk.(interface{ Set(time.Time) })
	return !set
}
