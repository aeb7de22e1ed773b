package timeline

import (
	"sync/atomic"
	"time"
)

// A Coarse holds the latest reading of a clock that is read only periodically.
type Coarse struct {
	Base    time.Time
	elapsed atomic.Int64 // since Base, in nanoseconds; below 0 once stopped
}

// Init takes a first reading.
func (c *Coarse) Init() { c.Base = time.Now() }

// Stop says that Refresh is no longer called periodically. From then on, the clock is read each
// time.
func (c *Coarse) Stop() { c.elapsed.Store(-1) }

// SinceBase returns the latest reading, as the time since Base.
func (c *Coarse) SinceBase() time.Duration {
	if d := c.elapsed.Load(); d >= 0 {
		return time.Duration(d)
	}
	return time.Since(c.Base)
}

// Refresh takes a reading, and reports whether it is later than the one before. The owner calls it
// periodically. It is also called before a request is denied, which is decided on again if it is.
func (c *Coarse) Refresh() (later bool) {
	for {
		last := c.elapsed.Load()
		now := int64(time.Since(c.Base))
		if now <= last || last < 0 {
			return false // another caller was faster, or it was stopped
		}
		if c.elapsed.CompareAndSwap(last, now) {
			return true
		}
	}
}
