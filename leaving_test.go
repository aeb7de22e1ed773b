package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// tenPerSecond are limits that grant ten events a second in the long run.
var tenPerSecond = map[string]ratelimit.Algorithm{
	"TokenBucket":          ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
	"TokenBucket/strict":   ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1},
	"TokenBucket/interval": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Refill: ratelimit.RefillInterval},
	"LeakyBucket":          ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10)},
	"LeakyBucket/queue":    ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 8},
	"FixedWindow":          ratelimit.FixedWindow{Limit: 10, Window: time.Second},
	"FixedWindow/first":    ratelimit.FixedWindow{Limit: 10, Window: time.Second, Start: ratelimit.StartOnFirstEvent},
	"SlidingWindow":        ratelimit.SlidingWindow{Limit: 10, Window: time.Second},
	"SlidingWindow/5":      ratelimit.SlidingWindow{Limit: 10, Window: time.Second, Segments: 5},
	"SlidingLog":           ratelimit.SlidingLog{Limit: 10, Window: time.Second},
	"RollingWindow":        ratelimit.RollingWindow{Quota: 10, Window: time.Second, Period: 200 * time.Millisecond},
	"All": ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
		ratelimit.SlidingLog{Limit: 1000, Window: time.Minute},
	},
}

// A crowd waits for one key: arrivals a second, of whom some leave after a second.
type crowd struct {
	arrivals int
	leaving  float64
}

// served returns how many are served in the second minute.
func (c crowd) served(t *testing.T, l ratelimit.Limiter) int64 {
	var served atomic.Int64
	rnd := rand.New(rand.NewPCG(1, 2))
	begin := time.Now()
	all, stop := context.WithCancel(t.Context())
	for i := 0; time.Since(begin) < 2*time.Minute; i++ {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(c.arrivals))))
		ctx, leave := context.WithCancel(all)
		if rnd.Float64() < c.leaving {
			time.AfterFunc(time.Second, leave)
		}
		go func() {
			defer leave()
			if l.Wait(ctx, "key") == nil && time.Since(begin) >= time.Minute {
				served.Add(1)
			}
		}()
	}
	stop()
	synctest.Wait()
	return served.Load()
}

// Whoever leaves costs nothing: those who stay are served at the limit, whatever share leaves, and when the crowd
// has gone, the next one is served within a second.
func TestWait_WhoLeavesCostsNothing(t *testing.T) {
	for name, alg := range tenPerSecond {
		for kept, opts := range map[string]func() []ratelimit.Option{"memory": inMemory, "bytes": inBytes} {
			crowds := []crowd{{20, 1}, {20, 0.2}}
			if budget.Nightly() {
				crowds = append(crowds, crowd{12, 1}, crowd{20, 0.1}, crowd{20, 0.5})
			}
			for _, c := range crowds {
				t.Run(fmt.Sprintf("%s/%s/%d a second, %v leave", name, kept, c.arrivals, c.leaving), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						l := ratelimit.Must(ratelimit.New(alg, opts()...))
						all := crowd{c.arrivals, 0}.served(t, ratelimit.Must(ratelimit.New(alg, opts()...)))
						served := c.served(t, l)
						assert.GreaterOrEqual(t, 100*served, 95*all)
						assert.GreaterOrEqual(t, all, int64(300))
						assert.LessOrEqual(t, served, int64(621))
						begin := time.Now()
						err := l.Wait(t.Context(), "key")
						if errors.Is(err, ratelimit.ErrQueueFull) { // somebody was served just now
							time.Sleep(100 * time.Millisecond)
							err = l.Wait(t.Context(), "key")
						}
						require.NoError(t, err)
						assert.LessOrEqual(t, time.Since(begin), time.Second)
					})
				})
			}
		}
	}
}

// Who waited for more than there is, and leaves, leaves it to others.
func TestWait_WhoLeavesTakesNothingAlong(t *testing.T) {
	for kept, opts := range map[string]func() []ratelimit.Option{"memory": inMemory, "bytes": inBytes} {
		t.Run(kept, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 10}, opts()...))
				require.True(t, l.AllowN("key", 5))
				first := waitFor(t, l, "key", 8)
				synctest.Wait()
				second := waitFor(t, l, "key", 1)
				synctest.Wait()
				d, err := l.Take(t.Context(), "key", 1)
				require.NoError(t, err)
				assert.False(t, d.Allowed)
				if kept == "memory" {
					assert.Equal(t, 5*time.Hour, d.RetryAfter, "after the two in line")
				}
				first.cancel()
				synctest.Wait()
				require.True(t, first.done.Load())
				require.ErrorIs(t, first.err, context.Canceled)
				require.True(t, second.done.Load(), "it has moved up")
				require.NoError(t, second.err)
				assert.Equal(t, 4, leftOf(t, l, "key"))
			})
		})
	}
}

// Of nine who wait, eight leave, from anywhere in the line, and one more comes: two are served next.
func TestWait_MovesUp(t *testing.T) {
	for name, alg := range tenPerSecond {
		for kept, opts := range map[string]func() []ratelimit.Option{"memory": inMemory, "bytes": inBytes} {
			for stays := range 9 {
				t.Run(fmt.Sprintf("%s/%s/%d stays", name, kept, stays), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						l := ratelimit.Must(ratelimit.New(ratelimit.All{alg, ratelimit.FixedWindow{Limit: 1e6, Window: time.Hour}}, opts()...))
						for l.Allow("key") {
						}
						var line []*waiterOf
						for range 9 {
							line = append(line, waitFor(t, l, "key", 1))
							synctest.Wait()
						}
						if line[8].done.Load() {
							t.Skip("the queue has no room for nine")
						}
						for i, w := range line {
							if i != stays {
								w.cancel()
							}
						}
						synctest.Wait()
						last := waitFor(t, l, "key", 1)
						time.Sleep(2 * time.Second)
						synctest.Wait()
						require.True(t, line[stays].done.Load())
						require.NoError(t, line[stays].err)
						require.True(t, last.done.Load())
						require.NoError(t, last.err)
						assert.False(t, last.at.Before(line[stays].at))
					})
				})
			}
		}
	}
}

// A jumping clock shows a time ahead of its timers.
type jumping struct {
	*clock.Mock
	ahead atomic.Int64
}

func (c *jumping) Now() time.Time                  { return c.Mock.Now().Add(time.Duration(c.ahead.Load())) }
func (c *jumping) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
func (c *jumping) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// A process that stood still goes on at the limit: no span has more than the bucket grants.
func TestWait_GoesOnAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := &jumping{Mock: clock.NewMock()}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1}, ratelimit.WithClock(clk)))
		require.True(t, l.Allow("key"))
		var served atomic.Int64
		for range 9 {
			go func() {
				if l.Wait(t.Context(), "key") == nil {
					served.Add(1)
				}
			}()
		}
		synctest.Wait()
		clk.ahead.Store(int64(time.Second)) // ten turns
		for i := range 9 {
			clk.Add(100 * time.Millisecond)
			synctest.Wait()
			assert.EqualValues(t, 1+i, served.Load())
		}
	})
}

// Whoever leaves in the instant of a grant, of its own or of another one, loses no event, and none is granted twice:
// of ten turns a second, each is somebody's. TestWait_AtTheInstantOfAGrant tries many schedules: the bubble runs what
// happens at one instant in any order.
func TestWait_AtTheInstantOfAGrant(t *testing.T) {
	for kept, opts := range map[string]func() []ratelimit.Option{"memory": inMemory, "bytes": inBytes} {
		t.Run(kept, func(t *testing.T) {
			rnd := newRand(t)
			for range budget.Histories(100, 10_000) {
				synctest.Test(t, func(t *testing.T) {
					l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1}, opts()...))
					require.True(t, l.Allow("key"))
					var served atomic.Int64
					over, stop := context.WithCancel(t.Context())
					wait := func() {
						ctx, leave := context.WithCancel(over)
						if rnd.IntN(2) == 0 {
							time.AfterFunc(time.Duration(1+rnd.IntN(8))*100*time.Millisecond, leave)
						}
						n := 1
						if rnd.IntN(4) == 0 {
							n = 0 // which is served at once
						}
						go func() {
							defer leave()
							if l.WaitN(ctx, "key", n) == nil && n > 0 {
								served.Add(1)
							}
						}()
					}
					for range 20 {
						for range 1 + rnd.IntN(3) {
							wait()
						}
						time.Sleep(100 * time.Millisecond)
					}
					stop()
					synctest.Wait()
					waited := served.Load()
					assert.LessOrEqual(t, waited, int64(20))
					// What was not granted to those who waited is there still: the bucket holds one event.
					time.Sleep(100 * time.Millisecond)
					assert.True(t, l.Allow("key"))
					assert.False(t, l.Allow("key"))
					assert.GreaterOrEqual(t, waited, int64(15))
				})
			}
		})
	}
}

// A line may be bounded, and then refuses at once.
func TestWithMaxWaiters(t *testing.T) {
	_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithMaxWaiters(0))
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	for kept, opts := range map[string]func() []ratelimit.Option{"memory": inMemory, "bytes": inBytes} {
		t.Run(kept, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, append(opts(), ratelimit.WithMaxWaiters(3))...))
				require.NoError(t, l.Wait(t.Context(), "key"), "it need not wait")
				var line []*waiterOf
				for range 3 {
					line = append(line, waitFor(t, l, "key", 1))
					synctest.Wait()
				}
				err := l.Wait(t.Context(), "key")
				require.ErrorIs(t, err, ratelimit.ErrQueueFull)
				require.ErrorContains(t, err, `3 wait for key "key" already`)
				line[1].cancel()
				synctest.Wait()
				require.NoError(t, l.Wait(t.Context(), "key"), "one has left")
			})
		})
	}
}

// Two limiters of one name in a process have one line.
func TestWait_OneLineForAName(t *testing.T) {
	for kept, store := range stores {
		t.Run(kept, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := store()
				limiter := func() ratelimit.Limiter {
					return ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithStore(s), ratelimit.WithName("test")))
				}
				one, other := limiter(), limiter()
				require.True(t, one.Allow("key"))
				first := waitFor(t, one, "key", 1)
				synctest.Wait()
				second := waitFor(t, other, "key", 1)
				synctest.Wait()
				third := waitFor(t, one, "key", 1)
				synctest.Wait()
				assert.False(t, other.Allow("key"))
				second.cancel()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.NoError(t, first.err)
				require.NoError(t, third.err)
				require.True(t, first.done.Load() && third.done.Load())
				assert.Equal(t, time.Second, third.at.Sub(first.at))
			})
		})
	}
}
