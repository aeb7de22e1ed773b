package main

import (
	"context"
	"time"
)

// A fastClock is the clock of the log. It starts at a given time and runs speedup times
// faster than real time.
type fastClock struct {
	from    time.Time // the log's time when the clock was made
	made    time.Time // the real time then
	speedup float64
}

func newFastClock(from time.Time, speedup float64) *fastClock {
	return &fastClock{from: from, made: time.Now(), speedup: speedup}
}

// now returns the log's time.
func (c *fastClock) now() time.Time {
	return c.from.Add(time.Duration(float64(time.Since(c.made)) * c.speedup))
}

// sleep pauses for d of the log's time. It returns false if ctx ended first.
func (c *fastClock) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(time.Duration(float64(d) / c.speedup))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleepUntil pauses until the log's time is t.
func (c *fastClock) sleepUntil(ctx context.Context, t time.Time) bool {
	return c.sleep(ctx, t.Sub(c.now()))
}
