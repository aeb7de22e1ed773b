package wait_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

func TestInFlight(t *testing.T) {
	ctx := context.Background()
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			clk := stepclock.New()
			l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 2, Timeout: time.Minute},
				ratelimit.WithClock(clk), ratelimit.WithStore(store()), ratelimit.WithName("test")))
			begin := clk.Now()
			first, d, err := l.Hold(ctx, "k", 1)
			require.NoError(t, err)
			assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 2, Remaining: 1, ResetAfter: time.Minute}, d)
			clk.Set(begin.Add(time.Second))
			second, _, err := l.Hold(ctx, "k", 1)
			require.NoError(t, err)
			third, d, err := l.Hold(ctx, "k", 1)
			require.NoError(t, err)
			assert.Nil(t, third)
			assert.Equal(t, 59*time.Second, d.RetryAfter, "the earliest timeout")

			require.NoError(t, first.Release(ctx))
			require.ErrorIs(t, first.Release(ctx), ratelimit.ErrEnded)
			third, _, err = l.Hold(ctx, "k", 1)
			require.NoError(t, err)
			require.NotNil(t, third)
			assert.False(t, l.Allow("k"))

			third.Cancel()
			third, _, err = l.Hold(ctx, "k", 1)
			require.NoError(t, err)
			require.NotNil(t, third, "Cancel releases it as well")

			// The holders have crashed.
			clk.Set(begin.Add(61*time.Second - 1))
			assert.False(t, l.Allow("k"))
			clk.Set(begin.Add(61 * time.Second))
			assert.True(t, l.AllowN("k", 2), "both have timed out")

			// Late releases take nothing from those.
			require.NoError(t, second.Release(ctx))
			require.NoError(t, third.Release(ctx))
			assert.False(t, l.Allow("k"))
		})
	}
}

// A settled request is over, whatever it cost. Only the other parts keep the events.
func TestInFlightInAll(t *testing.T) {
	ctx := context.Background()
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			clk := stepclock.New()
			l := ratelimit.Must(ratelimit.New(ratelimit.All{
				ratelimit.InFlight{Limit: 4, Timeout: time.Minute},
				ratelimit.FixedWindow{Limit: 20, Window: time.Hour},
			}, ratelimit.WithClock(clk), ratelimit.WithStore(store()), ratelimit.WithName("test")))
			for actual, left := range map[int]int{0: 20, 1: 19, 4: 16, 9: 11} {
				require.NoError(t, l.Reset(ctx, "k"))
				r, _, err := l.Hold(ctx, "k", 4)
				require.NoError(t, err)
				assert.False(t, l.Allow("k"))
				d, err := r.Settle(ctx, actual)
				require.NoError(t, err)
				assert.Equal(t, 4, d.Remaining)
				granted := 0
				for ; ; granted++ {
					r, _, err := l.Hold(ctx, "k", 1)
					require.NoError(t, err)
					if r == nil {
						break
					}
					require.NoError(t, r.Release(ctx))
				}
				assert.Equal(t, left, granted, "after %d", actual)
			}
		})
	}
}

// Waiters are served in the order of their arrival, as soon as events are released.
func TestInFlightWait(t *testing.T) {
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 2, Timeout: time.Minute}, ratelimit.WithStore(store()), ratelimit.WithName("test")))
				begin := time.Now()
				var wg sync.WaitGroup
				var mu sync.Mutex // protects served
				var served []int
				for i := range 6 {
					wg.Go(func() {
						r, _, err := l.Hold(t.Context(), "k", 1, ratelimit.Waiting())
						if !assert.NoError(t, err) {
							return
						}
						mu.Lock()
						served = append(served, i)
						mu.Unlock()
						if i < 2 {
							assert.Equal(t, begin, time.Now())
						} else {
							assert.Equal(t, time.Duration(i)*time.Second/2, time.Since(begin))
						}
						if i == 1 { // so that all others are served at different times
							time.Sleep(time.Second / 2)
						}
						time.Sleep(time.Second)
						assert.NoError(t, r.Release(t.Context()))
					})
					synctest.Wait()
				}
				assert.False(t, l.Allow("k"))
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				require.ErrorIs(t, l.Wait(ctx, "k"), context.DeadlineExceeded)
				wg.Wait()
				assert.Equal(t, []int{0, 1, 2, 3, 4, 5}, served)
				assert.True(t, l.AllowN("k", 2), "nobody waits any more")

				// Nobody releases these.
				require.NoError(t, l.Wait(t.Context(), "k"))
				assert.Equal(t, 3500*time.Millisecond+time.Minute, time.Since(begin))
			})
		})
	}
}

// A flight is a hold as the definition sees it.
type flight struct {
	r     *ratelimit.Reservation
	n     int
	until time.Time // when it times out
	over  bool      // whether it was released
}

// Random holds that are released, released late, released twice, or never (their holders have
// crashed) count until they are released or time out, and not a nanosecond longer or shorter.
func TestHoldersThatCrash(t *testing.T) {
	alg := ratelimit.InFlight{Limit: 6, Timeout: 10}
	for name, store := range fakes.Stores {
		for option, opts := range map[string][]ratelimit.Option{
			"":                nil,
			"/limits of keys": {ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })},
		} {
			t.Run(name+option, func(t *testing.T) {
				rnd := fakes.Rand(t)
				for range 100 {
					clk := stepclock.New()
					l := ratelimit.Must(ratelimit.New(alg, append(opts, ratelimit.WithClock(clk), ratelimit.WithStore(store()), ratelimit.WithName("test"))...))
					var flights []*flight
					for range 60 {
						clk.Advance(time.Duration(max(0, rnd.IntN(8)-3)))
						fly(t, l, &flights, clk.Now(), rnd.IntN(10), rnd.IntN(4), rnd.IntN(1<<20))
					}
				}
			})
		}
	}
}

// fly makes one random call, and compares its result with the definition.
func fly(t *testing.T, l ratelimit.Limiter, flights *[]*flight, now time.Time, op, n, which int) {
	ctx := context.Background()
	const limit, timeout = 6, 10
	used, retry := func() (used int, retry time.Duration) {
		var ends []time.Duration
		for _, f := range *flights {
			if !f.over && now.Before(f.until) {
				used += f.n
				for range f.n {
					ends = append(ends, f.until.Sub(now))
				}
			}
		}
		slices.Sort(ends)
		if missing := used + n - limit; missing > 0 {
			retry = ends[missing-1]
		}
		return used, retry
	}()
	switch {
	case op < 4:
		r, d, err := l.Hold(ctx, "k", n)
		require.NoError(t, err)
		require.Equal(t, n == 0 || used+n <= limit, d.Allowed)
		if !d.Allowed {
			require.Nil(t, r)
			require.Equal(t, retry, d.RetryAfter)
			return
		}
		*flights = append(*flights, &flight{r: r, n: n, until: now.Add(timeout)})
	case op == 4:
		allowed := l.AllowN("k", n)
		require.Equal(t, n == 0 || used+n <= limit, allowed)
		if allowed { // nobody can release it
			*flights = append(*flights, &flight{n: n, until: now.Add(timeout)})
		}
	case len(*flights) > 0:
		f := (*flights)[which%len(*flights)]
		if f.r == nil {
			return
		}
		_, err := f.r.Settle(ctx, which%9) // whatever the number
		if f.over {
			require.ErrorIs(t, err, ratelimit.ErrEnded)
		} else {
			require.NoError(t, err)
		}
		f.over = true
	}
	used = 0
	for _, f := range *flights {
		if !f.over && now.Before(f.until) {
			used += f.n
		}
	}
	d, err := l.Peek(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, limit-used, d.Remaining)
}

// A Wait that arrives behind a blocked one makes the blocked one ask the store again. There may be
// room of which it does not know, because the limit was raised or another process has released
// events.
func TestInFlightWaitersNoticeRoom(t *testing.T) {
	ctx := context.Background()
	for name, makeRoom := range map[string]func(limit *atomic.Int64, other *ratelimit.Reservation){
		"limit":   func(limit *atomic.Int64, _ *ratelimit.Reservation) { limit.Store(4) },
		"process": func(_ *atomic.Int64, other *ratelimit.Reservation) { assert.NoError(t, other.Release(ctx)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var limit atomic.Int64
				limit.Store(2)
				db := fakes.NewMapDB()
				open := func() ratelimit.Limiter {
					return ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithStore(db.Store()), ratelimit.WithName("test"),
						ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
							return ratelimit.InFlight{Limit: int(limit.Load()), Timeout: time.Hour}, nil
						})))
				}
				l := open()
				other, _, err := open().Hold(ctx, "key", 2)
				require.NoError(t, err)
				begin := time.Now()
				var wg sync.WaitGroup
				wait := func() {
					wg.Go(func() {
						assert.NoError(t, l.Wait(ctx, "key"))
						assert.Equal(t, time.Second, time.Since(begin))
					})
				}
				wait()
				time.Sleep(time.Second)
				makeRoom(&limit, other)
				wait()
				wg.Wait()
			})
		})
	}
}

// A waiter that waits for what another process holds is served soon after that process gives it
// back, although nobody tells it: an eighth of its wait later at most, at least ten milliseconds and
// at most a second. It asks rarely.
func TestWaitersAskForWhatOtherProcessesHold(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"InFlight":    ratelimit.InFlight{Limit: 2, Timeout: time.Hour},
		"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerDay(1), Burst: 2},
		"Lockout":     ratelimit.Lockout{Limit: 2, Window: time.Hour, First: time.Hour},
		"All": ratelimit.All{
			ratelimit.InFlight{Limit: 2, Timeout: time.Hour},
			ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour},
		},
	} {
		for _, heldFor := range []time.Duration{50 * time.Millisecond, time.Second, 10 * time.Minute} {
			t.Run(fmt.Sprintf("%s/%v", name, heldFor), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					db, asked := fakes.NewMapDB(), 0
					open := func(store ratelimit.Store) ratelimit.Limiter {
						return ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test")))
					}
					holder := open(db.Store())
					waiter := open(&fakes.Hooked{Store: db.Store(), After: func(step.Request, step.Answer) { asked++ }})
					held, _, err := holder.Hold(t.Context(), "k", 2, ratelimit.HoldFor(time.Hour))
					require.NoError(t, err)
					time.AfterFunc(heldFor, held.Cancel)
					begin := time.Now()
					_, _, err = waiter.Hold(t.Context(), "k", 1, ratelimit.Waiting(), ratelimit.HoldFor(time.Hour))
					require.NoError(t, err)
					late := time.Since(begin) - heldFor
					assert.LessOrEqual(t, late, max(10*time.Millisecond, min(heldFor/8, time.Second)))
					assert.LessOrEqual(t, asked, 50+int(heldFor/time.Second))
					t.Logf("%v late, %d questions", late, asked)
				})
			})
		}
	}
}
