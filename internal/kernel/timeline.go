package kernel

import (
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Timeline converts readings of a clock to instants. It reads only the monotonic time
// since a base, which takes one clock read where time.Now takes two. It never goes
// back: while the clock is behind an earlier reading, the timeline stands still.
//
// Limiters that share a store in memory share a timeline, so that they agree on the
// time even if the wall clock is set between the creation of two.
type Timeline struct {
	clk    clock.Clock
	steady bool    // whether clk is the system's, which never steps back
	coarse *Coarse // the readings of clk, if it is a CoarseClock, which never steps back either
	first  anchor

	// Only for other clocks.
	moved  atomic.Pointer[anchor] // replaces first, if not nil
	latest atomic.Uint64          // the latest instant returned
}

// An anchor is a reading of a clock and the instant that it stands for.
type anchor struct {
	base   time.Time
	origin Instant
}

// NewTimeline returns the timeline of clk, or of the system's clock if clk is nil.
// coarse has the readings of clk if it is a CoarseClock, and is nil otherwise.
func NewTimeline(clk clock.Clock, coarse *Coarse) *Timeline {
	if clk = exceptSystem(clk); clk == nil {
		return &Timeline{clk: clock.New(), steady: true, first: anchorAt(time.Now())}
	}
	if coarse != nil {
		return &Timeline{clk: clk, coarse: coarse, first: anchorAt(coarse.Base)}
	}
	return &Timeline{clk: clk, first: anchorAt(clk.Now())}
}

// exceptSystem returns clk, or nil if it is one that clock.New returned. Those
// have no state, so all of them are the same clock.
func exceptSystem(clk clock.Clock) clock.Clock {
	if reflect.TypeOf(clk) == reflect.TypeOf(clock.New()) {
		return nil
	}
	return clk
}

// Tells reports whether t is the timeline of clk; a nil clk is the system's clock.
func (t *Timeline) Tells(clk clock.Clock) bool {
	if clk = exceptSystem(clk); clk == nil {
		return t.steady
	}
	return param.Same(clk, t.clk)
}

// Instants are counted from the Unix epoch while the clock shows a time in these years.
// A clock that does not (one that starts at the zero Time, for example) is shifted by a
// multiple of 5,000 weeks, which keeps minutes, hours, days and weeks aligned.
const (
	epochEnd  = 4102444800       // 2100-01-01, in seconds
	epochTurn = 5000 * 7 * 86400 // 5,000 weeks, in seconds
	week      = 7 * 86400 * 1e9  // in nanoseconds
)

// InstantOf returns the instant of a time.
func InstantOf(t time.Time) Instant {
	sec := t.Unix()
	if sec < 0 || sec >= epochEnd {
		sec = (sec%epochTurn + epochTurn) % epochTurn
	}
	return Instant(sec)*1e9 + Instant(t.Nanosecond())
}

func anchorAt(t time.Time) anchor { return anchor{t, InstantOf(t)} }

// Now returns the present instant, and by how much the clock is behind it.
func (t *Timeline) Now() (now Instant, lag uint64) {
	switch {
	case t.steady:
		return t.first.origin + Instant(time.Since(t.first.base)), 0 // from 2100 to MaxInstant are 16 years
	case t.coarse != nil:
		return t.first.origin + Instant(t.coarse.SinceBase()), 0
	}
	return t.unsteady()
}

// Renew reads a CoarseClock again, before a request is denied. It reports whether the
// reading has changed.
func (t *Timeline) Renew() bool { return t.coarse != nil && t.coarse.Renew() }

// Reread reads a CoarseClock again. Unlike Renew, it always does; it is for rare calls.
func (t *Timeline) Reread() {
	if t.coarse != nil {
		t.coarse.Refresh()
	}
}

// unsteady is Now for a clock that may step back, or far ahead. It loads the latest
// instant before it reads the clock: a clock that is behind that has stepped back, and
// was not only overtaken by another caller's reading. A state that was at hand before was
// left at that instant at the latest.
func (t *Timeline) unsteady() (now Instant, lag uint64) {
	for {
		latest := t.latest.Load()
		from := t.anchor()
		d := t.clk.Since(from.base)
		if from.ends(d) {
			t.move(from)
			continue
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

// Outside and Inside are Now for a caller that must not call a user's clock while it holds
// locks. It calls Outside before it acquires them, and Inside, with the results, while it holds
// them.
//
// For a user's clock, Inside returns the latest instant that any caller has read so far. No
// state was left later than that, and no other caller has seen the clock show more. So a
// decision that is made then counts as made when the clock showed it.
func (t *Timeline) Outside() (now Instant, lag uint64) {
	if !t.Foreign() {
		return 0, 0
	}
	return t.unsteady()
}

// Foreign reports whether the clock is a user's, so that Inside does not read it.
func (t *Timeline) Foreign() bool { return !t.steady && t.coarse == nil }

// Inside is described at Outside.
func (t *Timeline) Inside(now Instant, lag uint64) (Instant, uint64) {
	if !t.Foreign() {
		return t.Now()
	}
	if latest := t.latest.Load(); latest > now {
		return latest, 0
	}
	return now, lag
}

func (t *Timeline) anchor() *anchor {
	if moved := t.moved.Load(); moved != nil {
		return moved
	}
	return &t.first
}

// ends reports whether instants counted from a no longer fit, d after its base. A
// saturated d never fits.
func (a *anchor) ends(d time.Duration) bool {
	return d > 0 && a.origin < MaxInstant && a.origin+Instant(d) > MaxInstant
}

// move starts counting instants from the clock's present reading. If that is not after
// the latest instant, the clock has jumped ahead by an unknown time. Then move skips
// half of the remaining range, in whole weeks, which keeps windows aligned.
func (t *Timeline) move(from *anchor) {
	next := anchorAt(t.clk.Now())
	if latest := t.latest.Load(); next.origin < latest {
		next.origin += (latest + (MaxInstant-latest)/2 - next.origin) / week * week
	}
	next.origin = min(next.origin, MaxInstant)
	if from == &t.first {
		from = nil
	}
	t.moved.CompareAndSwap(from, &next) // or another caller has just moved it
}

// at returns the instant d after the anchor, limited to the range of instants.
func (a *anchor) at(d time.Duration) Instant {
	if d < 0 {
		return a.origin - min(a.origin, -Instant(d))
	}
	return min(a.origin+Instant(d), MaxInstant)
}

// Wall returns the time that the clock showed when Now returned now and lag.
func (t *Timeline) Wall(now Instant, lag uint64) time.Time {
	from := t.anchor()
	return from.base.Add(time.Duration(now) - time.Duration(from.origin) - time.Duration(lag))
}

// Until returns the time until the clock reaches an instant.
func (t *Timeline) Until(at Instant) time.Duration {
	t.Reread()
	now, lag := t.Now()
	return until(at, now, lag, 1)
}

// In returns the instant that the clock will show after d.
func (t *Timeline) In(d time.Duration) Instant {
	now, lag := t.Now()
	return After(now, uint64(d)-min(uint64(d), lag))
}

// Clock returns the clock.
func (t *Timeline) Clock() clock.Clock { return t.clk }

// Flows reports whether the clock advances by itself, so that its timers count the same
// time, and do not fire late because of time that passed before they were set.
func (t *Timeline) Flows() bool { return t.steady || t.coarse != nil || exceptSystem(t.clk) == nil }

// NameOf names a clock in an error.
func NameOf(clk clock.Clock) string {
	switch clk = exceptSystem(clk); reflect.ValueOf(clk).Kind() {
	case reflect.Invalid:
		return "the system's clock"
	case reflect.Pointer:
		return fmt.Sprintf("the %T at %p", clk, clk)
	}
	return fmt.Sprintf("a %T", clk)
}
