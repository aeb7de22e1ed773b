package kernel

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
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
		assert.LessOrEqual(t, got, MaxInstant, at)
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
	tl := NewTimeline(clk, nil)
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
