package wait_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// TestWaitersWakeWhenThereIsRoom: no wake-up is lost. At one instant, events are released or time
// out, and waiters come and leave, in any order. Once all goroutines are blocked, the first waiter
// waits only if there is no room for it, and waiters have been served in their order.
func TestWaitersWakeWhenThereIsRoom(t *testing.T) {
	const limit = 5
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			rnd := fakes.Rand(t)
			for round := range 100 {
				synctest.Test(t, func(t *testing.T) {
					restlessly(t, rand.New(rand.NewPCG(uint64(round), rnd.Uint64())), store(), limit)
				})
			}
		})
	}
}

func restlessly(t *testing.T, rnd *rand.Rand, store ratelimit.Store, limit int) {
	type holder struct {
		r     *ratelimit.Reservation
		n     int
		until time.Time
	}
	const timeout = 10 * time.Second
	l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: limit, Timeout: timeout}, ratelimit.WithStore(store), ratelimit.WithName("test")))
	var queue []*fakes.Waiter
	var holders []holder
	for range 60 {
		for range 1 + rnd.IntN(4) { // all at once
			switch i := rnd.IntN(7); {
			case i < 3:
				queue = append(queue, fakes.WaitFor(t, l, "k", 1+rnd.IntN(2)))
				synctest.Wait() // the waiter has its place
			case i == 3 && len(queue) > 0:
				queue[rnd.IntN(len(queue))].Cancel()
			case i == 4:
				d, err := l.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				if d.Allowed {
					holders = append(holders, holder{nil, 1, time.Now().Add(timeout)})
				}
			case len(holders) > 0: // perhaps late, or none
				j := rnd.IntN(len(holders))
				if h := holders[j]; h.r != nil {
					holders = slices.Delete(holders, j, j+1)
					go func() { assert.NoError(t, h.r.Release(context.Background())) }()
				}
			}
		}
		synctest.Wait()
		var waiting []*fakes.Waiter
		for _, w := range queue {
			switch {
			case !w.Done.Load():
				waiting = append(waiting, w)
			case w.Err == nil:
				require.Empty(t, waiting, "it overtook")
				holders = append(holders, holder{w.R, w.N, w.Ended.Add(timeout)})
			default:
				require.ErrorIs(t, w.Err, context.Canceled)
			}
		}
		queue = waiting
		used := 0
		for _, h := range holders {
			if time.Now().Before(h.until) {
				used += h.n
			}
		}
		require.LessOrEqual(t, used, limit)
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		if len(waiting) > 0 {
			require.Greater(t, used+waiting[0].N, limit, "the first waiter sleeps though there is room")
			require.False(t, d.Allowed)
			require.Zero(t, d.Remaining)
			require.Positive(t, d.RetryAfter)
		} else {
			require.Equal(t, limit-used, d.Remaining)
		}
		time.Sleep(time.Duration(rnd.IntN(3)) * time.Second)
		synctest.Wait()
	}
}

// TestNothingOvertakesAWaiter: while a waiter is blocked, no method grants another request for the
// key, although there is room for one event.
func TestNothingOvertakesAWaiter(t *testing.T) {
	for name, store := range fakes.Stores {
		for algName, alg := range map[string]ratelimit.Algorithm{
			"InFlight": fakes.Five,
			"All":      ratelimit.All{fakes.Five, ratelimit.FixedWindow{Limit: 100, Window: time.Hour}},
		} {
			t.Run(name+"/"+algName, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store()), ratelimit.WithName("test")))
					first := fakes.Held(t, l, "k", 4)
					w := fakes.WaitFor(t, l, "k", 5)
					synctest.Wait()
					time.Sleep(time.Second)

					denied := ratelimit.Decision{Limit: 5, RetryAfter: 59 * time.Second, ResetAfter: 59 * time.Second}
					if algName == "All" { // the time of a bubble begins with an hour
						denied.ResetAfter = time.Hour - time.Second
					}
					assert.False(t, l.Allow("k"))
					d, err := l.Take(t.Context(), "k", 1)
					require.NoError(t, err)
					assert.Equal(t, denied, d)
					d, err = l.Peek(t.Context(), "k")
					require.NoError(t, err)
					assert.Equal(t, denied, d)
					r, d, err := l.Hold(t.Context(), "k", 1)
					require.NoError(t, err)
					assert.Nil(t, r)
					assert.Equal(t, denied, d)
					r, d, err = l.Reserve(t.Context(), "k", 1, ratelimit.Within(time.Hour))
					require.NoError(t, err)
					assert.Nil(t, r)
					assert.Equal(t, denied, d)
					r, d, err = l.Reserve(t.Context(), "k", 1)
					require.NoError(t, err)
					assert.Nil(t, r)
					assert.Equal(t, denied, d)
					each, err := l.TakeEach(t.Context(), []string{"k", "other", "k"}, 1, nil)
					require.NoError(t, err)
					assert.Equal(t, denied, each[0])
					assert.True(t, each[1].Allowed)
					assert.Equal(t, denied, each[2])
					for _, n := range []int{2, 6} { // also of more than the limit, it asks for one at least
						granted, d, err := l.TakeUpTo(t.Context(), "k", n)
						require.NoError(t, err)
						assert.Zero(t, granted)
						assert.Equal(t, denied, d)
					}
					soon, cancel := context.WithTimeout(t.Context(), time.Second)
					require.ErrorIs(t, l.Wait(soon, "k"), context.DeadlineExceeded)
					cancel()

					// Requests that are granted always or never overtake nobody, and are answered
					// as without a waiter.
					assert.True(t, l.AllowN("k", 0))
					require.NoError(t, l.WaitN(t.Context(), "k", 0))
					d, err = l.Take(t.Context(), "k", 6)
					require.NoError(t, err)
					assert.Equal(t, ratelimit.Never, d.RetryAfter)
					require.ErrorIs(t, l.WaitN(t.Context(), "k", 6), ratelimit.ErrNever)
					require.False(t, w.Done.Load())

					require.NoError(t, first.Release(t.Context()))
					synctest.Wait()
					require.True(t, w.Done.Load())
					require.NoError(t, w.Err)
					require.NoError(t, w.R.Release(t.Context()))
					assert.True(t, l.AllowN("k", 5), "nobody waits any more")
				})
			})
		}
	}
}

// TestWaitersSeeChanges: each call that may have made room, and not only Release, wakes the first
// waiter.
func TestWaitersSeeChanges(t *testing.T) {
	for name, store := range fakes.Stores {
		for what, change := range map[string]func(t *testing.T, l, other ratelimit.Limiter, r *ratelimit.Reservation, plan *fakes.Plan){
			"reset": func(t *testing.T, l, _ ratelimit.Limiter, _ *ratelimit.Reservation, _ *fakes.Plan) {
				require.NoError(t, l.Reset(t.Context(), "k"))
			},
			"settle": func(t *testing.T, _, _ ratelimit.Limiter, r *ratelimit.Reservation, _ *fakes.Plan) {
				_, err := r.Settle(t.Context(), 0)
				require.NoError(t, err)
			},
			"a higher limit": func(t *testing.T, l, _ ratelimit.Limiter, _ *ratelimit.Reservation, plan *fakes.Plan) {
				plan.Set(ratelimit.InFlight{Limit: 8, Timeout: time.Minute}) // with room for the waiters
				assert.False(t, l.Allow("k"), "the waiters come first")
			},
			"another kind of limit": func(t *testing.T, l, _ ratelimit.Limiter, _ *ratelimit.Reservation, plan *fakes.Plan) {
				plan.Set(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3)})
				assert.False(t, l.Allow("k"), "the waiters come first")
			},
			"a reset by another limiter, and a call": func(t *testing.T, l, other ratelimit.Limiter, r *ratelimit.Reservation, _ *fakes.Plan) {
				require.NoError(t, other.Reset(t.Context(), "k"))
				time.Sleep(10 * time.Millisecond)
				l.Allow("k") // makes the waiter look
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					plan := fakes.NewPlan(fakes.Five)
					lookup := ratelimit.WithLimits(plan.Lookup)
					opts := []ratelimit.Option{ratelimit.WithStore(store()), ratelimit.WithName("test"), lookup}
					l := ratelimit.Must(ratelimit.New(fakes.Five, opts...))
					other := ratelimit.Must(ratelimit.New(fakes.Five, opts...))
					r := fakes.Held(t, l, "k", 5)
					var waiters []*fakes.Waiter
					for range 3 {
						waiters = append(waiters, fakes.WaitFor(t, l, "k", 1))
						synctest.Wait()
						require.False(t, waiters[0].Done.Load())
					}
					change(t, l, other, r, plan)
					synctest.Wait()
					for _, w := range waiters {
						assert.True(t, w.Done.Load())
						assert.NoError(t, w.Err)
					}
				})
			})
		}
	}
}

// TestWaitersOfALimitThatChanges: the limit of a key changes from an InFlight to another algorithm.
// The waiters of the key are served in their order, before callers that come later.
func TestWaitersOfALimitThatChanges(t *testing.T) {
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plan := fakes.NewPlan(fakes.Five)
				l := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithStore(store()), ratelimit.WithName("test"), ratelimit.WithLimits(plan.Lookup)))
				fakes.Held(t, l, "k", 5)
				var waiters []*fakes.Waiter
				add := func() {
					waiters = append(waiters, fakes.WaitFor(t, l, "k", 1))
					synctest.Wait()
				}
				add()
				add()
				plan.Set(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
				add() // behind the first two waiters
				assert.False(t, l.Allow("k"), "the waiters come first, and this call wakes the first of them")
				synctest.Wait()
				for i := range waiters {
					for j, w := range waiters {
						require.Equal(t, j <= i, w.Done.Load(), "waiter %d after %d s", j, i)
						if w.Done.Load() {
							require.NoError(t, w.Err)
						}
					}
					time.Sleep(time.Second)
					synctest.Wait()
				}
			})
		})
	}
}

// TestReleaseAfterAChange: events in flight are released even if the limit has changed since they
// were granted.
func TestReleaseAfterAChange(t *testing.T) {
	for name, store := range fakes.Stores {
		for what, next := range map[string]ratelimit.Algorithm{
			"higher":  ratelimit.InFlight{Limit: 7, Timeout: time.Minute},
			"lower":   ratelimit.InFlight{Limit: 3, Timeout: time.Minute},
			"longer":  ratelimit.InFlight{Limit: 5, Timeout: time.Hour},
			"shorter": ratelimit.InFlight{Limit: 5, Timeout: time.Second},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				plan := ratelimit.Algorithm(fakes.Five)
				clk := clock.NewMock()
				l := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithStore(store()), ratelimit.WithName("test"), ratelimit.WithClock(clk),
					ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return plan, nil })))
				limit := next.(ratelimit.InFlight).Limit
				a, b := fakes.Held(t, l, "k", 2), fakes.Held(t, l, "k", 3)
				plan = next
				d, err := l.Peek(ctx, "k")
				require.NoError(t, err)
				assert.Equal(t, max(0, limit-5), d.Remaining)
				require.NoError(t, a.Release(ctx))
				d, err = l.Peek(ctx, "k")
				require.NoError(t, err)
				assert.Equal(t, max(0, limit-3), d.Remaining)

				clk.Add(max(time.Minute, next.(ratelimit.InFlight).Timeout)) // a hold ends at the time that it was given, whatever the limit is now
				assert.True(t, l.AllowN("k", limit), "the others have timed out")
				require.NoError(t, b.Release(ctx))
				assert.False(t, l.Allow("k"), "a late release takes nothing from others")
			})
		}
	}
}

// If the store fails while callers wait, the FailurePolicy decides on them.
func TestWaitersOfAFailingStore(t *testing.T) {
	errDown := errors.New("connection refused")
	for policyName, tt := range map[string]struct {
		policy func(other ratelimit.Limiter) ratelimit.FailurePolicy
		want   error
	}{
		"open":     {func(ratelimit.Limiter) ratelimit.FailurePolicy { return ratelimit.FailOpen() }, nil},
		"closed":   {func(ratelimit.Limiter) ratelimit.FailurePolicy { return ratelimit.FailClosed() }, errDown},
		"fallback": {ratelimit.Fallback, nil},
	} {
		t.Run(policyName, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakes.Broken{}
				other := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Second}))
				l := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithStore(s), ratelimit.WithName("test"),
					ratelimit.WithFailureLog(nil), ratelimit.WithFailurePolicy(tt.policy(other))))
				r := fakes.Held(t, l, "k", 5)
				begin := time.Now()
				waiters := []*fakes.Waiter{fakes.WaitFor(t, l, "k", 1)}
				synctest.Wait()
				waiters = append(waiters, fakes.WaitFor(t, l, "k", 1))
				synctest.Wait()
				s.Err = errDown
				_, err := r.Settle(t.Context(), 0)
				require.ErrorIs(t, err, errDown)
				synctest.Wait()               // the settlement may have taken effect, so it wakes the waiters
				if policyName == "fallback" { // which has room for one of them, whoever asks first
					require.NotEqual(t, waiters[0].Done.Load(), waiters[1].Done.Load())
					time.Sleep(time.Second)
					synctest.Wait()
					assert.Equal(t, time.Second, time.Since(begin), "the first one's time out")
				}
				for i, w := range waiters {
					require.True(t, w.Done.Load(), i)
					if tt.want != nil {
						require.ErrorIs(t, w.Err, tt.want)
						continue
					}
					require.NoError(t, w.Err)
					require.NotNil(t, w.R)
				}
			})
		})
	}
}

// A wait for an All with a LeakyBucket ends when the Delay is over. A wait that is given up during
// the Delay releases its events.
func TestWaitHoldWithADelay(t *testing.T) {
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(ratelimit.All{fakes.Five,
					ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 5}}, ratelimit.WithStore(store()),
					ratelimit.WithName("test")))
				begin := time.Now()
				require.NoError(t, l.Wait(t.Context(), "k"))
				require.Zero(t, time.Since(begin))
				require.NoError(t, l.Wait(t.Context(), "k"))
				require.Equal(t, time.Second, time.Since(begin))
				w := fakes.WaitFor(t, l, "k", 3)
				synctest.Wait()
				require.False(t, w.Done.Load())
				d, err := l.Peek(t.Context(), "k")
				require.NoError(t, err)
				require.Zero(t, d.Remaining)
				w.Cancel()
				synctest.Wait()
				require.ErrorIs(t, w.Err, context.Canceled)
				require.Nil(t, w.R)
				d, err = l.Peek(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, 3, d.Remaining, "it has happened to nobody")
			})
		})
	}
}

// TestReleaseAfterAWaitThatEnded: a caller that does not wait for the Delay of a hold can still
// release its events in flight.
func TestReleaseAfterAWaitThatEnded(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.All{ratelimit.InFlight{Limit: 5, Timeout: time.Hour}, ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 9}})
	fakes.Held(t, l, "k", 1)
	r := fakes.Held(t, l, "k", 4)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Wait(ended), context.Canceled)
	d, err := r.Settle(t.Context(), 0)
	require.NoError(t, err)
	assert.Equal(t, 4, d.Remaining)
}

// TestWaitHoldFollowsTheInjectedClock: a test may move its clock just before a waiter sets its
// timer. The waiter notices.
func TestWaitHoldFollowsTheInjectedClock(t *testing.T) {
	for range 20 {
		mock := clock.NewMock()
		l := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithClock(mock)))
		fakes.Held(t, l, "k", 5)
		done := make(chan error)
		go func() {
			_, _, err := l.Hold(ctx, "k", 1, ratelimit.Waiting())
			done <- err
		}()
		for !blocked(t, l, "k") {
			runtime.Gosched()
		}
		mock.Add(time.Minute) // the test moves the clock once only
		require.NoError(t, <-done)
	}
}

// A lateClock is a mock that fires no timer, as one does that has fired its timers just before one
// was set, and shows its new time long after.
type lateClock struct{ *clock.Mock }

func (lateClock) Timer(d time.Duration) *clock.Timer { return clock.NewMock().Timer(d) }

// TestWaitFollowsALateMock: a waiter notices that a mock was moved, however late that shows.
func TestWaitFollowsALateMock(t *testing.T) {
	for _, late := range []time.Duration{0, 15 * time.Millisecond, time.Second, 9 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			mock := lateClock{clock.NewMock()}
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)}, ratelimit.WithClock(mock)))
			require.True(t, l.Allow("key"))
			w := stand(t, l, 1)
			synctest.Wait()
			time.Sleep(late)
			mock.Set(mock.Now().Add(time.Minute))
			time.Sleep(20 * time.Second)
			synctest.Wait()
			assert.True(t, w.Done.Load(), late)
		})
	}
}

// TestHold_WaitingBehindHolders: callers that hold may give their events back. So nobody is told
// to come back later than if all places ahead were spent at once, not even at the instant between a
// settlement and the next hold of the line.
func TestHold_WaitingBehindHolders(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.Lockout{Limit: 2, Window: time.Hour, First: time.Hour},
		ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent},
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)},
		ratelimit.All{ratelimit.SlidingLog{Limit: 2, Window: time.Hour}, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(100)}},
	} {
		for name, store := range fakes.Stores {
			t.Run(fmt.Sprint(name, " ", alg), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store()), ratelimit.WithName("test")))
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					first := fakes.Held(t, l, "key", 2)
					denied, err := l.Take(ctx, "key", 1)
					require.NoError(t, err)
					var passed atomic.Int64
					attempt := func() {
						hold, _, err := l.Hold(ctx, "key", 1, ratelimit.Waiting())
						if assert.NoError(t, err) {
							passed.Add(1)
							time.Sleep(time.Millisecond)
							hold.Cancel()
						}
					}
					for range 20 {
						go attempt()
					}
					synctest.Wait()
					first.Cancel()
					d, err := l.Take(ctx, "key", 1) // at the instant between two holds
					require.NoError(t, err)
					assert.LessOrEqual(t, d.RetryAfter, denied.RetryAfter, "the places ahead count as spent")
					attempt()
					time.Sleep(20 * time.Second)
					assert.EqualValues(t, 21, passed.Load())
				})
			})
		}
	}
}

// TestHold_WaitingForAFarHold: the turn of the first place, which will hold, is known, and what comes behind it is not. So only a
// deadline before that turn is too near.
func TestHold_WaitingForAFarHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Every(10 * time.Second)}))
		require.True(t, l.Allow("key"))
		hold := func(within time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			r, _, err := l.Hold(ctx, "key", 1, ratelimit.Waiting())
			r.Cancel()
			return err
		}
		var passed atomic.Int64
		for range 5 {
			go func() {
				if assert.NoError(t, hold(11*time.Second)) {
					passed.Add(1)
				}
			}()
			synctest.Wait()
		}
		assert.Equal(t, 60*time.Second, fakes.Take(t, l, 1).RetryAfter, "if the events happen")
		for range 2 {
			var turn *ratelimit.TurnError
			require.ErrorAs(t, hold(9*time.Second), &turn)
			assert.Equal(t, 10*time.Second, turn.Wait)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.EqualValues(t, 5, passed.Load())
	})
}

// blocked reports whether a caller waits for a key whose events are all held.
func blocked(t *testing.T, l ratelimit.Limiter, key string) bool {
	r, _, err := l.Reserve(ctx, key, 1)
	require.NoError(t, err)
	r.Cancel()
	return r == nil
}

// TestLimitersOfOneNameShareTheQueue: limiters with the same name and the same MemoryStore have one
// line of waiters.
func TestLimitersOfOneNameShareTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(ratelimit.MemoryStore)
		a := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithStore(s), ratelimit.WithName("test")))
		b := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithStore(s), ratelimit.WithName("test")))
		r := fakes.Held(t, a, "k", 4)
		w := fakes.WaitFor(t, b, "k", 5)
		synctest.Wait()
		assert.False(t, a.Allow("k"))
		require.NoError(t, r.Release(t.Context()))
		synctest.Wait()
		assert.True(t, w.Done.Load())
	})
}

// A full store refuses a waiter as it refuses a reservation.
func TestWaitHoldOnAFullStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: 1, RefuseNew: true})))
		fakes.Held(t, l, "seen", 5)
		_, _, err := l.Hold(t.Context(), "unseen", 1, ratelimit.Waiting())
		require.ErrorIs(t, err, ratelimit.ErrFull)
	})
}

// Any number of goroutines hold at most the limit at once.
func TestInFlightUnderConcurrency(t *testing.T) {
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 3, Timeout: time.Hour}, ratelimit.WithStore(store()), ratelimit.WithName("test")))
			var now, most, served atomic.Int64
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(i), 1))
					for range 200 {
						n := int64(1 + rnd.IntN(3))
						ctx, cancel := context.WithTimeout(ctx, time.Duration(rnd.IntN(200))*time.Microsecond)
						if rnd.IntN(2) == 0 {
							ctx = context.Background()
						}
						r, _, err := l.Hold(ctx, "k", int(n), ratelimit.Waiting())
						cancel()
						if err != nil {
							assert.ErrorIs(t, err, context.DeadlineExceeded)
							continue
						}
						sum := now.Add(n)
						for old := most.Load(); sum > old && !most.CompareAndSwap(old, sum); old = most.Load() {
						}
						runtime.Gosched()
						now.Add(-n)
						served.Add(1)
						assert.NoError(t, r.Release(context.Background()))
					}
				})
			}
			wg.Wait()
			assert.LessOrEqual(t, most.Load(), int64(3))
			assert.Positive(t, served.Load())
			r, _, err := l.Hold(ctx, "k", 3, ratelimit.Waiting())
			require.NoError(t, err, "everything is released")
			require.NoError(t, r.Release(ctx))
		})
	}
}

// TestWaitHoldLooksAgain: a clock that a test moves may fire its timers just before a waiter sets
// one, and show its new time only just after. So the waiter looks at the clock again. The timers of
// a stepclock, which this test uses, never fire.
func TestWaitHoldLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := stepclock.New()
		l := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithClock(clk)))
		fakes.Held(t, l, "k", 5)
		w := fakes.WaitFor(t, l, "k", 1)
		synctest.Wait()
		clk.Advance(time.Minute)
		time.Sleep(time.Second)
		synctest.Wait()
		require.True(t, w.Done.Load())
		require.NoError(t, w.Err)
	})
}

// TestWaitersOfALimitThatChangesLearnTheirTurn: turns of an InFlight are not known. Once the key
// has another limit, its turns are known, and a waiter whose deadline is before its turn fails at
// once.
func TestWaitersOfALimitThatChangesLearnTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := fakes.NewPlan(fakes.Five)
		l := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithLimits(plan.Lookup)))
		r := fakes.Held(t, l, "k", 5)
		first := fakes.WaitFor(t, l, "k", 1)
		synctest.Wait()
		near, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		failed := make(chan error, 1)
		go func() { failed <- l.Wait(near, "k") }()
		synctest.Wait()
		plan.Set(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
		require.NoError(t, r.Release(t.Context()))
		synctest.Wait()
		require.True(t, first.Done.Load())
		require.NoError(t, first.Err)
		require.Empty(t, failed, "what the first one holds may come back")
		require.NoError(t, first.R.Release(t.Context()))
		var turn *ratelimit.TurnError
		require.ErrorAs(t, <-failed, &turn)
		require.NoError(t, near.Err(), "at once")
	})
}
