package storetest

import (
	"runtime"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

// A Clock is a [ratelimittest.Clock] for tests of stores. Its method Now lets other goroutines run
// before and after it reads the time. A store reads the clock between reading the state and
// replacing it. If the store is not atomic, other calls can change the state in between, and the
// tests notice.
type Clock struct {
	*ratelimittest.Clock

	mu   sync.Mutex // protects next
	next func()     // called by the next Now, before it returns
}

// NewClock returns a clock whose time is t.
func NewClock(t time.Time) *Clock { return &Clock{Clock: ratelimittest.NewClock(t)} }

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	runtime.Gosched()
	now := c.Clock.Now()
	if next := c.interlude(nil); next != nil {
		next()
	}
	runtime.Gosched()
	return now
}

// Since returns the time since t by this clock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Until returns the time until t by this clock.
func (c *Clock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// interlude sets the function that the next Now calls. It returns the function that was set before,
// or nil if none was set or Now has called it.
func (c *Clock) interlude(f func()) (before func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.next = c.next, f
	return before
}
