package ratelimit

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// A CoarseClock is the system's clock, read only every so often by a goroutine
// of its own. Reading the system's clock is most of what a decision costs; a
// reading that is kept costs next to nothing.
//
// With a resolution of a millisecond, everything that a limiter does happens up
// to a millisecond late: a window ends, a token comes, a Wait returns. Nothing
// is granted early, or twice. What RetryAfter and the like tell is counted from
// the reading, so it may be a resolution too long.
type CoarseClock struct {
	clock.Clock // timers and the like, which are exact

	base    time.Time
	elapsed atomic.Int64 // since base, in nanoseconds; below 0 once stopped
	stop    chan struct{}
	once    sync.Once
}

// NewCoarseClock returns a clock that is read every resolution. It needs to be
// stopped. It returns an error that matches [ErrInvalid] if the resolution is
// not positive.
func NewCoarseClock(resolution time.Duration) (*CoarseClock, error) {
	if resolution < 1 {
		return nil, invalid("NewCoarseClock's resolution", resolution, "must be at least 1ns, such as 1ms")
	}
	c := &CoarseClock{Clock: clock.New(), base: time.Now(), stop: make(chan struct{})}
	go c.run(resolution)
	return c, nil
}

func (c *CoarseClock) run(resolution time.Duration) {
	ticker := time.NewTicker(resolution)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.elapsed.Store(int64(time.Since(c.base)))
		case <-c.stop:
			c.elapsed.Store(-1)
			return
		}
	}
}

// Stop ends the goroutine. The clock goes on as an exact one. Calling it twice
// is harmless.
func (c *CoarseClock) Stop() { c.once.Do(func() { close(c.stop) }) }

// sinceBase returns the latest reading, as the time since base.
func (c *CoarseClock) sinceBase() time.Duration {
	if d := c.elapsed.Load(); d >= 0 {
		return time.Duration(d)
	}
	return time.Since(c.base)
}

// Now returns the latest reading.
func (c *CoarseClock) Now() time.Time { return c.base.Add(c.sinceBase()) }

// Since returns the time from t to the latest reading.
func (c *CoarseClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until returns the time from the latest reading to t.
func (c *CoarseClock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }
