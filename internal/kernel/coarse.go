package kernel

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A Coarse is the readings of a clock that is read every so often: the latest is kept.
type Coarse struct {
	Base    time.Time
	elapsed atomic.Int64  // since Base, in nanoseconds; below 0 once stopped
	odds    atomic.Uint32 // that a denial reads the clock, of 2³²
}

// Init takes a first reading.
func (c *Coarse) Init() {
	c.Base = time.Now()
	c.odds.Store(always)
}

// Tick takes a reading. It is to be called every so often.
func (c *Coarse) Tick() {
	if c.Refresh() > fewDenials { // or they would have read it
		c.odds.Store(always)
	}
}

// Stop says that Tick is not called any more. From then on, the clock is read each time.
func (c *Coarse) Stop() { c.elapsed.Store(-1) }

// The odds that a denial reads the clock fall by an eighth when the reading turns out
// to be recent, and rise when it does not. So denials that are many find one that is
// ten to twenty microseconds old, and denials that are few read it each time, which
// costs little then. They share no counter, since to share it would take as long as
// to read the clock.
const (
	always = math.MaxUint32
	rarely = 1 << 16 // one in 65,536

	recent     = 10_000  // ns
	notRecent  = 40_000  // ns
	fewDenials = 100_000 // ns
)

// SinceBase returns the latest reading, as the time since Base.
func (c *Coarse) SinceBase() time.Duration {
	if d := c.elapsed.Load(); d >= 0 {
		return time.Duration(d)
	}
	return time.Since(c.Base)
}

// Renew is called before a request is denied. It reports whether the reading is
// another one now, with which the request should be decided on again.
func (c *Coarse) Renew() bool {
	odds := c.odds.Load()
	if odds != always && rand.Uint32() > odds {
		return false
	}
	age := c.Refresh()
	switch {
	case age > fewDenials || age > notRecent && odds > always/2:
		c.odds.Store(always)
	case age > notRecent:
		c.odds.Store(odds << 1)
	case age < recent && odds > rarely:
		c.odds.Store(odds - odds/8)
	}
	return age > 0
}

// Refresh reads the clock, and returns how old the latest reading was.
func (c *Coarse) Refresh() (age int64) {
	for {
		last := c.elapsed.Load()
		now := int64(time.Since(c.Base))
		if now <= last || last < 0 {
			return 0 // another caller was faster, or it was stopped
		}
		if c.elapsed.CompareAndSwap(last, now) {
			return now - last
		}
	}
}
