package ratelimit_test

import (
	"context"
	"fmt"
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
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// This file has what a reservation costs, and what happens to it when the store fails, or another
// process cancels it. How reservations are cancelled is in internal/laws/decide.

// TestReservationsAreSmall: a reservation takes the same memory whatever its key's
// state is.
func TestReservationsAreSmall(t *testing.T) {
	budget.Alone(t)
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)},
		ratelimit.SlidingLog{Limit: 5000, Window: time.Minute},
		ratelimit.SlidingWindow{Limit: 5000, Window: time.Minute, Segments: 60},
		ratelimit.RollingWindow{Quota: 100_000, Window: 24 * time.Hour, Period: time.Minute},
	} {
		l, _, clk := fakes.Stepped(t, alg)
		for l.Allow("key") {
			clk.Advance(time.Millisecond)
		}
		const many = 10_000
		line := make([]*ratelimit.Reservation, many)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range line {
			var err error
			line[i], _, err = l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		assert.Less(t, (int64(after.HeapAlloc)-int64(before.HeapAlloc))/many, int64(640), "%T: bytes for each", alg)
		runtime.KeepAlive(line)
	}
}

// TestWaitThatIsGrantedKeepsNothing: a Wait that is granted at once does not stand in line, and
// copies nothing.
func TestWaitThatIsGrantedKeepsNothing(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1e9},
		ratelimit.FixedWindow{Limit: 1e9, Window: time.Hour},
		ratelimit.SlidingWindow{Limit: 1e9, Window: time.Hour, Segments: 6},
	} {
		l, _, _ := fakes.Stepped(t, alg)
		require.NoError(t, l.Wait(t.Context(), "key"))
		ctx := context.Background()
		assert.Zero(t, testing.AllocsPerRun(100, func() { _ = l.Wait(ctx, "key") }), "%T", alg)
	}
	l, _, clk := fakes.Stepped(t, ratelimit.SlidingLog{Limit: 20_000, Window: time.Hour})
	for range 10_000 {
		clk.Advance(1)
		require.True(t, l.Allow("key"))
	}
	ctx := context.Background()
	assert.Less(t, testing.AllocsPerRun(100, func() { _ = l.Wait(ctx, "key") }), 1.0)
}

// TestLogKeepsItsRate: waiters on a log that is full get all of its rate.
func TestLogKeepsItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, waiters = 2000, 64
		l := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: limit, Window: time.Second}))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second-1)
		defer cancel()
		var granted atomic.Int64
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				for l.Wait(ctx, "key") == nil {
					granted.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 5*limit, granted.Load())
	})
}

// TestFailedCancelIsTold: if the store fails, observers see the failure of a Cancel, and the caller
// of a Settle that cancels gets an error.
func TestFailedCancelIsTold(t *testing.T) {
	for name, policy := range map[string]ratelimit.FailurePolicy{
		"open":     ratelimit.FailOpen(),
		"closed":   ratelimit.FailClosed(),
		"fallback": ratelimit.Fallback(ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}))),
	} {
		t.Run(name, func(t *testing.T) {
			var seen []ratelimit.Observation
			store := &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore)}
			store.Drops.Store(true)
			l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStore(store),
				ratelimit.WithName("test"), ratelimit.WithClock(clock.NewMock()), ratelimit.WithFailurePolicy(policy),
				ratelimit.WithFailureLog(nil),
				ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) { seen = append(seen, o) }))
			require.NoError(t, err)
			last := func() ratelimit.Observation { return seen[len(seen)-1] }
			require.True(t, l.Allow("key"))

			r, _, err := l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			r.Cancel()
			assert.Equal(t, ratelimit.CallSettle, last().Call)
			assert.Equal(t, ratelimit.Failed, last().Outcome)
			require.ErrorContains(t, last().Err, "the request was lost")

			r, _, err = l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			d, err := r.Settle(t.Context(), 0)
			require.ErrorContains(t, err, "the request was lost")
			assert.True(t, d.Degraded)
			assert.Equal(t, name == "open", d.Allowed)
			assert.Equal(t, ratelimit.CallSettle, last().Call)
			assert.Equal(t, ratelimit.Failed, last().Outcome)

			store.Drops.Store(false)
			r, _, err = l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			r.Cancel()
			assert.Equal(t, ratelimit.Counted, last().Outcome)
			assert.NoError(t, last().Err)
		})
	}
}

// TestCancelThatFails: if it is unknown whether the store has cancelled a reservation, no events
// are given back twice, and the other reservations can still be cancelled.
func TestCancelThatFails(t *testing.T) {
	for _, alg := range append([]ratelimit.Algorithm{
		ratelimit.FixedWindow{Limit: 10, Window: time.Second},
		ratelimit.All{ratelimit.FixedWindow{Limit: 10, Window: time.Second}, ratelimit.RollingWindow{Quota: 10, Window: time.Second, Period: time.Second}},
	}, fakes.EveryWidth...) {
		for _, executed := range []bool{false, true} {
			store := &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore)}
			l, err := ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New()))
			require.NoError(t, err)
			require.True(t, l.AllowN("key", 10))
			var line []*ratelimit.Reservation
			reserve := func() {
				r, _, err := l.Reserve(t.Context(), "key", 3)
				require.NoError(t, err)
				line = append(line, r)
			}
			before := fakes.Peek(t, l)
			reserve()
			alone := fakes.Peek(t, l)
			reserve()
			reserve()
			store.Fails.Store(true)
			store.Drops.Store(!executed)
			line[0].Cancel()
			store.Fails.Store(false)
			store.Drops.Store(false)
			for _, r := range line {
				r.Cancel()
			}
			if executed {
				assert.Equal(t, before, fakes.Peek(t, l), "%T", alg)
			} else {
				assert.Equal(t, alone, fakes.Peek(t, l), "%T: it is still reserved", alg)
			}
		}
	}
}

// TestManyCancels cancels a long line of reservations from many goroutines at once.
func TestManyCancels(t *testing.T) {
	const many = 2000
	for _, alg := range append([]ratelimit.Algorithm{
		ratelimit.FixedWindow{Limit: 10, Window: time.Second},
		ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
			ratelimit.FixedWindow{Limit: 10, Window: time.Second},
			ratelimit.SlidingLog{Limit: 10, Window: time.Second},
		},
	}, fakes.EveryWidth...) {
		l, _, _ := fakes.Stepped(t, alg)
		n := fakes.Peek(t, l).Limit
		if _, queue := alg.(ratelimit.LeakyBucket); queue {
			n = 1
		}
		require.True(t, l.AllowN("key", n))
		before := fakes.Peek(t, l)
		var line []*ratelimit.Reservation
		for range many {
			r, d, err := l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			if !d.Allowed {
				break // the queue is full
			}
			line = append(line, r)
		}
		var all sync.WaitGroup
		for _, r := range line {
			all.Go(r.Cancel)
		}
		all.Wait()
		assert.Equal(t, before, fakes.Peek(t, l), "%T", alg)
	}
}

// TestReservationsThatCannotBeCancelled: a key has at most 4,096 turns ahead that can be cancelled.
// If there are more, the oldest turns can no longer be cancelled, and after them an open hold ends.
func TestReservationsThatCannotBeCancelled(t *testing.T) {
	l, _, _ := fakes.Stepped(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	held, _, err := l.Hold(t.Context(), "key", 1)
	require.NoError(t, err)
	var line []*ratelimit.Reservation
	for range 4100 {
		r, _, err := l.Reserve(t.Context(), "key", 1)
		require.NoError(t, err)
		line = append(line, r)
	}
	for _, r := range line {
		r.Cancel()
	}
	assert.Equal(t, 5*time.Second, fakes.Peek(t, l).RetryAfter)
	held.Cancel()
	next, _, err := l.Reserve(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, 5*time.Second, next.Delay(), "nothing comes before the four that stay")
	next.Cancel()
	assert.Equal(t, 5*time.Second, fakes.Peek(t, l).ResetAfter)
}

// TestReservationOfAnotherProcess: another process can cancel a reservation by its Token, until its
// turn.
func TestReservationOfAnotherProcess(t *testing.T) {
	l, _, clk := fakes.Stepped(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	require.True(t, l.Allow("key"))
	for _, wait := range []time.Duration{time.Second - 1, time.Second} {
		before := fakes.Peek(t, l)
		require.Equal(t, time.Second, before.RetryAfter)
		r, _, err := l.Reserve(t.Context(), "key", 1)
		require.NoError(t, err)
		clk.Advance(wait)
		other, err := l.Resume(t.Context(), "key", r.Token())
		require.NoError(t, err)
		require.NoError(t, other.Extend(t.Context(), time.Hour), "it does not become a hold")
		other.Cancel()
		if d := fakes.Peek(t, l); wait < time.Second {
			assert.Equal(t, before.RetryAfter-wait, d.RetryAfter)
			clk.Advance(1)
			require.True(t, l.Allow("key"))
		} else {
			assert.Equal(t, time.Second, d.RetryAfter, "it has happened")
		}
	}
}

// Waiters of many keys leave nothing behind in the lines, however their waits end.
func TestQueuesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Minute}))
		for i := range 300 {
			key := fmt.Sprint(i)
			r, _, err := l.Hold(t.Context(), key, 1)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for range 3 {
				go func() { _ = l.Wait(ctx, key) }()
			}
			if i%2 == 0 {
				synctest.Wait()
				require.NoError(t, r.Release(t.Context()))
			}
		}
		synctest.Wait()
		assert.Equal(t, int64(750), ratelimit.Waiters(l))
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Zero(t, ratelimit.Waiters(l))
	})
}
