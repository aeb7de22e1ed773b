package ratelimit

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
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

	readings   kernel.Coarse
	resolution time.Duration
	stop       chan struct{}
	once       sync.Once
}

// NewCoarseClock returns a clock that is read every resolution. It needs to be
// stopped. It returns an error that matches [ErrInvalid] if the resolution is
// not positive.
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
	return c
}

func (c *CoarseClock) run() {
	ticker := time.NewTicker(c.resolution)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.readings.Tick()
		case <-c.stop:
			c.readings.Stop()
			return
		}
	}
}

// Stop ends the goroutine. The clock goes on as an exact one. Calling it twice
// is harmless.
func (c *CoarseClock) Stop() { c.once.Do(func() { close(c.stop) }) }

// Now returns the latest reading.
func (c *CoarseClock) Now() time.Time { return c.readings.Base.Add(c.readings.SinceBase()) }

// Since returns the time from t to the latest reading.
func (c *CoarseClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until returns the time from the latest reading to t.
func (c *CoarseClock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// newTimeline returns the timeline of clk, or of the system's clock if clk is nil.
func newTimeline(clk clock.Clock) *kernel.Timeline {
	if c, ok := clk.(*CoarseClock); ok {
		return kernel.NewTimeline(clk, &c.readings)
	}
	return kernel.NewTimeline(clk, nil)
}
