package wait_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// places are the kinds of stores that the tests of a line use, with the options of a limiter.
var places = map[string]func() []ratelimit.Option{"memory": fakes.InMemory, "bytes": fakes.InBytes}

// A place is a kind of store.
type place struct {
	name string
	opts func() []ratelimit.Option
}

func (in place) limiter(alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	return ratelimit.Must(ratelimit.New(alg, append(in.opts(), opts...)...))
}

// inEach runs f for each place, in a bubble.
func inEach(t *testing.T, f func(t *testing.T, in place)) {
	for name, opts := range places {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, place{name, opts}) })
		})
	}
}

// tenPerSecond are limits that grant ten events a second in the long run.
var tenPerSecond = map[string]ratelimit.Algorithm{
	"TokenBucket":          ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
	"TokenBucket/strict":   ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1},
	"TokenBucket/interval": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Refill: ratelimit.RefillInterval},
	"LeakyBucket":          ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10)},
	"LeakyBucket/queue":    ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 10},
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

// A crowd is a flow of callers that wait for one key: how many arrive each second, and what share
// of them leaves after a second.
type crowd struct {
	arrivals int
	leaving  float64
}

// served returns how many callers are served in the second minute.
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

// TestWait_WhoLeavesCostsNothing: callers that leave a line cost the others nothing. Whatever share
// of a crowd leaves, the callers that stay are served at the limit's rate. Once the crowd has gone,
// the next caller is served within a second.
func TestWait_WhoLeavesCostsNothing(t *testing.T) {
	crowds := []crowd{{20, 1}, {20, 0.2}}
	if budget.Nightly() {
		crowds = append(crowds, crowd{12, 1}, crowd{20, 0.1}, crowd{20, 0.5})
	}
	for name, alg := range tenPerSecond {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kept, opts := range places {
				everybody := map[int]int64{} // by arrivals: how many callers are served if none leaves
				for _, c := range crowds {
					synctest.Test(t, func(t *testing.T) {
						in := place{kept, opts}
						if everybody[c.arrivals] == 0 {
							everybody[c.arrivals] = crowd{c.arrivals, 0}.served(t, in.limiter(alg))
						}
						l := in.limiter(alg)
						served := c.served(t, l)
						assert.GreaterOrEqual(t, 100*served, 95*everybody[c.arrivals], "%s, %+v", kept, c)
						least := int64(540) // a weighted window grants up to a tenth less than its rate
						if name == "LeakyBucket" && c.arrivals == 12 {
							least = 360 // it has no queue, and serves every second caller
						}
						assert.GreaterOrEqual(t, everybody[c.arrivals], least, "%s, %+v", kept, c)
						assert.LessOrEqual(t, served, int64(621), "%s, %+v", kept, c)
						begin := time.Now()
						err := l.Wait(t.Context(), "key")
						if errors.Is(err, ratelimit.ErrQueueFull) { // a caller was served just now
							time.Sleep(100 * time.Millisecond)
							err = l.Wait(t.Context(), "key")
						}
						require.NoError(t, err)
						assert.LessOrEqual(t, time.Since(begin), time.Second, "%s, %+v", kept, c)
					})
				}
			}
		})
	}
}

// TestWait_WhoLeavesTakesNothingAlong: a waiter needs more events than remain, and leaves. The next
// waiter then gets the events that remain.
func TestWait_WhoLeavesTakesNothingAlong(t *testing.T) {
	inEach(t, func(t *testing.T, in place) {
		l := in.limiter(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 10})
		require.True(t, l.AllowN("key", 5))
		first := fakes.WaitFor(t, l, "key", 8)
		synctest.Wait()
		second := fakes.WaitFor(t, l, "key", 1)
		synctest.Wait()
		d, err := l.Take(t.Context(), "key", 1)
		require.NoError(t, err)
		assert.False(t, d.Allowed)
		if in.name == "memory" {
			assert.Equal(t, 5*time.Hour, d.RetryAfter, "after the two in line")
		}
		first.Cancel()
		synctest.Wait()
		require.True(t, first.Done.Load())
		require.ErrorIs(t, first.Err, context.Canceled)
		require.True(t, second.Done.Load(), "it has moved up")
		require.NoError(t, second.Err)
		assert.Equal(t, 4, fakes.Remaining(t, l))
	})
}

// TestWait_MovesUp: nine callers wait, eight of them leave, and one more comes. Wherever in the
// line the remaining waiter stood, it is served next, and then the new caller.
func TestWait_MovesUp(t *testing.T) {
	for name, alg := range tenPerSecond {
		if name == "LeakyBucket" { // it has no queue
			continue
		}
		for stays := range 9 {
			t.Run(fmt.Sprintf("%s/%d stays", name, stays), func(t *testing.T) {
				inEach(t, func(t *testing.T, in place) {
					l := in.limiter(ratelimit.All{alg, ratelimit.FixedWindow{Limit: 1e6, Window: time.Hour}})
					for atOnce := true; atOnce; { // the queue of a LeakyBucket stays empty
						require.True(t, l.Allow("key"))
						d, err := l.Peek(t.Context(), "key")
						require.NoError(t, err)
						atOnce = d.Allowed && d.Delay == 0
					}
					var line []*fakes.Waiter
					for range 9 {
						line = append(line, fakes.WaitFor(t, l, "key", 1))
						synctest.Wait()
					}
					require.False(t, line[8].Done.Load())
					for i, w := range line {
						if i != stays {
							w.Cancel()
						}
					}
					synctest.Wait()
					last := fakes.WaitFor(t, l, "key", 1)
					time.Sleep(2 * time.Second)
					synctest.Wait()
					require.True(t, line[stays].Done.Load())
					require.NoError(t, line[stays].Err)
					require.True(t, last.Done.Load())
					require.NoError(t, last.Err)
					assert.False(t, last.Ended.Before(line[stays].Ended))
				})
			})
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

// TestWait_GoesOnAtTheLimit: after a pause, a process serves its waiters at the limit's rate. No
// span of time has more events than the bucket grants.
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

// TestWait_AtTheInstantOfAGrant: a caller may leave at the instant at which it, or another caller,
// is granted its events. Then no event is lost, and none is granted twice: each of ten turns a
// second goes to one caller. The test tries many schedules, because the bubble runs goroutines that
// wake at one instant in any order.
func TestWait_AtTheInstantOfAGrant(t *testing.T) {
	for kept, opts := range places {
		t.Run(kept, func(t *testing.T) {
			rnd, schedules, all := fakes.Rand(t), int64(budget.Histories(100, 10_000)), int64(0)
			for range schedules {
				synctest.Test(t, func(t *testing.T) {
					l := place{kept, opts}.limiter(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1})
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
							n = 0 // a wait for no events is served at once
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
					// The bucket holds one event. So an event that no waiter was granted is still
					// there.
					time.Sleep(100 * time.Millisecond)
					assert.True(t, l.Allow("key"))
					assert.False(t, l.Allow("key"))
					all += waited
				})
			}
			assert.GreaterOrEqual(t, all, 15*schedules, "on average, most turns go to a caller; in a single schedule, many may leave")
		})
	}
}

// A line with WithMaxWaiters refuses a caller for which it has no room at once.
func TestWithMaxWaiters(t *testing.T) {
	_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithMaxWaiters(0))
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	inEach(t, func(t *testing.T, in place) {
		l := in.limiter(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithMaxWaiters(3))
		require.NoError(t, l.Wait(t.Context(), "key"), "it need not wait")
		var line []*fakes.Waiter
		for range 3 {
			line = append(line, fakes.WaitFor(t, l, "key", 1))
			synctest.Wait()
		}
		err := l.Wait(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrQueueFull)
		require.ErrorContains(t, err, `3 callers wait for key ""… (3 bytes) already`)
		line[1].Cancel()
		synctest.Wait()
		require.NoError(t, l.Wait(t.Context(), "key"), "one has left")
	})
}

// Two limiters of one name in a process have one line.
func TestWait_OneLineForAName(t *testing.T) {
	for kept, store := range fakes.Stores {
		t.Run(kept, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := store()
				limiter := func() ratelimit.Limiter {
					return ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)},
						ratelimit.WithStore(s), ratelimit.WithName("test")))
				}
				one, other := limiter(), limiter()
				require.True(t, one.Allow("key"))
				first := fakes.WaitFor(t, one, "key", 1)
				synctest.Wait()
				second := fakes.WaitFor(t, other, "key", 1)
				synctest.Wait()
				third := fakes.WaitFor(t, one, "key", 1)
				synctest.Wait()
				assert.False(t, other.Allow("key"))
				second.Cancel()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.NoError(t, first.Err)
				require.NoError(t, third.Err)
				require.True(t, first.Done.Load() && third.Done.Load())
				assert.Equal(t, time.Second, third.Ended.Sub(first.Ended))
			})
		})
	}
}

// TestWait_RoomBeforeItStandsInLine: events are given back after the store has denied a Wait, and
// before the Wait stands in line. The Wait finds these events.
func TestWait_RoomBeforeItStandsInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakes.Hooked{Store: fakes.NewMapDB().Store()}
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour}, ratelimit.WithStore(s), ratelimit.WithName("test")))
		h := fakes.Held(t, l, "key", 1)
		s.After = func(req step.Request, res step.Answer) {
			if req.Op == step.OpReserve && !res.Allowed {
				h.Cancel()
			}
		}
		w := fakes.WaitFor(t, l, "key", 1)
		synctest.Wait()
		assert.True(t, w.Done.Load())
	})
}

// stand is fakes.WaitFor without a hold.
func stand(t *testing.T, l ratelimit.Limiter, n int) *fakes.Waiter {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w := &fakes.Waiter{N: n, Cancel: cancel}
	go func() {
		w.Err = l.WaitN(ctx, "key", n)
		w.Ended = time.Now()
		w.Done.Store(true)
	}()
	return w
}

// TestWait_RefusesANearDeadline: a Wait whose deadline is before the turns of the waiters in front
// is refused at once, with a store in memory and with other stores.
func TestWait_RefusesANearDeadline(t *testing.T) {
	inEach(t, func(t *testing.T, in place) {
		l := in.limiter(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
		require.True(t, l.Allow("key"))
		first := stand(t, l, 1)
		synctest.Wait()
		wait := func(d time.Duration) (took time.Duration, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			begin := time.Now()
			err = l.Wait(ctx, "key")
			return time.Since(begin), err
		}
		took, err := wait(59 * time.Minute)
		turn, ok := errors.AsType[*ratelimit.TurnError](err)
		require.True(t, ok, "%v", err)
		assert.Zero(t, took)
		assert.Equal(t, 59*time.Minute, turn.Left)
		assert.GreaterOrEqual(t, turn.Wait, time.Hour)
		first.Cancel()
		synctest.Wait()
		took, err = wait(61 * time.Minute)
		require.NoError(t, err, "the first one has left")
		assert.Equal(t, time.Hour, took)
	})
}

// TestWait_GivesTurnsBackAtOnce: a waiter leaves the middle of a line, and the waiters behind do
// not fit the turns. Then these turns are given back at once.
func TestWait_GivesTurnsBackAtOnce(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10_000), Burst: 2},
		"window": ratelimit.SlidingWindow{Limit: 2, Window: 100 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cancels, reserved atomic.Int64
				s := &fakes.Hooked{Store: fakes.NewMapDB().Store(), After: func(req step.Request, _ step.Answer) {
					switch req.Op {
					case step.OpSettle:
						cancels.Add(1)
					case step.OpReserve:
						reserved.Add(1)
					}
				}}
				l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(s), ratelimit.WithName("test")))
				require.True(t, l.AllowN("key", 2))
				var line []*fakes.Waiter
				for i := range 10 {
					line = append(line, stand(t, l, 1+i%2))
					synctest.Wait()
				}
				require.EqualValues(t, 10, reserved.Load(), "all have turns")
				line[1].Cancel()
				synctest.Wait()
				assert.EqualValues(t, 9, cancels.Load())
				assert.EqualValues(t, 10+8, reserved.Load(), "those behind have new turns")
				time.Sleep(time.Second)
				synctest.Wait()
				for i, w := range line {
					require.True(t, w.Done.Load())
					require.Equal(t, i == 1, w.Err != nil)
				}
				assert.LessOrEqual(t, line[9].Ended.Sub(line[0].Ended), 1200*time.Microsecond)
			})
		})
	}
}

// Many callers arrive before the store has answered the first one. No more of them ask the store at
// once than a line may have turns. All of them are served at the limit's rate, in the order of
// their arrival.
func TestWait_ManyComeBeforeTheFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asking, most, granted, late int
		s := &fakes.Hooked{Store: fakes.NewMapDB().Store()}
		var mu sync.Mutex
		s.After = func(req step.Request, _ step.Answer) {
			mu.Lock()
			defer mu.Unlock()
			if req.Op == step.OpReserve {
				asking++
				most = max(most, asking)
				mu.Unlock()
				time.Sleep(2 * time.Millisecond)
				mu.Lock()
				asking--
				granted++
			}
		}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Burst: 1}, ratelimit.WithStore(s), ratelimit.WithName("test")))
		require.True(t, l.Allow("key"))
		begin := time.Now()
		var line []*fakes.Waiter
		for range 300 {
			line = append(line, stand(t, l, 1))
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		for i, w := range line {
			require.NoError(t, w.Err)
			if at := time.Duration(i+1) * 10 * time.Millisecond; w.Ended.Sub(begin) != at {
				late++
			}
		}
		assert.LessOrEqual(t, most, 64)
		assert.Equal(t, 300, granted)
		assert.Zero(t, late)
	})
}

// TestWait_AfterReset: a reset of a key makes room for its waiters, even if the first waiter has a
// turn already.
func TestWait_AfterReset(t *testing.T) {
	inEach(t, func(t *testing.T, in place) {
		l := in.limiter(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 5})
		require.True(t, l.AllowN("key", 5))
		first := fakes.WaitFor(t, l, "key", 2)
		synctest.Wait()
		second := fakes.WaitFor(t, l, "key", 1)
		synctest.Wait()
		require.NoError(t, l.Reset(t.Context(), "key"))
		synctest.Wait()
		assert.True(t, first.Done.Load() && second.Done.Load())
		d, err := l.Take(t.Context(), "key", 2)
		require.NoError(t, err)
		assert.True(t, d.Allowed, "%+v", d)
		assert.Zero(t, d.Remaining)
	})
}

// TestWait_AfterANewLimit: after the limit of a key has changed, the next request for the key makes
// its waiters ask under the new limit.
func TestWait_AfterANewLimit(t *testing.T) {
	slow := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 10}
	for name, to := range map[string]ratelimit.Algorithm{
		"faster":     ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000), Burst: 10},
		"other kind": ratelimit.FixedWindow{Limit: 1000, Window: time.Second},
		"InFlight":   ratelimit.InFlight{Limit: 100, Timeout: time.Hour},
		"Unlimited":  ratelimit.Unlimited{},
	} {
		t.Run(name, func(t *testing.T) {
			inEach(t, func(t *testing.T, in place) {
				p := fakes.NewPlan(slow)
				l := in.limiter(slow, ratelimit.WithLimits(p.Lookup))
				require.True(t, l.AllowN("key", 10))
				first := fakes.WaitFor(t, l, "key", 2)
				synctest.Wait()
				second := fakes.WaitFor(t, l, "key", 1)
				synctest.Wait()
				p.Set(to)
				l.Allow("key")
				time.Sleep(time.Second)
				synctest.Wait()
				assert.True(t, first.Done.Load() && second.Done.Load())
				assert.True(t, l.Allow("key"))
			})
		})
	}
}

// After any request under a new limit, waiters ask under the new limit as well. Events that were
// reserved for them under the old limit are given back before the new limit decides on anything.
func TestWait_WhateverIsAskedByANewLimit(t *testing.T) {
	many := make([]ratelimit.Algorithm, 5) // of which each lookup makes a limit that no other one is
	for i := range many {
		many[i] = ratelimit.TokenBucket{Rate: ratelimit.PerHour(100), Burst: 100 + i}
	}
	for name, edit := range map[string]struct{ from, to ratelimit.Algorithm }{
		"TokenBucket": {ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 5}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5), Burst: 5}},
		"SlidingLog":  {ratelimit.SlidingLog{Limit: 5, Window: time.Hour}, ratelimit.SlidingLog{Limit: 8, Window: time.Hour}},
		"InFlight":    {ratelimit.InFlight{Limit: 5, Timeout: time.Hour}, ratelimit.InFlight{Limit: 8, Timeout: time.Hour}},
		"All": {
			append(ratelimit.All{ratelimit.FixedWindow{Limit: 5, Window: 24 * time.Hour}}, many...),
			append(ratelimit.All{ratelimit.FixedWindow{Limit: 8, Window: 24 * time.Hour}}, many...),
		},
	} {
		for method, ask := range map[string]func(ctx context.Context, l ratelimit.Limiter) error{
			"Take":          func(ctx context.Context, l ratelimit.Limiter) error { _, err := l.Take(ctx, "key", 1); return err },
			"Take too many": func(ctx context.Context, l ratelimit.Limiter) error { _, err := l.Take(ctx, "key", 10); return err },
			"Peek":          func(ctx context.Context, l ratelimit.Limiter) error { _, err := l.Peek(ctx, "key"); return err },
			"Charge":        func(ctx context.Context, l ratelimit.Limiter) error { _, err := l.Charge(ctx, "key", 0); return err },
			"Reserve": func(ctx context.Context, l ratelimit.Limiter) error {
				_, _, err := l.Reserve(ctx, "key", 1)
				return err
			},
			"Hold too many": func(ctx context.Context, l ratelimit.Limiter) error { _, _, err := l.Hold(ctx, "key", 10); return err },
			"Wait for more": func(ctx context.Context, l ratelimit.Limiter) error { return notErrNever(l.WaitN(ctx, "key", 10)) },
			"TakeAll": func(ctx context.Context, l ratelimit.Limiter) error {
				_, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "key"))
				return err
			},
			"HoldAll": func(ctx context.Context, l ratelimit.Limiter) error {
				_, _, err := ratelimit.HoldAll(ctx, 10, ratelimit.For(l, "key"))
				return err
			},
			"TakeEach": func(ctx context.Context, l ratelimit.Limiter) error {
				_, err := l.TakeEach(ctx, []string{"key"}, 10, nil)
				return err
			},
			"TakeUpTo": func(ctx context.Context, l ratelimit.Limiter) error {
				_, _, err := l.TakeUpTo(ctx, "key", 10)
				return err
			},
			"Wait, at last": func(ctx context.Context, l ratelimit.Limiter) error {
				go func() { _ = l.Wait(ctx, "key") }()
				return nil
			},
			"Hold, at last": func(ctx context.Context, l ratelimit.Limiter) error {
				go func() { _, _, _ = l.Hold(ctx, "key", 1, ratelimit.Waiting()) }()
				return nil
			},
			"Allow too many": func(_ context.Context, l ratelimit.Limiter) error { l.AllowN("key", 10); return nil },
		} {
			t.Run(name+"/"+method, func(t *testing.T) {
				inEach(t, func(t *testing.T, in place) {
					p := fakes.NewPlan(edit.from)
					l := in.limiter(edit.from, ratelimit.WithLimits(p.Lookup))
					require.True(t, l.AllowN("key", 5))
					first := stand(t, l, 1)
					synctest.Wait()
					second := stand(t, l, 2)
					synctest.Wait()
					p.Set(edit.to)
					require.NoError(t, ask(t.Context(), l))
					time.Sleep(2 * time.Second)
					synctest.Wait()
					assert.True(t, first.Done.Load() && second.Done.Load())
					assert.NoError(t, errors.Join(first.Err, second.Err))
				})
			})
		}
	}
}

// The turns of a line stay while the limit is the same, even if each lookup compiles the limit
// anew, as it does with an All of many parts.
func TestWait_TurnsStayWhileTheLimitDoes(t *testing.T) {
	alg := ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 1}}
	for i := range 5 {
		alg = append(alg, ratelimit.FixedWindow{Limit: 100 + i, Window: time.Hour})
	}
	synctest.Test(t, func(t *testing.T) {
		var cancels atomic.Int64
		s := &fakes.Hooked{Store: fakes.NewMapDB().Store(), After: func(req step.Request, _ step.Answer) {
			if req.Op == step.OpSettle {
				cancels.Add(1)
			}
		}}
		l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(s), ratelimit.WithName("test"), fakes.OwnLimit(alg)))
		require.True(t, l.Allow("key"))
		w := stand(t, l, 1)
		synctest.Wait()
		require.False(t, l.Allow("key"))
		_, err := l.Charge(t.Context(), "key", 0)
		require.NoError(t, err)
		synctest.Wait()
		assert.Zero(t, cancels.Load())
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.True(t, w.Done.Load())
	})
}

// notErrNever returns err, or nil if err is ErrNever, which is expected.
func notErrNever(err error) error {
	if errors.Is(err, ratelimit.ErrNever) {
		return nil
	}
	return err
}

// TestWait_NothingOvertakesTheLastOne: the last waiter of a line asks the store, after the waiter
// before it has just been served. The store has not denied the last waiter anything yet, but no
// other call overtakes it.
func TestWait_NothingOvertakesTheLastOne(t *testing.T) {
	type waits struct{}
	alg := ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 10, Per: time.Second}, Refill: ratelimit.RefillInterval}
	inEach(t, func(t *testing.T, in place) {
		ctx := context.WithValue(t.Context(), waits{}, true)
		l := in.limiter(alg, ratelimit.WithLimits(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
			if ctx.Value(waits{}) != nil {
				time.Sleep(5 * time.Millisecond)
			}
			return alg, nil
		}))
		require.True(t, l.AllowN("key", 10))
		begin := time.Now()
		var line [2]atomic.Bool
		for i, n := range []int{1, 9} {
			go func() {
				assert.NoError(t, l.WaitN(ctx, "key", n))
				line[i].Store(true)
			}()
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Until(begin.Add(990 * time.Millisecond)))
		for range 40 {
			synctest.Wait()
			require.False(t, l.Allow("key"), "after %v", time.Since(begin))
			time.Sleep(500 * time.Microsecond)
		}
		assert.True(t, line[0].Load() && line[1].Load())
	})
}

// TestWait_RetryAfterBehindTheLine: in memory, the RetryAfter of a denial behind a line is exact.
// If no other caller comes, all waiters have been served by then, and there is room. This is also
// so after waiters have left, and after events were charged. With a LeakyBucket, charged events may
// or may not push waiters out of the queue.
func TestWait_RetryAfterBehindTheLine(t *testing.T) {
	for name, alg := range tenPerSecond {
		t.Run(name, func(t *testing.T) {
			rnd := fakes.Rand(t)
			for range 100 {
				synctest.Test(t, func(t *testing.T) {
					retryBehind(t, rnd, ratelimit.Must(ratelimit.New(alg)), !strings.HasPrefix(name, "LeakyBucket"))
				})
			}
		})
	}
}

// TestWait_RetryAfterBehindTheLineAfterASettle: if a hold that stood in the line is settled for
// fewer events, the turns of the other waiters come earlier, even if none of them has room yet.
// RetryAfter says so.
func TestWait_RetryAfterBehindTheLineAfterASettle(t *testing.T) {
	for happened, want := range []time.Duration{2 * time.Hour, 3 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 2}))
			require.True(t, l.AllowN("key", 2))
			first := fakes.WaitFor(t, l, "key", 1)
			synctest.Wait()
			fakes.WaitFor(t, l, "key", 2)
			synctest.Wait()
			require.Equal(t, 4*time.Hour, fakes.Take(t, l, 1).RetryAfter)
			time.Sleep(time.Hour)
			synctest.Wait()
			require.True(t, first.Done.Load())
			require.Equal(t, 3*time.Hour, fakes.Take(t, l, 1).RetryAfter)
			_, err := first.R.Settle(t.Context(), happened)
			require.NoError(t, err)
			assert.Equal(t, want, fakes.Take(t, l, 1).RetryAfter, "after Settle(%d)", happened)
		})
	}
}

func retryBehind(t *testing.T, rnd *rand.Rand, l ratelimit.Limiter, charges bool) {
	size := func() int {
		if p, err := l.Peek(t.Context(), "other"); err != nil || p.Limit < 3 {
			return 1
		}
		return 1 + rnd.IntN(3)
	}
	for l.Allow("key") {
	}
	time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
	var leave []context.CancelFunc
	for range 1 + rnd.IntN(12) {
		ctx, cancel := context.WithCancel(t.Context())
		leave = append(leave, cancel)
		n := size()
		go func() { _ = l.WaitN(ctx, "key", n) }()
		synctest.Wait()
	}
	for _, cancel := range leave {
		defer cancel()
		if rnd.IntN(3) == 0 {
			cancel()
			synctest.Wait()
		}
	}
	n := size()
	take := func() ratelimit.Decision {
		d, err := l.Take(t.Context(), "key", n)
		require.NoError(t, err)
		return d
	}
	d := take()
	if charges && !d.Allowed && rnd.IntN(2) == 0 {
		_, err := l.Charge(t.Context(), "key", rnd.IntN(20))
		require.NoError(t, err)
		d = take()
	}
	if d.Allowed {
		return
	}
	time.Sleep(d.RetryAfter)
	synctest.Wait()
	again := take()
	require.True(t, again.Allowed, "after %v: %+v", d.RetryAfter, again)
}

// A waiter whose clock panics does not leave its place in the line.
func TestWait_ClockThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := &panicking{Mock: clock.NewMock()}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithClock(clk)))
		require.True(t, l.Allow("key"))
		ctx, cancel := context.WithCancel(t.Context())
		var panicked any
		go func() {
			defer func() { panicked = recover() }()
			_ = l.Wait(ctx, "key")
		}()
		synctest.Wait()
		clk.panics.Store(true)
		cancel()
		synctest.Wait()
		require.Equal(t, "no time", panicked)
		clk.panics.Store(false)
		clk.Add(time.Second)
		assert.True(t, l.Allow("key"))
	})
}

type panicking struct {
	*clock.Mock
	panics atomic.Bool
}

func (c *panicking) Now() time.Time {
	if c.panics.Load() {
		panic("no time")
	}
	return c.Mock.Now()
}

func (c *panicking) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// TestWaitingUntil_QueueOfAnInFlight: a middleware bounds the wait for an All of an InFlight and a
// LeakyBucket. The delay in the queue of the LeakyBucket counts as a part of the wait.
func TestWaitingUntil_QueueOfAnInFlight(t *testing.T) {
	alg := ratelimit.All{ratelimit.InFlight{Limit: 10, Timeout: time.Hour}, ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 5}}
	inEach(t, func(t *testing.T, in place) {
		l := in.limiter(alg)
		fakes.Held(t, l, "key", 1)
		until, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		_, _, err := l.Hold(t.Context(), "key", 1, ratelimit.WaitingUntil(until))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(begin))
	})
}

// TestWait_TogetherAfterADenial: while places are denied, only the first waiter asks the store.
// After a grant, the waiters of a store with a slow answer ask together again.
func TestWait_TogetherAfterADenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := fakes.NewMapDB().Store()
		far := &fakes.Hooked{Store: db, Before: func(req step.Request) step.Request {
			time.Sleep(2 * time.Millisecond)
			return req
		}}
		bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2000), Burst: 20}
		l := ratelimit.Must(ratelimit.New(bucket, ratelimit.WithStore(far), ratelimit.WithName("test")))
		other := ratelimit.Must(ratelimit.New(bucket, ratelimit.WithStore(db), ratelimit.WithName("test")))
		held := fakes.Held(t, other, "key", 20)
		ctx, stop := context.WithCancel(t.Context())
		var served atomic.Int64
		for range 200 {
			go func() {
				for l.Wait(ctx, "key") == nil {
					served.Add(1)
				}
			}()
		}
		time.Sleep(200 * time.Millisecond)
		_, err := held.Settle(t.Context(), 20)
		require.NoError(t, err)
		time.Sleep(time.Second)
		synctest.Wait() // serves the waiters whose turn comes at this instant
		before := served.Load()
		time.Sleep(time.Second)
		synctest.Wait()
		assert.EqualValues(t, 2000, served.Load()-before)
		stop()
		time.Sleep(time.Minute)
	})
}

// TestSpending: what Hold spends for good is not held, at once and in line.
func TestSpending(t *testing.T) {
	for _, holds := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := new(ratelimit.MemoryStore)
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithStore(s)))
			for range 2 { // at once, and in line
				opts := []ratelimit.HoldOption{ratelimit.Waiting(), ratelimit.HoldFor(time.Minute), ratelimit.GiveBack()}
				if !holds {
					opts = append(opts, ratelimit.Spending())
				}
				r, _, err := l.Hold(t.Context(), "key", 1, opts...)
				require.NoError(t, err)
				require.Equal(t, holds, r != nil && r.Token() != "")
			}
			time.Sleep(time.Hour)
			require.True(t, l.Allow("key"))
			ended := 0
			if holds {
				ended = 2
			}
			require.EqualValues(t, ended, s.Stats().Ended)
		})
	}
}

// TestSpendingIsForGood: what is spent for good is not given back, in whichever store, and however a
// hold would end.
func TestSpendingIsForGood(t *testing.T) {
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1), Burst: 2},
					ratelimit.WithStore(store()), ratelimit.WithName("test")))
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						r, _, err := l.Hold(t.Context(), "key", 1,
							ratelimit.Waiting(), ratelimit.Spending(), ratelimit.HoldFor(time.Second), ratelimit.GiveBack())
						assert.NoError(t, err)
						assert.Nil(t, r)
					})
				}
				all.Wait()
				time.Sleep(10 * time.Second)
				d, err := l.Peek(t.Context(), "key")
				require.NoError(t, err)
				assert.Equal(t, []any{0, 50 * time.Second}, []any{d.Remaining, d.RetryAfter})
			})
		})
	}
}
