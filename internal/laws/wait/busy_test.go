package wait_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
)

// A tardyClock is one whose timers fire late, as those of a process whose processors are busy.
type tardyClock struct {
	clock.Clock
	late atomic.Int64
}

func (c *tardyClock) Timer(d time.Duration) *clock.Timer {
	return c.Clock.Timer(d + time.Duration(c.late.Load()))
}

// A line keeps its rate while timers fire late: what came meanwhile is served together, once they have fired. When they
// fire in time again, this is forgotten within a second: then, what a pause has missed is not made up for.
func TestWait_KeepsItsRateWhileTimersAreLate(t *testing.T) {
	const perSecond = 100
	for name, alg := range map[string]ratelimit.Algorithm{
		"LeakyBucket": ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(perSecond), Capacity: 100},
		"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(perSecond), Burst: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inEach(t, func(t *testing.T, in place) {
				clk := &tardyClock{Clock: clock.New()}
				l := in.limiter(alg, ratelimit.WithClock(clk))
				ctx, stop := context.WithCancel(t.Context())
				var total atomic.Int64
				for range 64 {
					go func() {
						for l.Wait(ctx, "key") == nil {
							total.Add(1)
						}
					}()
				}
				served := func(d time.Duration) int64 {
					before := total.Load()
					time.Sleep(d)
					synctest.Wait()
					return total.Load() - before
				}
				served(time.Second)
				clk.late.Store(int64(35 * time.Millisecond))
				served(time.Second) // in which this is learned
				// How many turns have come when the second ends, and are not taken yet, depends on when the timers fire.
				assert.InDelta(t, 2*perSecond, served(2*time.Second), 4)
				clk.late.Store(0)
				served(2 * time.Second)
				if in.name == "memory" {
					clk.late.Store(int64(time.Second)) // once, for whoever sleeps next
					served(100 * time.Millisecond)
					clk.late.Store(0)
					var most int64
					for range 200 {
						most = max(most, served(10*time.Millisecond))
					}
					assert.LessOrEqual(t, most, int64(2), "the one that was late, and the next one")
				}
				stop()
				synctest.Wait()
			})
		})
	}
}
