package ratelimit

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// A CoarseClock is the system's clock, read only every so often. To read the
// system's clock is most of what a decision costs; a reading that is kept costs
// next to nothing.
//
// A goroutine of its own reads it every resolution. In a process whose processors
// are all busy, that goroutine may be tens of milliseconds late. So a limiter that
// would deny a request, or make it wait, reads the clock again first: each time, or
// while there are more than some 100,000 denials a second, so often that the reading
// is some ten microseconds old. Hence the rate is kept in a busy process, too.
//
// Readings are never ahead of the system's clock, and never go back. Their age is
// at most the resolution and the time for which the goroutine waited for a
// processor. Events granted at two readings may be closer to each other, in real
// time, by the age of the first. So a span of length s sees at most as many events
// as the limit allows in s plus the age of the oldest reading in it: with one event
// every 10 ms and a resolution of 10 ms, two may be granted within a microsecond;
// with a resolution of 1 ms, they are 9 ms apart.
type CoarseClock struct {
	clock.Clock // timers and the like, which are exact

	base       time.Time
	resolution int64         // in nanoseconds
	elapsed    atomic.Int64  // since base, in nanoseconds; below 0 once stopped
	odds       atomic.Uint32 // that a denial reads the clock, of 2³²
	stop       chan struct{}
	once       sync.Once
}

// NewCoarseClock returns a clock that is read every resolution. It needs to be
// stopped. It returns an error that matches [ErrInvalid] if the resolution is
// not positive.
func NewCoarseClock(resolution time.Duration) (*CoarseClock, error) {
	if resolution < 1 {
		return nil, invalid("NewCoarseClock's resolution", resolution, "must be at least 1ns, such as 1ms")
	}
	c := newCoarseClock(resolution)
	go c.run()
	return c, nil
}

func newCoarseClock(resolution time.Duration) *CoarseClock {
	c := &CoarseClock{Clock: clock.New(), base: time.Now(), resolution: int64(resolution), stop: make(chan struct{})}
	c.odds.Store(always)
	return c
}

func (c *CoarseClock) run() {
	ticker := time.NewTicker(time.Duration(c.resolution))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if c.refresh() > fewDenials { // or they would have read it
				c.odds.Store(always)
			}
		case <-c.stop:
			c.elapsed.Store(-1)
			return
		}
	}
}

// Stop ends the goroutine. The clock goes on as an exact one. Calling it twice
// is harmless.
func (c *CoarseClock) Stop() { c.once.Do(func() { close(c.stop) }) }

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

// sinceBase returns the latest reading, as the time since base.
func (c *CoarseClock) sinceBase() time.Duration {
	if d := c.elapsed.Load(); d >= 0 {
		return time.Duration(d)
	}
	return time.Since(c.base)
}

// renew is called before a request is denied. It reports whether the reading is
// another one now, with which the request should be decided on again.
func (c *CoarseClock) renew() bool {
	odds := c.odds.Load()
	if odds != always && rand.Uint32() > odds {
		return false
	}
	age := c.refresh()
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

// refresh reads the clock, and returns how old the latest reading was.
func (c *CoarseClock) refresh() (age int64) {
	for {
		last := c.elapsed.Load()
		now := int64(time.Since(c.base))
		if now <= last || last < 0 {
			return 0 // another caller was faster, or it was stopped
		}
		if c.elapsed.CompareAndSwap(last, now) {
			return now - last
		}
	}
}

// Now returns the latest reading.
func (c *CoarseClock) Now() time.Time { return c.base.Add(c.sinceBase()) }

// Since returns the time from t to the latest reading.
func (c *CoarseClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until returns the time from the latest reading to t.
func (c *CoarseClock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }
