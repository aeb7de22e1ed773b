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
)

// WaitAll of several keys waits as long as a Wait of one key with an All of their algorithms, and spends
// the same.
func TestWaitAll_Turn(t *testing.T) {
	ctx := context.Background()
	var parts []ratelimit.Algorithm
	for _, a := range accounted[:len(accounted)-1] { // without the All
		if _, ok := a.alg.(ratelimit.LeakyBucket); !ok { // WaitAll waits for room in its queue
			parts = append(parts, a.alg)
		}
	}
	for way, make := range ways {
		synctest.Test(t, func(t *testing.T) {
			rnd := newRand(t)
			for round := range 100 {
				var algs ratelimit.All
				var bounds []ratelimit.Bound
				store := ratelimit.NewMemoryStore()
				for i := range 1 + rnd.IntN(4) {
					alg := parts[rnd.IntN(len(parts))]
					algs = append(algs, alg)
					opts := append(make(i, store, alg), ratelimit.WithName(fmt.Sprint(i)))
					bounds = append(bounds, ratelimit.For(ratelimit.Must(ratelimit.New(alg, opts...)), fmt.Sprint("key ", i)))
				}
				alone := ratelimit.Must(ratelimit.New(algs))
				for step := range 20 {
					where := fmt.Sprintf("%s, round %d, step %d, %v", way, round, step, algs)
					n := rnd.IntN(8)
					if rnd.IntN(3) == 0 {
						want, _ := alone.Take(ctx, "k", n)
						got, err := ratelimit.TakeAll(ctx, n, bounds...)
						require.NoError(t, err)
						require.Equal(t, want, got, where)
						time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))
						continue
					}
					began := time.Now()
					var want, got time.Duration
					var wg sync.WaitGroup
					wg.Go(func() {
						assert.NoError(t, alone.WaitN(ctx, "k", n))
						want = time.Since(began)
					})
					wg.Go(func() {
						assert.NoError(t, ratelimit.WaitAll(ctx, n, bounds...))
						got = time.Since(began)
					})
					wg.Wait()
					require.Equal(t, want, got, where)
				}
			}
		})
	}
}

// Two keys in different orders, many waiters, and some that leave: all are served in the order of their
// arrival, no waiter waits for another one that waits for it, and nothing is spent by those that leave.
func TestWaitAll_Order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := ratelimit.PerSecond(1)
		a := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: rate})), "a")
		b := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 1, Window: time.Second})), "b")
		require.NoError(t, ratelimit.WaitAll(t.Context(), 1, a, b))
		began := time.Now()
		var wg sync.WaitGroup
		at := make([]time.Duration, 30)
		for i := range at {
			of := [][]ratelimit.Bound{{a, b}, {b, a}, {a}, {b}, {b, a, b.N(0)}}[i%5]
			wg.Go(func() {
				if i%3 == 2 {
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(1500*time.Millisecond, cancel)
					if assert.ErrorIs(t, ratelimit.WaitAll(ctx, 1, of...), context.Canceled) {
						at[i] = -1
					}
					return
				}
				assert.NoError(t, ratelimit.WaitAll(t.Context(), 1, of...))
				at[i] = time.Since(began)
			})
			synctest.Wait()
		}
		wg.Wait()
		next := map[string]time.Duration{"a": time.Second, "b": time.Second}
		for i, got := range at {
			keys := [][]string{{"a", "b"}, {"b", "a"}, {"a"}, {"b"}, {"b", "a"}}[i%5]
			want := time.Duration(-1)
			if i%3 != 2 {
				for _, key := range keys {
					want = max(want, next[key])
				}
				for _, key := range keys {
					next[key] = want + time.Second
				}
			}
			assert.Equal(t, want, got, "waiter %d", i)
		}
	})
}

// While WaitAll is the first in all lines, the keys grant nothing to others, and a settlement wakes it.
func TestWaitAll_Held(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1), Burst: 10})), "a")
		b := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Hour})), "b")
		hold, d, err := a.Hold(ctx, 10)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		began := time.Now()
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(ctx, time.Minute) // RetryAfter is four, but who knows what comes back
			defer cancel()
			done <- ratelimit.WaitAll(ctx, 4, a, b.N(1))
		}()
		synctest.Wait()
		assert.False(t, b.Allow(), "the key of a waiter that is the first")
		time.Sleep(time.Second)
		_, err = hold.Settle(ctx, 3)
		require.NoError(t, err)
		require.NoError(t, <-done)
		assert.Equal(t, time.Second, time.Since(began))
		assert.True(t, b.AllowN(9))
		assert.False(t, b.Allow())
		_, d, err = a.Hold(ctx, 3, ratelimit.HoldFor(time.Second), ratelimit.GiveBack())
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.NoError(t, ratelimit.WaitAll(ctx, 3, a))
		assert.Equal(t, 2*time.Second, time.Since(began), "a hold that ends by itself")
		assert.False(t, a.Allow())
	})
}

// The events of a LeakyBucket leave its queue before WaitAll returns, and go back if it is given up.
func TestWaitAll_LeakyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaky := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 3})), "k")
		window := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 100, Window: time.Hour})), "k")
		began := time.Now()
		for i := range 5 {
			require.NoError(t, ratelimit.WaitAll(t.Context(), 1, leaky, window))
			assert.Equal(t, time.Duration(i)*time.Second, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second/2, cancel)
		require.ErrorIs(t, ratelimit.WaitAll(ctx, 2, leaky, window), context.Canceled)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second/4)
		defer cancel()
		err := ratelimit.WaitAll(ctx, 1, leaky, window)
		var turn *ratelimit.TurnError
		require.ErrorAs(t, err, &turn)
		assert.Equal(t, ratelimit.TurnError{N: 1, Wait: time.Second / 2, Left: time.Second / 4}, *turn)
		d, err := window.Peek(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 95, d.Remaining)
		assert.ErrorAs(t, leaky.Wait(ctx), &turn, "no hold is left open")
		require.NoError(t, leaky.Wait(t.Context()))
		assert.Equal(t, 5*time.Second, time.Since(began), "as if the two had not come")
	})
}

// A WaitAll that is granted events that a LeakyBucket delays leaves the lines: whoever is behind it is
// served when there is room, and not when the delay is over.
func TestWaitAll_DelayHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		queue := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 4})), "queue")
		log := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 2, Window: time.Second})), "log")
		require.True(t, queue.AllowN(3))
		require.True(t, log.AllowN(2))
		began := time.Now()
		var both, other time.Duration
		var wg sync.WaitGroup
		wg.Go(func() {
			assert.NoError(t, ratelimit.WaitAll(ctx, 1, queue, log))
			both = time.Since(began)
		})
		synctest.Wait()
		wg.Go(func() {
			assert.NoError(t, log.Wait(ctx))
			other = time.Since(began)
		})
		wg.Wait()
		assert.Equal(t, 3*time.Second, both, "of its delay, two seconds are left when the log has room")
		assert.Equal(t, time.Second, other)
	})
}

// A WaitAll whose lookup of a limit panics, which an HTTP server survives, leaves the lines.
func TestWaitAll_LookupPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var panics atomic.Bool
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithLimits(
			func(context.Context, string) (ratelimit.Algorithm, error) {
				if panics.Load() {
					panic("no limit")
				}
				return nil, nil
			})))
		require.True(t, l.Allow("k"))
		go func() {
			defer func() { panics.Store(recover() == nil) }()
			_ = ratelimit.WaitAll(t.Context(), 1, ratelimit.For(l, "k"))
		}()
		synctest.Wait()
		panics.Store(true) // when it asks again
		time.Sleep(time.Second)
		synctest.Wait()
		require.False(t, panics.Load(), "the lookup has panicked")
		assert.NoError(t, l.Wait(t.Context(), "k"))
	})
}

// A hold that is to end earlier wakes whoever waits for its end.
func TestWaitAll_Extend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		for _, alg := range []ratelimit.Algorithm{
			ratelimit.InFlight{Limit: 1, Timeout: time.Hour},
			ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour},
		} {
			b := ratelimit.For(ratelimit.Must(ratelimit.New(alg)), "k", ratelimit.GiveBack())
			for name, wait := range map[string]func() error{
				"WaitAll": func() error { return ratelimit.WaitAll(ctx, 1, b) },
				"Wait":    func() error { return b.Wait(ctx) },
			} {
				require.NoError(t, b.Reset(ctx))
				hold, d, err := b.Hold(ctx, 1, ratelimit.HoldFor(time.Hour), ratelimit.GiveBack())
				require.NoError(t, err)
				require.True(t, d.Allowed)
				began := time.Now()
				done := make(chan error, 1)
				go func() { done <- wait() }()
				synctest.Wait()
				require.NoError(t, hold.Extend(ctx, time.Minute))
				require.NoError(t, <-done)
				assert.Equal(t, time.Minute, time.Since(began), "%s, %v", name, alg)
			}
		}
	})
}

// WaitAll fails at once, with the errors of Wait, if that is known.
func TestWaitAll_Errors(t *testing.T) {
	ctx := t.Context()
	clk := clock.NewMock()
	bucket := func(opts ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10}, append(opts, ratelimit.WithClock(clk), ratelimit.WithName("test"))...))
	}
	a, b := ratelimit.For(bucket(), "a"), ratelimit.For(bucket(), "b")
	require.True(t, a.AllowN(10))

	short := deadlineContext{ctx, clk.Now().Add(2 * time.Second)}
	var turn *ratelimit.TurnError
	require.ErrorAs(t, ratelimit.WaitAll(short, 3, b, a), &turn)
	assert.Equal(t, ratelimit.TurnError{N: 3, Wait: 3 * time.Second, Left: 2 * time.Second}, *turn)

	assert.ErrorIs(t, ratelimit.WaitAll(ctx, 11, a, b), ratelimit.ErrNever)
	assert.ErrorIs(t, ratelimit.WaitAll(ctx, 6, a, a), ratelimit.ErrNever, "twice the same key")
	blocked := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.Blocked{})), "k")
	assert.ErrorIs(t, ratelimit.WaitAll(ctx, 1, b, blocked), ratelimit.ErrNever)
	assert.ErrorIs(t, ratelimit.WaitAll(ctx, -1, a), ratelimit.ErrNegative)
	assert.ErrorIs(t, ratelimit.WaitAll(ctx, 1), ratelimit.ErrInvalid)

	shared := ratelimit.For(bucket(ratelimit.WithStore(newMapDB().store())), "k")
	err := ratelimit.WaitAll(ctx, 1, b, shared)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "bounds[1]")
	foreign := ratelimit.For(struct{ ratelimit.Limiter }{bucket()}, "k")
	assert.ErrorIs(t, ratelimit.WaitAll(ctx, 1, foreign), ratelimit.ErrInvalid)

	small := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(1), ratelimit.WithFullPolicy(ratelimit.RefuseUnseen))
	full := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithStore(small), ratelimit.WithName("test")))
	assert.ErrorIs(t, ratelimit.WaitAll(ctx, 1, ratelimit.For(full, "x"), ratelimit.For(full, "y")), ratelimit.ErrFull)

	require.True(t, full.Allow("x"))
	assert.ErrorIs(t, ratelimit.WaitAll(ctx, 1, ratelimit.For(full, "y")), ratelimit.ErrFull)

	assert.True(t, b.AllowN(10), "nothing was spent")
	assert.NoError(t, ratelimit.WaitAll(ctx, 0, a, b))
}

// Observers are told once of each key.
func TestWaitAll_Observed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []ratelimit.Observation
		observe := ratelimit.WithObserver(ratelimit.ObserverFunc(func(_ context.Context, o ratelimit.Observation) { seen = append(seen, o) }))
		a := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2}, observe)), "a")
		b := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(2), Capacity: 10}, observe)), "b")
		require.NoError(t, ratelimit.WaitAll(t.Context(), 1, a, a, b))
		require.NoError(t, ratelimit.WaitAll(t.Context(), 1, a, b.N(3)))
		require.Len(t, seen, 4)
		for i, want := range []struct {
			key    string
			n      int
			waited time.Duration
		}{{"a", 2, 0}, {"b", 1, 0}, {"a", 1, time.Second}, {"b", 3, time.Second}} {
			got := seen[i]
			assert.Equal(t, want.key, got.Key)
			assert.Equal(t, want.n, got.N)
			assert.Equal(t, want.n, got.Granted)
			assert.Equal(t, want.waited, got.Waited)
			assert.Equal(t, ratelimit.CallWait, got.Call)
		}
	})
}

// A clock that is moved by hand wakes a WaitAll, also one of two limiters that share a key.
func TestWaitAll_Mock(t *testing.T) {
	clk := clock.NewMock()
	var of []ratelimit.Bound
	store := ratelimit.WithStore(ratelimit.NewMemoryStore())
	for range 2 {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2}, store, ratelimit.WithName("test"), ratelimit.WithClock(clk)))
		of = append(of, ratelimit.For(l, "k"))
	}
	require.True(t, of[0].Allow())
	done := make(chan error)
	go func() { done <- ratelimit.WaitAll(t.Context(), 1, of...) }()
	for d, _ := of[0].Peek(t.Context()); d.Allowed; d, _ = of[0].Peek(t.Context()) { // until it stands in line
		runtime.Gosched()
	}
	for {
		select {
		case err := <-done:
			require.NoError(t, err)
			return
		default:
			clk.Add(time.Second)
		}
	}
}
