package logvalve

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestValve(t *testing.T) {
	var v Valve
	begin := time.Time{} // a mock clock may show it
	for i, step := range []struct {
		at   time.Duration
		held int
		ok   bool
	}{
		{0, 0, true},
		{0, 1, false},
		{time.Second - 1, 2, false},
		{time.Second, 2, true},
		{2*time.Second - 1, 1, false},
		{time.Hour, 1, true},
		{2 * time.Hour, 0, true},
		{time.Hour, 0, true}, // the clock was set back
		{time.Hour + 1, 1, false},
		{time.Hour - 1, 2, false}, // read before, by a goroutine that was overtaken
		{time.Hour - time.Second + 1, 3, false},
		{time.Hour + time.Second, 3, true},
	} {
		held, ok := v.Pass(begin.Add(step.at), time.Second)
		assert.Equal(t, step.ok, ok, "step %d", i)
		assert.Equal(t, step.held, held, "step %d", i)
	}
}

// TestValveLosesNothing: of messages at once, though those that read the clock first come last, one
// passes in an interval, and each of the others is counted once.
func TestValveLosesNothing(t *testing.T) {
	const goroutines, each, interval = 8, 10_000, 100_000
	var v Valve
	var clk, passed atomic.Int64
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range each {
				if _, ok := v.Pass(time.Unix(0, -clk.Add(1)), interval); ok {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	assert.Equal(t, int64(1), passed.Load())
	held, ok := v.Pass(time.Unix(1, 0), interval)
	assert.True(t, ok)
	assert.Equal(t, goroutines*each-1, held)
}
