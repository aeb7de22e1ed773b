// Package stepclock has a clock for tests that moves only when the test sets it.
package stepclock

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

// A Clock shows the time that Set and Advance have set. Its timers never fire.
type Clock struct {
	clock.Clock // a mock that never moves, for the methods not defined below

	mu  sync.Mutex // protects now
	now time.Time
}

// New returns a clock that shows midnight of a day.
func New() *Clock {
	return &Clock{Clock: clock.NewMock(), now: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
}

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Since returns the time since t by this clock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Set sets the time of the clock.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t
}

// Advance moves the clock by d, which may be negative.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
