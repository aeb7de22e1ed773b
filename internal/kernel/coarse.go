package kernel

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A Coarse holds the latest reading of a clock that is read only periodically.
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

// Tick takes a reading. The owner calls it periodically.
func (c *Coarse) Tick() {
	if c.Refresh() > fewDenials { // more denials would have read the clock
		c.odds.Store(always)
	}
}

// Stop says that Tick is no longer called. From then on, the clock is read each time.
func (c *Coarse) Stop() { c.elapsed.Store(-1) }

// The odds that a denial reads the clock fall by an eighth when the reading turns out
// to be recent, and rise when it does not. So frequent denials use a reading that is 10
// to 20 µs old, and rare denials read the clock each time, which costs little then.
// Denials do not share a counter, because updating one would take as long as reading
// the clock.
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

// Renew is called before a request is denied. It reports whether the reading has
// changed, in which case the request is decided on again.
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

// Refresh reads the clock and returns the age of the previous reading.
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
