package timeline

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

func TestInstantOf(t *testing.T) {
	for _, at := range []time.Time{
		{}, // year 1
		time.Date(1969, 12, 31, 23, 59, 59, 5, time.UTC),
		time.Date(2100, 1, 1, 0, 0, 0, 7, time.UTC),
		time.Date(3000, 6, 1, 12, 0, 0, 0, time.UTC),
		time.Date(-4000, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		got := InstantOf(at)
		assert.LessOrEqual(t, got, kernel.MaxInstant, at)
		shown := time.Unix(0, int64(got)).UTC()
		assert.Equal(t, at.Weekday(), shown.Weekday(), at)
		assert.Equal(t, at.Format("15:04:05.000000000"), shown.Format("15:04:05.000000000"), at)
	}
	for _, at := range []time.Time{time.Unix(0, 0), time.Unix(0, 1), time.Date(2099, 12, 31, 23, 59, 59, 999_999_999, time.UTC)} {
		assert.EqualValues(t, at.UnixNano(), InstantOf(at), at)
	}
}

// An overtakenClock moves on, and lets another caller read it, while it is read.
type overtakenClock struct {
	*clock.Mock
	during func()
}

func (c *overtakenClock) Since(t time.Time) time.Duration {
	d := c.Mock.Since(t)
	if during := c.during; during != nil {
		c.during = nil
		during()
	}
	return d
}

// TestOvertakenReading: a clock that another caller has read since has not stepped back.
func TestOvertakenReading(t *testing.T) {
	clk := &overtakenClock{Mock: clock.NewMock()}
	clk.Add(time.Hour)
	tl := New(clk, nil)
	clk.Add(time.Second)
	clk.during = func() {
		clk.Add(500 * time.Millisecond)
		now, lag := tl.Now()
		assert.EqualValues(t, time.Hour+1500*time.Millisecond, now)
		assert.Zero(t, lag)
	}
	now, lag := tl.Now()
	assert.EqualValues(t, time.Hour+time.Second, now)
	assert.Zero(t, lag)

	clk.Set(clk.Now().Add(-time.Minute)) // which it has now
	now, lag = tl.Now()
	assert.EqualValues(t, time.Hour+1500*time.Millisecond, now)
	assert.EqualValues(t, time.Minute, lag)
}

// TestFollowsTheWallClock: a timeline follows the wall clock if that is far ahead, and else stays.
func TestFollowsTheWallClock(t *testing.T) {
	for name, open := range map[string]func(c *Coarse) *Timeline{
		"system": func(*Coarse) *Timeline { return New(nil, nil) },
		"coarse": func(c *Coarse) *Timeline { return New(clock.NewMock(), c) },
	} {
		for _, tt := range []struct {
			ahead   time.Duration // of the wall clock
			follows bool
		}{
			{-time.Hour, false}, {0, false}, {time.Second, false}, {time.Second + 1, true}, {time.Hour, true}, {30 * 365 * 24 * time.Hour, true},
		} {
			synctest.Test(t, func(t *testing.T) {
				var c Coarse
				c.Init()
				tl := open(&c)
				read := func() kernel.Instant {
					c.Refresh()
					now, lag := tl.Now()
					assert.Zero(t, lag)
					return now
				}
				time.Sleep(time.Minute)
				require.Equal(t, InstantOf(time.Now()), read())

				from := tl.anchor.Load()
				from.origin -= kernel.Instant(tt.ahead) // as if the wall clock had been set since
				time.Sleep(compareEvery - 1)
				assert.Equal(t, InstantOf(time.Now())-kernel.Instant(tt.ahead), read(), "%s, %v: it was compared just before", name, tt.ahead)
				time.Sleep(time.Nanosecond)
				for range 3 {
					now := read()
					want := InstantOf(time.Now())
					if !tt.follows {
						want -= kernel.Instant(tt.ahead)
					}
					assert.Equal(t, want, now, "%s, %v", name, tt.ahead)
					assert.True(t, tl.Wall(now, 0).Equal(time.Now()), "%s, %v", name, tt.ahead)
					if name == "coarse" {
						assert.True(t, tl.Time().Equal(time.Now()), "%v", tt.ahead)
					}
					time.Sleep(time.Hour)
				}
			})
		}
	}
}

// A twoSidedClock has a wall clock and a monotonic one.
type twoSidedClock struct {
	clock.Clock
	mu              sync.Mutex // protects what follows
	wall, monotonic time.Duration
}

func (c *twoSidedClock) pass(wall, monotonic time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.monotonic = c.wall+wall, c.monotonic+monotonic
}

func (c *twoSidedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(0, int64(c.wall))
}

// Since returns the time since the first reading, which is the only one that it is called with.
func (c *twoSidedClock) Since(time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.monotonic
}

// TestAllFollowTheWallClock: whoever reads a timeline sees at least what others have seen before, while
// the wall clock is set.
func TestAllFollowTheWallClock(t *testing.T) {
	clk := new(twoSidedClock)
	var latest atomic.Uint64
	tl := New(clk, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 20_000 {
				before := latest.Load()
				now, lag := tl.Now()
				if now < before || lag > 0 {
					t.Errorf("%d, %d after %d", now, lag, before)
					return
				}
				for before < now && !latest.CompareAndSwap(before, now) {
					before = latest.Load()
				}
				clk.pass(time.Millisecond, time.Millisecond)
				if i%100 == 0 {
					clk.pass(time.Hour, 0)
				}
			}
		})
	}
	wg.Wait()
	assert.Greater(t, latest.Load(), uint64(700*time.Hour))
}

// TestInOfAClockThatIsBehind: the time that the clock needs to catch up passes first.
func TestInOfAClockThatIsBehind(t *testing.T) {
	clk := clock.NewMock()
	clk.Add(time.Hour)
	tl := New(clk, nil)
	tl.Now()
	clk.Set(clk.Now().Add(-time.Minute))
	for d, want := range map[time.Duration]time.Duration{
		0: time.Hour, time.Second: time.Hour, time.Minute: time.Hour, time.Minute + 1: time.Hour + 1, time.Hour: 2*time.Hour - time.Minute,
	} {
		assert.EqualValues(t, want, tl.In(d), "%v", d)
	}
}
