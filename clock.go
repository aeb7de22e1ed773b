package ratelimit

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A CoarseClock is the system's clock, read only once every resolution. Reading the
// system's clock is more than half of the cost of a decision on a hot key; using a stored
// reading costs almost nothing.
//
// A goroutine reads the clock every resolution. If all processors are busy, that
// goroutine may be tens of milliseconds late. So before a limiter denies a request or
// makes it wait, it reads the clock again. So the rate is kept even in a busy process.
//
// Readings are never ahead of the system's clock, unless its wall clock was set back, and never
// go back. Their age is at
// most the resolution, plus the time for which the goroutine waited for a processor.
// The real time between two events may be shorter than the time between their
// readings, by the age of the first reading. So a span of length s sees at most as
// many events as the limit allows in s plus the age of the oldest reading in it: with
// one event every 10 ms and a resolution of 10 ms, two may be granted within a
// microsecond; with a resolution of 1 ms, and a goroutine that is not late, they are
// at least 9 ms apart.
type CoarseClock struct {
	clock.Clock // for timers, which are exact

	readings   kernel.Coarse
	timeline   *kernel.Timeline // of all that use the clock
	resolution time.Duration
	stop       chan struct{}
	once       sync.Once
}

// NewCoarseClock returns a clock that is read every resolution. Call Stop when it is
// no longer needed. If the resolution is not positive, NewCoarseClock returns an
// error that matches [ErrInvalid].
func NewCoarseClock(resolution time.Duration) (*CoarseClock, error) {
	if resolution < 1 {
		return nil, param.Invalid("NewCoarseClock's resolution", resolution, "must be at least 1ns, such as 1ms")
	}
	c := newCoarseClock(resolution)
	go c.run()
	return c, nil
}

func newCoarseClock(resolution time.Duration) *CoarseClock {
	c := &CoarseClock{Clock: clock.New(), resolution: resolution, stop: make(chan struct{})}
	c.readings.Init()
	c.timeline = kernel.NewTimeline(c, &c.readings)
	return c
}

func (c *CoarseClock) run() {
	ticker := time.NewTicker(c.resolution)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.readings.Refresh()
		case <-c.stop:
			c.readings.Stop()
			return
		}
	}
}

// Stop ends the goroutine. The clock then reads the system's clock each time. Calling
// Stop twice is harmless.
func (c *CoarseClock) Stop() { c.once.Do(func() { close(c.stop) }) }

// Now returns the latest reading.
func (c *CoarseClock) Now() time.Time { return c.timeline.Time() }

// Since returns the time from t to the latest reading.
func (c *CoarseClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until returns the time from the latest reading to t.
func (c *CoarseClock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// newTimeline returns the timeline of clk, or of the system's clock if clk is nil.
func newTimeline(clk clock.Clock) *kernel.Timeline {
	if c, ok := clk.(*CoarseClock); ok {
		return c.timeline
	}
	return kernel.NewTimeline(clk, nil)
}
