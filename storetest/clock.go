package storetest

import (
	"runtime"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

// A Clock is a mock clock that changes only by Set and Advance, and may be moved back.
// Its timers never fire. Now yields to other goroutines, before and after it reads the time: a
// transition reads the clock after it has read the state, so if a store is not atomic, this is
// the moment at which other calls can change the state, or find a later time.
type Clock struct {
	clock.Clock // a mock that never moves, for the methods not defined below

	mu   sync.Mutex // protects the fields below
	now  time.Time
	next func() // called by the next Now, before it returns
}

// NewClock returns a clock whose time is t.
func NewClock(t time.Time) *Clock {
	return &Clock{Clock: clock.NewMock(), now: t}
}

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	runtime.Gosched()
	c.mu.Lock()
	now, next := c.now, c.next
	c.next = nil
	c.mu.Unlock()
	if next != nil {
		next()
	}
	runtime.Gosched()
	return now
}

// interlude sets the function that the next Now calls, and returns the previous one,
// which is nil if it was called or not set.
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
