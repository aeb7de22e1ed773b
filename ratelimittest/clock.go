package ratelimittest

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

// A Clock is a clock for [ratelimit.WithClock]. It moves only when a test calls Set or Advance, and
// may be moved back. Unlike a [clock.Mock], it moves at once, without firing timers on the way. Its
// timers never fire: to test Wait, use a testing/synctest bubble or a Mock. docs/testing.md has
// tests that use a Clock. Any number of goroutines may call its methods at once.
type Clock struct {
	clock.Clock // a mock that never moves, for the methods not defined below

	mu  sync.Mutex // protects now
	now time.Time
}

// NewClock returns a clock whose time is t.
func NewClock(t time.Time) *Clock { return &Clock{Clock: clock.NewMock(), now: t} }

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Since returns the time since t by this clock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until returns the time until t by this clock.
func (c *Clock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// Set sets the time of the clock to t.
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
