package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

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

// TestWaitThatIsGrantedKeepsNothing: it does not stand in line, and copies nothing.
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
		assert.Zero(t, ratelimit.Lines(l))
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

// TestLinesEnd: no key keeps a line without waiters, whatever the waiters did, and even
// if the key is not used again.
func TestLinesEnd(t *testing.T) {
	l, _, clk := fakes.Stepped(t, ratelimit.SlidingWindow{Limit: 2, Window: time.Second})
	for i := range 1000 {
		key := fmt.Sprint(i)
		var line []*ratelimit.Reservation
		for range 4 {
			r, _, err := l.Reserve(t.Context(), key, 1)
			require.NoError(t, err)
			line = append(line, r)
		}
		for j := range i % 5 {
			line[(i+j)%4].Cancel()
		}
	}
	clk.Advance(time.Hour)
	assert.NotZero(t, ratelimit.Lines(l))
	for i := range 20_000 { // reservations of other keys remove lines that are over
		_, _, err := l.Reserve(t.Context(), fmt.Sprint("other ", i%400), 1)
		require.NoError(t, err)
	}
	clk.Advance(10 * time.Hour)
	assert.LessOrEqual(t, ratelimit.Lines(l), int64(400+100))
	for key, ln := range ratelimit.LinesOf(l) {
		assert.True(t, ln.Over(kernel.InstantOf(clk.Now())), key)
	}
	l, _, _ = fakes.Stepped(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	r, _, err := l.Reserve(t.Context(), "key", 1)
	require.NoError(t, err)
	r.Cancel()
	assert.Zero(t, ratelimit.Lines(l))
	_, _, err = l.Reserve(t.Context(), "key", 1)
	require.NoError(t, err)
	require.NoError(t, l.Reset(t.Context(), "key"))
	assert.Zero(t, ratelimit.Lines(l))
}

// TestFailedCancelIsTold checks that observers learn of a Cancel that the store has failed, and
// callers of a Settle that is one.
func TestFailedCancelIsTold(t *testing.T) {
	for name, policy := range map[string]ratelimit.FailurePolicy{"open": ratelimit.FailOpen, "closed": ratelimit.FailClosed, "fallback": ratelimit.Fallback(ratelimit.Must(ratelimit.New(ratelimit.Unlimited{})))} {
		t.Run(name, func(t *testing.T) {
			var seen []ratelimit.Observation
			store := &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore)}
			store.Drops.Store(true)
			l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clock.NewMock()), ratelimit.WithFailurePolicy(policy), ratelimit.WithFailureLog(nil),
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

// TestLinesGiveMemoryBack: the memory of a flood of keys with reservations is released
// while reservations of a single key follow.
func TestLinesGiveMemoryBack(t *testing.T) {
	budget.Alone(t)
	const many = 100_000
	l, store, clk := fakes.Stepped(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	var m runtime.MemStats
	heap := func() int64 {
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, total := heap(), m.TotalAlloc
	for i := range many {
		_, _, err := l.Reserve(t.Context(), fmt.Sprint(i), 1)
		require.NoError(t, err)
	}
	runtime.ReadMemStats(&m)
	assert.Less(t, (m.TotalAlloc-total)/many, uint64(3000), "bytes for each, which do not depend on how many others there are")
	for range many {
		clk.Advance(time.Minute)
		_, _, err := l.Reserve(t.Context(), "key", 1)
		require.NoError(t, err)
	}
	store.Shrink()
	assert.LessOrEqual(t, ratelimit.Lines(l), int64(1))
	assert.Less(t, heap()-before, int64(1<<20))
	runtime.KeepAlive(l)
}

// TestBusyLineStaysShort: a line that is never over keeps no reservation whose turn has passed,
// although some are cancelled.
func TestBusyLineStaysShort(t *testing.T) {
	l, _, clk := fakes.Stepped(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	for i := range 100 {
		r, _, err := l.Reserve(t.Context(), "key", 1)
		require.NoError(t, err)
		if i%10 == 5 {
			r.Cancel()
		} else if i > 10 {
			clk.Advance(time.Second)
		}
	}
	assert.LessOrEqual(t, ratelimit.LinesOf(l)["key"].Len(), 15)
}

// TestCancelThatFails: if it is unknown whether the store has cancelled, nothing is
// given back twice.
func TestCancelThatFails(t *testing.T) {
	for _, alg := range append([]ratelimit.Algorithm{
		ratelimit.FixedWindow{Limit: 10, Window: time.Second},
		ratelimit.All{ratelimit.FixedWindow{Limit: 10, Window: time.Second}, ratelimit.RollingWindow{Quota: 10, Window: time.Second, Period: time.Second}},
	}, fakes.EveryWidth...) {
		store := &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore)}
		clk := stepclock.New()
		l, err := ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk))
		require.NoError(t, err)
		require.True(t, l.AllowN("key", 10))
		var line []*ratelimit.Reservation
		for range 3 {
			r, _, err := l.Reserve(t.Context(), "key", 3)
			require.NoError(t, err)
			line = append(line, r)
		}
		stays := line[0].Delay()
		store.Fails.Store(true)
		line[2].Cancel()
		store.Fails.Store(false)
		for _, r := range line[1:] {
			r.Cancel()
		}
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.GreaterOrEqual(t, d.RetryAfter, stays, "%T", alg)
		r, _, err := l.Reserve(t.Context(), "key", 3)
		require.NoError(t, err)
		before := r.Delay()
		r.Cancel()
		r, _, err = l.Reserve(t.Context(), "key", 3)
		require.NoError(t, err)
		assert.Equal(t, before, r.Delay(), "%T: later reservations are cancelled", alg)
		r.Cancel()
		clk.Advance(stays)
		d, err = l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.LessOrEqual(t, d.Remaining, 7, "%T: the first one counts", alg)
	}
}

// TestCancelAfterOneThatFails: after a cancellation whose outcome is unknown, those of other
// reservations are sent, except on rings. At most the one that failed stays.
func TestCancelAfterOneThatFails(t *testing.T) {
	const limit, many = 10, 30
	for name, tt := range map[string]struct {
		alg   ratelimit.Algorithm
		rings bool
	}{
		"fixed":        {ratelimit.FixedWindow{Limit: limit, Window: time.Second}, false},
		"log":          {ratelimit.SlidingLog{Limit: limit, Window: time.Second}, false},
		"bucket":       {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(limit)}, false},
		"all":          {ratelimit.All{ratelimit.FixedWindow{Limit: limit, Window: time.Second}, ratelimit.SlidingLog{Limit: limit, Window: time.Second}}, false},
		"all, rolling": {ratelimit.All{ratelimit.FixedWindow{Limit: limit, Window: time.Second}, ratelimit.RollingWindow{Quota: limit, Window: time.Second, Period: time.Second}}, true},
		"sliding":      {ratelimit.SlidingWindow{Limit: limit, Window: time.Second}, true},
	} {
		for _, executed := range []bool{false, true} {
			for _, failing := range []int{0, many / 2, many - 1} {
				store := &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore)}
				l, err := ratelimit.New(tt.alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New()))
				require.NoError(t, err)
				require.True(t, l.AllowN("key", limit))
				before, err := l.Peek(t.Context(), "key")
				require.NoError(t, err)
				var line []*ratelimit.Reservation
				for range many {
					r, _, err := l.Reserve(t.Context(), "key", 1)
					require.NoError(t, err)
					line = append(line, r)
				}
				turn := line[failing].Delay()
				store.Fails.Store(true)
				store.Drops.Store(!executed)
				line[failing].Cancel()
				store.Fails.Store(false)
				store.Drops.Store(false)
				calls := store.Calls.Load()
				for _, r := range slices.Backward(line) {
					r.Cancel()
				}
				if tt.rings {
					assert.Equal(t, calls, store.Calls.Load(), name)
					continue
				}
				assert.Greater(t, store.Calls.Load(), calls, name)
				next, _, err := l.Reserve(t.Context(), "key", 1)
				require.NoError(t, err)
				assert.LessOrEqual(t, next.Delay(), turn+time.Second/limit, "%s: after %d of %d", name, failing, many)
				assert.GreaterOrEqual(t, next.Delay(), before.RetryAfter, "%s: nothing is given back twice", name)
				if sent := calls > 0; sent && !executed { // a bucket waits for those behind
					assert.GreaterOrEqual(t, next.Delay(), turn, "%s: %d is still reserved", name, failing)
				}
			}
		}
	}
}

// TestManyCancels: a long line that is cancelled together is sent in several calls, each of
// which bounds the time that the store takes. None is lost.
func TestManyCancels(t *testing.T) {
	const many = 10 * ratelimit.ManyTogether
	for _, alg := range append([]ratelimit.Algorithm{
		ratelimit.FixedWindow{Limit: 10, Window: time.Second},
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.FixedWindow{Limit: 10, Window: time.Second}, ratelimit.SlidingLog{Limit: 10, Window: time.Second}},
	}, fakes.EveryWidth...) {
		synctest.Test(t, func(t *testing.T) {
			store := &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore), Gate: make(chan struct{})}
			l, err := ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"))
			require.NoError(t, err)
			require.True(t, l.Allow("key"))
			before, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range many {
				r, _, err := l.Reserve(t.Context(), "key", 1)
				if errors.Is(err, ratelimit.ErrQueueFull) {
					break
				}
				require.NoError(t, err)
				wg.Go(r.Cancel)
			}
			synctest.Wait()
			close(store.Gate)
			wg.Wait()
			assert.LessOrEqual(t, store.Most.Load(), int64(ratelimit.ManyTogether))
			after, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			assert.Equal(t, before, after, "%T", alg)
		})
	}
}

// TestCancelsShareCalls: concurrent cancellations share a call of the store.
func TestCancelsShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore), Gate: make(chan struct{})}
		l, err := ratelimit.New(ratelimit.SlidingWindow{Limit: 2, Window: time.Second}, ratelimit.WithStore(store), ratelimit.WithName("test"))
		require.NoError(t, err)
		before, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 100 {
			r, _, err := l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			wg.Go(r.Cancel)
		}
		synctest.Wait()
		close(store.Gate)
		wg.Wait()
		assert.LessOrEqual(t, store.Calls.Load(), int64(3))
		after, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, before.Remaining, after.Remaining)
	})
}

// TestUndoOfSeveralLimits: a call that has cancelled something is the last one.
func TestUndoOfSeveralLimits(t *testing.T) {
	limits := &fakes.OwnLimits{}
	limits.Set("key", ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)})
	limits.Set("other", ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	l := ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}, ratelimit.WithLimits(limits.Lookup), ratelimit.WithClock(stepclock.New())))
	claims := make(map[string]*ratelimit.Reservation)
	for range 2 {
		for _, key := range []string{"key", "other"} {
			r, _, err := l.Reserve(t.Context(), key, 1)
			require.NoError(t, err)
			claims[key] = r
		}
	}
	cancelled, err := ratelimit.Undo("key", claims["key"], claims["other"])
	require.NoError(t, err)
	assert.True(t, cancelled)
}

// Waiters of many keys, however they leave, leave nothing in the queues.
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
