package ratelimit

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// NewCoarseClock returns the system's clock, read only once every resolution, for [WithClock].
// Reading the system's clock is more than half of the cost of a decision on a hot key; using a
// stored reading costs almost nothing. If the resolution is not positive, the error matches
// [ErrInvalid].
//
// A goroutine reads the clock, until stop is called, which may be called twice. Afterwards, clk
// reads the system's clock each time. If all processors are busy, the goroutine may be tens of
// milliseconds late. So before a limiter denies a request or makes it wait, it reads the clock
// again, and the rate is kept even in a busy process.
//
// Readings never go back, and are at most as old as the resolution and the delay of the goroutine.
// So a span of length s sees at most as many events as the limit allows in s plus the age of the
// oldest reading in it: with one event every 10 ms and a resolution of 1 ms, and a goroutine that
// is not late, two events are at least 9 ms apart.
func NewCoarseClock(resolution time.Duration) (clk clock.Clock, stop func(), err error) {
	if resolution < 1 {
		return nil, nil, param.Invalid(
			"NewCoarseClock's resolution",
			resolution,
			"must be at least 1ns, such as 1ms",
		)
	}
	c := newCoarseClock()
	stopped := make(chan struct{})
	go c.run(resolution, stopped)
	return c, sync.OnceFunc(func() { close(stopped) }), nil
}

// A coarseClock is what NewCoarseClock returns.
type coarseClock struct {
	clock.Clock // for timers, which are exact

	readings timeline.Coarse
	timeline *timeline.Timeline // of all that use the clock
}

// newCoarseClock returns one whose readings are not renewed yet.
func newCoarseClock() *coarseClock {
	c := &coarseClock{Clock: clock.New()}
	c.readings.Init()
	c.timeline = timeline.New(c, &c.readings)
	return c
}

func (c *coarseClock) run(resolution time.Duration, stopped <-chan struct{}) {
	ticker := time.NewTicker(resolution)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.readings.Refresh()
		case <-stopped:
			c.readings.Stop()
			return
		}
	}
}

func (c *coarseClock) Now() time.Time { return c.timeline.Time() }

func (c *coarseClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *coarseClock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// newTimeline returns the timeline of clk, or of the system's clock if clk is nil.
func newTimeline(clk clock.Clock) *timeline.Timeline {
	if c, ok := clk.(*coarseClock); ok {
		return c.timeline
	}
	return timeline.New(clk, nil)
}
