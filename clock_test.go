package ratelimit

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCoarseClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk, err := NewCoarseClock(10 * time.Millisecond)
		require.NoError(t, err)
		begin := time.Now()
		time.Sleep(19 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, 10*time.Millisecond, clk.Now().Sub(begin), "the reading of 9 ms ago")
		assert.Equal(t, 10*time.Millisecond, clk.Since(begin))
		assert.Equal(t, 20*time.Millisecond, clk.Until(begin.Add(30*time.Millisecond)))

		l := Must(New(TokenBucket{Rate: PerSecond(1)}, WithClock(clk)))
		require.True(t, l.Allow("key"))
		time.Sleep(time.Second)
		synctest.Wait()
		// The token of the reading at 10 ms is back at 1,010 ms; it is 1,019.
		require.True(t, l.Allow("key"))
		require.False(t, l.Allow("key"))
		assert.Equal(t, 1019*time.Millisecond, clk.Since(begin), "a denial reads the clock")
		require.NoError(t, l.Wait(t.Context(), "key"))
		assert.InDelta(t, 2010*time.Millisecond, time.Since(begin), float64(10*time.Millisecond))

		// Once stopped, it is exact, and has left nothing behind.
		time.Sleep(5 * time.Millisecond)
		clk.Stop()
		clk.Stop()
		synctest.Wait()
		assert.Equal(t, time.Since(begin), clk.Since(begin))
		time.Sleep(time.Millisecond)
		assert.Equal(t, time.Since(begin), clk.Since(begin))
		require.False(t, l.AllowN("key", 1) && l.Allow("key"))
	})
	_, err := NewCoarseClock(0)
	assert.ErrorIs(t, err, ErrInvalid)
}

// TestCoarseClockWhoseGoroutineIsLate has a clock whose goroutine never gets a
// processor: the rate is kept, by all that a limiter does, and waits are exact.
func TestCoarseClockWhoseGoroutineIsLate(t *testing.T) {
	for name, alg := range map[string]Algorithm{
		"one word": TokenBucket{Rate: PerSecond(1000), Burst: 10},
		"wide":     All{TokenBucket{Rate: PerSecond(1000), Burst: 10}, TokenBucket{Rate: PerSecond(1000), Burst: 11}},
		"log":      SlidingLog{Limit: 10, Window: 10 * time.Millisecond},
		"denied":   SlidingLog{Limit: 10, Window: 10 * time.Millisecond, CountDenied: true},
	} {
		asks := map[string]func(l Limiter) bool{
			"Allow": func(l Limiter) bool { return l.Allow("key") },
			"Take":  func(l Limiter) bool { d, err := l.Take(t.Context(), "key", 1); return d.Allowed && err == nil },
			"Peek": func(l Limiter) bool {
				d, err := l.Peek(t.Context(), "key")
				return d.Allowed && err == nil && l.Allow("key")
			},
			"TakeAll": func(l Limiter) bool {
				d, err := TakeAll(t.Context(), 1, For(l, "key"), For(l, "second key"))
				return d.Allowed && err == nil
			},
		}
		step := 500 * time.Microsecond
		if name == "denied" {
			step = 1001 * time.Microsecond // or it would never let anyone in again
		}
		for method, ask := range asks {
			synctest.Test(t, func(t *testing.T) {
				clk := newCoarseClock(10 * time.Millisecond)
				l := Must(New(alg, WithClock(clk)))
				granted := 0
				for begin := time.Now(); time.Since(begin) < time.Second; time.Sleep(step) {
					if ask(l) {
						granted++
					}
				}
				assert.GreaterOrEqual(t, granted, 950, "%s, %s", name, method)
				assert.LessOrEqual(t, granted, 1011, "%s, %s", name, method)
			})
		}
		synctest.Test(t, func(t *testing.T) {
			l := Must(New(alg, WithClock(newCoarseClock(10*time.Millisecond))))
			time.Sleep(time.Second)
			require.True(t, l.AllowN("key", 10))
			time.Sleep(4 * time.Millisecond)
			begin := time.Now()
			r, err := l.Reserve(t.Context(), "key", 5)
			require.NoError(t, err)
			assert.LessOrEqual(t, r.Delay(), 10*time.Millisecond, name)
			require.NoError(t, l.Wait(t.Context(), "key"))
			assert.LessOrEqual(t, time.Since(begin), 20*time.Millisecond, name)

			require.True(t, l.AllowN("other", 10))
			time.Sleep(9 * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			require.NoError(t, l.WaitN(ctx, "other", 10), "%s: 1 ms is left", name)
		})
	}
}

// TestCoarseClockGrantsAtMost holds the bound: any span sees what the limit allows in
// that span and one resolution; and it is reached.
func TestCoarseClockGrantsAtMost(t *testing.T) {
	const each, resolution = 10 * time.Millisecond, 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		clk, err := NewCoarseClock(resolution)
		require.NoError(t, err)
		defer clk.Stop()
		l := Must(New(TokenBucket{Rate: Every(each)}, WithClock(clk)))
		rng := rand.New(rand.NewPCG(1, 2))
		var granted []time.Time
		closest := time.Hour
		for range 5000 {
			time.Sleep(time.Duration(rng.Int64N(2*int64(each))) / time.Duration(1+50*rng.IntN(2)))
			synctest.Wait()
			if !l.Allow("key") {
				continue
			}
			now := time.Now()
			for i := len(granted) - 1; i >= max(0, len(granted)-10); i-- {
				span := now.Sub(granted[i])
				events := len(granted) - i + 1
				require.LessOrEqual(t, events, 1+int((span+resolution)/each), "in %v", span)
				closest = min(closest, span)
			}
			granted = append(granted, now)
		}
		assert.Less(t, closest, each/20, "events can be that close")
	})
}
