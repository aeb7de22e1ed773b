package storetest

import (
	"runtime"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

// A Clock stands still until it is moved, and may be moved back. Moving it
// takes no time. Its timers never fire. Reading it lets other goroutines run:
// a transition reads the clock when it has the state at hand, and if a store
// lets others change that meanwhile, now is when they do.
type Clock struct {
	clock.Clock // a mock that nobody moves, for what is not defined below

	mu   sync.Mutex // protects what follows
	now  time.Time
	next func() // called by the next reading, before it returns
}

// NewClock returns a clock that shows t.
func NewClock(t time.Time) *Clock {
	return &Clock{Clock: clock.NewMock(), now: t}
}

// Now returns the time that the clock shows.
func (c *Clock) Now() time.Time {
	runtime.Gosched()
	c.mu.Lock()
	now, next := c.now, c.next
	c.next = nil
	c.mu.Unlock()
	if next != nil {
		next()
	}
	return now
}

// interlude sets what the next reading calls, and returns what it would have called.
func (c *Clock) interlude(f func()) (before func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.next = c.next, f
	return before
}

// Since returns the time since t by this clock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until returns the time until t by this clock.
func (c *Clock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// Set makes the clock show t.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t
}

// Advance moves the clock by d.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
