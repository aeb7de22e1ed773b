package ratelimit

import (
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// A timeline turns readings of a clock into instants. It reads only the clock's
// monotonic side, as the time since a base, which costs one clock read where
// time.Now costs two. It never goes back: while the clock is behind an earlier
// reading, the timeline stands still.
//
// The limiters on a [MemoryStore] share one, so that they agree on what time it
// is even if the wall clock is set between two calls of [New].
type timeline struct {
	clk    clock.Clock
	steady bool         // whether clk is the system's, which never steps back
	coarse *CoarseClock // clk, if it is one: that never steps back either
	first  anchor

	// Only for other clocks.
	moved  atomic.Pointer[anchor] // what counts instead of first, if it is not nil
	latest atomic.Uint64          // the latest instant returned
}

// An anchor is a reading of a clock, and the instant that it stands for.
type anchor struct {
	base   time.Time
	origin instant
}

// newTimeline returns the timeline of clk, or of the system's clock if clk is
// nil.
func newTimeline(clk clock.Clock) *timeline {
	if clk = exceptSystem(clk); clk == nil {
		return &timeline{clk: clock.New(), steady: true, first: anchorAt(time.Now())}
	}
	if coarse, ok := clk.(*CoarseClock); ok {
		return &timeline{clk: clk, coarse: coarse, first: anchorAt(coarse.base)}
	}
	return &timeline{clk: clk, first: anchorAt(clk.Now())}
}

// exceptSystem returns clk, or nil if it is one that clock.New returned. Those
// have no state, so all of them are the same clock.
func exceptSystem(clk clock.Clock) clock.Clock {
	if reflect.TypeOf(clk) == reflect.TypeOf(clock.New()) {
		return nil
	}
	return clk
}

// tells reports whether t is the timeline of clk, which is nil for the system's.
func (t *timeline) tells(clk clock.Clock) bool {
	if clk = exceptSystem(clk); clk == nil {
		return t.steady
	}
	return reflect.TypeOf(clk).Comparable() && reflect.ValueOf(clk).Comparable() && clk == t.clk
}

// A timekeeper is a [Store] whose limiters must agree on the time.
type timekeeper interface {
	// timelineOf returns the timeline that the store's limiters use, or an error
	// if that is not the one of clk.
	timelineOf(clk clock.Clock) (*timeline, error)
}

// timelineOf returns the timeline for a limiter in store, by clk.
func timelineOf(store Store, clk clock.Clock) (*timeline, error) {
	if s, ok := store.(timekeeper); ok {
		return s.timelineOf(clk)
	}
	return newTimeline(clk), nil
}

// timelineOf implements timekeeper.
func (s *MemoryStore) timelineOf(clk clock.Clock) (*timeline, error) {
	if s.time.Load() == nil {
		s.time.CompareAndSwap(nil, newTimeline(clk))
	}
	t := s.time.Load()
	if !t.tells(clk) {
		return nil, invalid("WithClock's clock", nameOf(clk), fmt.Sprintf("must be the clock of the other limiters on this store, %s, since states hold instants; use another store for another clock", nameOf(t.clk)))
	}
	return t, nil
}

// keepTime notes the timeline of a request that came without New's doing: through
// a Store that wraps this one.
func (s *MemoryStore) keepTime(req *Request) {
	if s.time.Load() == nil && req.timeline != nil {
		s.time.CompareAndSwap(nil, req.timeline)
	}
}

// now returns the present instant, for what no limiter asked for.
func (s *MemoryStore) now() instant {
	t := s.time.Load()
	if t == nil {
		t = newTimeline(nil) // there are no keys, or all from requests with a time of their own
	}
	now, _ := t.now()
	return now
}

// nameOf names a clock in an error.
func nameOf(clk clock.Clock) string {
	switch clk = exceptSystem(clk); reflect.ValueOf(clk).Kind() {
	case reflect.Invalid:
		return "the system's clock"
	case reflect.Pointer:
		return fmt.Sprintf("the %T at %p", clk, clk)
	}
	return fmt.Sprintf("a %T", clk)
}

// Instants are counted from the Unix epoch as long as the clock is within
// these years. A clock that is not (one that shows the zero Time, say) is
// shifted by a multiple of a number of whole weeks, which leaves the borders of
// minutes, hours, days and weeks where they are.
const (
	epochEnd  = 4102444800       // 2100-01-01, in seconds
	epochTurn = 5000 * 7 * 86400 // 5,000 weeks, in seconds
	week      = 7 * 86400 * 1e9  // in nanoseconds
)

func instantOf(t time.Time) instant {
	sec := t.Unix()
	if sec < 0 || sec >= epochEnd {
		sec = (sec%epochTurn + epochTurn) % epochTurn
	}
	return instant(sec)*1e9 + instant(t.Nanosecond())
}

func anchorAt(t time.Time) anchor { return anchor{t, instantOf(t)} }

// now returns the present instant, and by how much the clock is behind it.
func (t *timeline) now() (now instant, lag uint64) {
	switch {
	case t.steady:
		return t.first.origin + instant(time.Since(t.first.base)), 0 // from 2100 to maxInstant are 16 years
	case t.coarse != nil:
		return t.first.origin + instant(t.coarse.sinceBase()), 0
	}
	return t.unsteady()
}

// renew reads a clock again that is read every so often, before a request is denied.
// It reports whether that made a difference.
func (t *timeline) renew() bool { return t.coarse != nil && t.coarse.renew() }

// reread is renew for what is rare: it always reads the clock.
func (t *timeline) reread() {
	if t.coarse != nil {
		t.coarse.refresh()
	}
}

// unsteady is now for a clock that may step back, or far ahead.
func (t *timeline) unsteady() (now instant, lag uint64) {
	from := t.anchor()
	d := t.clk.Since(from.base)
	if from.ends(d) {
		t.move(from)
		from = t.anchor()
		d = t.clk.Since(from.base)
	}
	now = from.at(d)
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

func (t *timeline) anchor() *anchor {
	if moved := t.moved.Load(); moved != nil {
		return moved
	}
	return &t.first
}

// ends reports whether instants counted from a would not fit any more, now that d has
// passed since. If d is saturated, they do not.
func (a *anchor) ends(d time.Duration) bool {
	return d > 0 && a.origin < maxInstant && a.origin+instant(d) > maxInstant
}

// move counts instants from what the clock shows now. If that is not after the
// latest instant, it skips half of what is left of time, since the clock has gone
// ahead by more than can be told, and whole weeks, which keep windows aligned.
func (t *timeline) move(from *anchor) {
	next := anchorAt(t.clk.Now())
	if latest := t.latest.Load(); next.origin < latest {
		next.origin += (latest + (maxInstant-latest)/2 - next.origin) / week * week
	}
	next.origin = min(next.origin, maxInstant)
	if from == &t.first {
		from = nil
	}
	t.moved.CompareAndSwap(from, &next) // or another caller has just moved it
}

// at returns the instant d after the anchor, as near as instants come to it.
func (a *anchor) at(d time.Duration) instant {
	if d < 0 {
		return a.origin - min(a.origin, -instant(d))
	}
	return min(a.origin+instant(d), maxInstant)
}

// wall returns what the clock showed when now and lag were told.
func (t *timeline) wall(now instant, lag uint64) time.Time {
	from := t.anchor()
	return from.base.Add(time.Duration(now) - time.Duration(from.origin) - time.Duration(lag))
}

// until returns the time until the clock will have reached t.
func (t *timeline) until(at instant) time.Duration {
	t.reread()
	v := view{tick: 1}
	v.now, v.lag = t.now()
	return v.until(at)
}

// in returns the instant that the clock will show after d.
func (t *timeline) in(d time.Duration) instant {
	now, lag := t.now()
	return after(now, uint64(d)-min(uint64(d), lag))
}
