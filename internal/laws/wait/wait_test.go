package wait_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// The tests in this file wait, in the virtual time of a synctest bubble and
// with the default clock.

// A mock may be ahead of the real time, in which contexts end. A call that need not wait
// is granted all the same.
func TestWaitWithAMockThatIsAhead(t *testing.T) {
	clk := clock.NewMock()
	clk.Set(time.Now().AddDate(10, 0, 0))
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithClock(clk)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	require.NoError(t, l.Wait(ctx, "key"))
	require.ErrorIs(t, l.Wait(ctx, "key"), context.DeadlineExceeded)
}

func TestWaitersAreServedInOrder(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"TokenBucket":   ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 1},
		"interval":      ratelimit.TokenBucket{Rate: ratelimit.Every(500 * time.Millisecond), Refill: ratelimit.RefillInterval},
		"LeakyBucket":   ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(2), Capacity: 10},
		"FixedWindow":   ratelimit.FixedWindow{Limit: 1, Window: 500 * time.Millisecond},
		"SlidingLog":    ratelimit.SlidingLog{Limit: 1, Window: 500 * time.Millisecond},
		"RollingWindow": ratelimit.RollingWindow{Quota: 1, Window: 500 * time.Millisecond, Period: 500 * time.Millisecond},
		"All":           ratelimit.All{ratelimit.SlidingLog{Limit: 1, Window: 500 * time.Millisecond}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(alg))
				begin := time.Now()
				var mu sync.Mutex // protects served
				var served []int
				for i := range 5 {
					go func() {
						assert.NoError(t, l.Wait(t.Context(), "key"))
						mu.Lock()
						defer mu.Unlock()
						served = append(served, i)
						assert.Equal(t, time.Duration(i)*500*time.Millisecond, time.Since(begin))
					}()
					synctest.Wait() // it is in the line now
					if i > 0 && name != "LeakyBucket" {
						assert.False(t, l.Allow("key"), "ahead of waiter %d", i)
					}
				}
				time.Sleep(10 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				assert.Equal(t, []int{0, 1, 2, 3, 4}, served)
			})
		})
	}
}

func TestWaitTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
		require.NoError(t, l.Wait(t.Context(), "key"))
		begin := time.Now()

		near, cancel := context.WithTimeout(t.Context(), time.Second-1)
		defer cancel()
		err := l.Wait(near, "key")
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "1s")
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout(), "as package net asks")
		assert.Zero(t, time.Since(begin), "it should return at once")

		// A deadline at the very instant of the turn is not too near.
		just, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		assert.NoError(t, l.Wait(just, "key"), "and the failed one should have cost nothing")
		assert.Equal(t, time.Second, time.Since(begin))
	})
}

func TestWaiterThatLeavesGivesItsPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
		require.True(t, l.Allow("key"))
		leaving, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { left <- l.Wait(leaving, "key") }()
		synctest.Wait()
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, d.RetryAfter, "the waiter is ahead")
		leave()
		require.ErrorIs(t, <-left, context.Canceled)
		d, err = l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, time.Second, d.RetryAfter, "the place is free again")
	})
}

func TestBoundedQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(2), Capacity: 10}))
		begin := time.Now()
		var mu sync.Mutex // protects what follows
		full := 0
		var left []time.Duration
		for range 20 {
			go func() {
				err := l.Wait(t.Context(), "key")
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, ratelimit.ErrQueueFull) {
					full++
					assert.Zero(t, time.Since(begin), "at once")
					return
				}
				assert.NoError(t, err)
				left = append(left, time.Since(begin))
			}()
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, 10, full)
		require.Len(t, left, 10)
		for i, at := range left {
			assert.Equal(t, time.Duration(i)*500*time.Millisecond, at)
		}
	})
}

// Wait follows the clock that was injected.
func TestWaitFollowsTheInjectedClock(t *testing.T) {
	mock := clock.NewMock()
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithClock(mock)))
	require.NoError(t, l.Wait(ctx, "key"))

	near, cancel := mock.WithTimeout(ctx, time.Hour-1)
	defer cancel()
	require.ErrorIs(t, l.Wait(near, "key"), context.DeadlineExceeded)

	done := make(chan error)
	go func() { done <- l.Wait(ctx, "key") }()
	for { // until the waiter is in the line
		d, err := l.Peek(ctx, "key")
		require.NoError(t, err)
		if d.RetryAfter == 2*time.Hour {
			break
		}
		runtime.Gosched()
	}
	for waiting := true; waiting; {
		mock.Add(10 * time.Minute)
		select {
		case err := <-done:
			require.NoError(t, err)
			waiting = false
		default:
		}
	}
	assert.False(t, mock.Now().Before(time.Unix(0, 0).Add(time.Hour)))
}

// Wait leaves no goroutine behind: synctest fails the test if one is blocked
// when it ends.
func TestWaitLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))
		leaving, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { _ = l.Wait(leaving, "key") })
		}
		synctest.Wait()
		leave()
		wg.Wait()
	})
}

// TestWaitForEventsInFlight: nobody knows when events in flight are released, so a Wait for them
// does not fail before its context ends.
func TestWaitForEventsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
		require.NoError(t, err)
		require.True(t, l.Allow("key"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		assert.Equal(t, context.DeadlineExceeded, l.Wait(ctx, "key"))
		assert.Equal(t, time.Minute, time.Since(began))

		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		require.ErrorIs(t, l.WaitN(ctx, "key", 2), ratelimit.ErrNever)
		assert.Zero(t, time.Since(began))
	})
}

// A countingClock counts how often it is read.
type countingClock struct {
	clock.Clock
	reads atomic.Int64
}

func (c *countingClock) Now() time.Time {
	c.reads.Add(1)
	return c.Clock.Now()
}

func (c *countingClock) Since(t time.Time) time.Duration {
	c.reads.Add(1)
	return c.Clock.Since(t)
}

// A settableClock is a countingClock around a mock.
type settableClock struct {
	*countingClock
	mock *clock.Mock
}

func (c settableClock) Set(t time.Time) { c.mock.Set(t) }

// TestWaitersSleep: whatever the clock, those who wait neither look at it nor allocate anything until
// their turn.
func TestWaitersSleep(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"one after the other": ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
		"in flight":           ratelimit.InFlight{Limit: 1, Timeout: time.Hour},
	} {
		for kind, open := range map[string]func(c *countingClock) (clk clock.Clock, pass func(time.Duration)){
			"system": func(c *countingClock) (clock.Clock, func(time.Duration)) {
				c.Clock = clock.New()
				return c, time.Sleep
			},
			"mock": func(c *countingClock) (clock.Clock, func(time.Duration)) {
				mock := clock.NewMock()
				c.Clock = mock
				return settableClock{c, mock}, mock.Add
			},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := new(countingClock)
					clk, pass := open(c)
					l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
					require.True(t, l.Allow("key"))
					const n = 1000
					ctx, leave := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					var served atomic.Int64
					for range n {
						wg.Go(func() {
							if l.Wait(ctx, "key") == nil {
								served.Add(1)
							}
						})
					}
					synctest.Wait()
					time.Sleep(45 * time.Second) // after which a mock is looked at no more
					synctest.Wait()
					var before, after runtime.MemStats
					reads := c.reads.Load()
					runtime.ReadMemStats(&before)
					for range 59 {
						pass(time.Minute)
						synctest.Wait()
					}
					runtime.ReadMemStats(&after)
					assert.Less(t, after.Mallocs-before.Mallocs, uint64(n))
					assert.Equal(t, reads, c.reads.Load())
					pass(time.Minute)
					synctest.Wait()
					assert.EqualValues(t, 1, served.Load())
					assert.Less(t, c.reads.Load(), reads+40)
					leave()
					wg.Wait()
				})
			})
		}
	}
}

// Requests are denied behind Waits of a queue, also while what was reserved before them leaves it.
func TestTakeBehindWaitersOfAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(100), Capacity: 20}))
		for range 5 {
			_, d, err := l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			require.True(t, d.Allowed)
		}
		var waits sync.WaitGroup
		for range 2 {
			waits.Go(func() { assert.NoError(t, l.Wait(t.Context(), "key")) })
		}
		synctest.Wait()
		for at := range 17 {
			d, err := l.Take(t.Context(), "key", 1)
			require.NoError(t, err)
			require.False(t, d.Allowed, "%d ms", at*3)
			time.Sleep(3 * time.Millisecond)
		}
		waits.Wait()
	})
}
