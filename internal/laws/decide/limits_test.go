package decide_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// These tests are about limits of keys (WithLimits) that change.

func TestLimitsOfKeys(t *testing.T) {
	l, own, s, clk := fakes.Varying(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)})
	own.Set("gold", ratelimit.TokenBucket{Rate: ratelimit.PerHour(5)})
	own.Set("both", ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(9)}, ratelimit.FixedWindow{Limit: 4, Window: time.Hour}})
	count := func(key string) (n int) {
		for l.Allow(key) {
			n++
		}
		return n
	}
	assert.Equal(t, 2, count("free"))
	assert.Equal(t, 5, count("gold"))
	assert.Equal(t, 4, count("both"))
	assert.Nil(t, l.Describe().Algorithm, "it has no one limit")
	for key, want := range map[string]ratelimit.Algorithm{
		"free": ratelimit.TokenBucket{Rate: ratelimit.PerHour(2), Burst: 2},
		"gold": ratelimit.TokenBucket{Rate: ratelimit.PerHour(5), Burst: 5},
		"both": ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(9), Burst: 9}, ratelimit.FixedWindow{Limit: 4, Window: time.Hour}},
	} {
		alg, err := l.Describe().AlgorithmOf(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, want, alg)
	}
	alg, err := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})).Describe().AlgorithmOf(t.Context(), "key")
	require.NoError(t, err)
	assert.Equal(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3), Burst: 3}, alg)
	alg, err = fakes.Hidden{Limiter: l}.Describe().AlgorithmOf(t.Context(), "key")
	require.NoError(t, err)
	assert.Nil(t, alg)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Describe().AlgorithmOf(ended, "key")
	require.ErrorIs(t, err, context.Canceled)
	_, err = l.Describe().AlgorithmOf(context.Context(nil), "key")
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	require.ErrorContains(t, err, "context.Background() is one")
	d, err := l.Take(t.Context(), "gold", 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: 5, RetryAfter: 12 * time.Minute, ResetAfter: time.Hour}, d)
	assert.ErrorContains(t, l.WaitN(t.Context(), "gold", 6), "a limit of 5")
	_, d, err = l.Reserve(t.Context(), "gold", 6)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Never, d.RetryAfter)
	require.NoError(t, l.Reset(t.Context(), "gold"))
	assert.True(t, l.AllowN("gold", 5))
	fakes.Check(t, s, 0)
	clk.Advance(2 * time.Hour)
	s.Shrink()
	assert.Zero(t, s.Len())
}

// TestLimitsAtTheCap: a full store judges each key by the limit of that key.
func TestLimitsAtTheCap(t *testing.T) {
	own, s, clk := &fakes.OwnLimits{}, &ratelimit.MemoryStore{MaxKeys: 2}, stepclock.New()
	l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(s),
		ratelimit.WithName("test"), ratelimit.WithClock(clk), ratelimit.WithLimits(own.Lookup))
	require.NoError(t, err)
	own.Set("gold", ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	require.True(t, l.AllowN("gold", 50))
	require.True(t, l.AllowN("free", 2))
	require.True(t, l.Allow("new"))
	d, err := l.Peek(t.Context(), "gold")
	require.NoError(t, err)
	assert.Equal(t, 100, d.Remaining, "it had the most remaining")
	assert.False(t, l.Allow("free"))
	fakes.Check(t, s, 0)
}

func TestLimitsThatFail(t *testing.T) {
	down := errors.New("the store of limits is down")
	for _, policy := range []ratelimit.FailurePolicy{
		ratelimit.FailOpen(),
		ratelimit.FailClosed(),
		ratelimit.Fallback(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(7)}))),
	} {
		l, own, s, _ := fakes.Varying(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithFailurePolicy(policy), ratelimit.WithFailureLog(nil))
		own.Err = down
		d, err := l.Take(t.Context(), "key", 1)
		require.ErrorIs(t, err, down)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 2, Remaining: 1, ResetAfter: 30 * time.Minute,
			Degraded: true, StandIn: true}, d, "whatever the policy")
		assert.Equal(t, 1, s.Len())
		own.Err = nil
		own.Set("key", ratelimit.TokenBucket{})
		_, err = l.Take(t.Context(), "key", 1)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, `the limit of key ""… (3 bytes)`)
		_, err = l.Describe().AlgorithmOf(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		own.Set("key", (*ratelimit.TokenBucket)(nil))
		_, err = l.Take(t.Context(), "key", 1)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
	_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithLimits(nil))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	_, err = ratelimit.New(ratelimit.TokenBucket{}, ratelimit.WithLimits((&fakes.OwnLimits{}).Lookup))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}

// TestReservationAcrossAChange: a reservation was made under a limit with other parameters. Its
// events stay spent.
func TestReservationAcrossAChange(t *testing.T) {
	for _, change := range []ratelimit.Algorithm{
		ratelimit.FixedWindow{Limit: 9, Window: time.Hour},
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)},
		ratelimit.All{ratelimit.FixedWindow{Limit: 9, Window: time.Hour}, ratelimit.SlidingLog{Limit: 4, Window: time.Hour}},
	} {
		l, own, s, _ := fakes.Varying(t, ratelimit.FixedWindow{Limit: 2, Window: time.Hour})
		require.True(t, l.AllowN("key", 2))
		r, _, err := l.Reserve(t.Context(), "key", 2)
		require.NoError(t, err)
		own.Set("key", change)
		before, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		r.Cancel()
		after, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		if _, similar := change.(ratelimit.FixedWindow); similar { // nothing was granted under it
			assert.Equal(t, 7, after.Remaining)
		} else {
			assert.Equal(t, before, after, "%+v", change)
		}
		fakes.Check(t, s, 0)

		own.Set("key", nil)
		require.NoError(t, l.Reset(t.Context(), "key"))
		require.True(t, l.Allow("key"))
		r, _, err = l.Reserve(t.Context(), "key", 2)
		require.NoError(t, err)
		r.Cancel()
		assert.True(t, l.Allow("key"), "without a change, they are given back")
	}
}

// TestChangesUnderConcurrency changes a limit while many goroutines make calls. Together, they get
// as many events as the highest limit allows.
func TestChangesUnderConcurrency(t *testing.T) {
	for _, withLimit := range []func(n int) ratelimit.Algorithm{
		func(n int) ratelimit.Algorithm { return ratelimit.FixedWindow{Limit: n, Window: time.Hour} },
		func(n int) ratelimit.Algorithm { return ratelimit.SlidingWindow{Limit: n, Window: time.Hour} },
		func(n int) ratelimit.Algorithm { return ratelimit.SlidingLog{Limit: n, Window: time.Hour} },
		func(n int) ratelimit.Algorithm {
			return ratelimit.RollingWindow{Quota: n, Window: time.Hour, Period: time.Minute}
		},
		func(n int) ratelimit.Algorithm { return ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1), Capacity: n} },
		func(n int) ratelimit.Algorithm {
			return ratelimit.All{ratelimit.SlidingLog{Limit: n, Window: time.Hour}, ratelimit.FixedWindow{Limit: n, Window: time.Hour}}
		},
	} {
		l, own, s, _ := fakes.Varying(t, withLimit(100))
		var granted atomic.Int64
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range 1000 {
					if i%10 == 0 {
						own.Set("key", withLimit(1+(i*7+g)%100))
					}
					if l.Allow("key") {
						granted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		own.Set("key", withLimit(100))
		for l.Allow("key") {
			granted.Add(1)
		}
		assert.EqualValues(t, 100, granted.Load(), "%T", withLimit(1))
		fakes.Check(t, s, 0)
	}
}

func BenchmarkWithLimits(b *testing.B) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e8)}
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket": bucket,
		"all":    ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 1e9, Window: time.Hour}},
	} {
		b.Run(name, func(b *testing.B) {
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e9)},
				ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })))
			for i := range 1000 {
				l.Allow(fmt.Sprint(i))
			}
			b.ReportAllocs()
			for b.Loop() {
				l.Allow("7")
			}
		})
	}
}

// TestEditsGrantNothing changes limits at random while the clock stands still. No more events are
// granted than the highest limit allows, reservations included.
func TestEditsGrantNothing(t *testing.T) {
	budget.Alone(t)
	t.Parallel()
	windows := []time.Duration{time.Second, time.Minute, 7 * time.Minute, time.Hour, 24 * time.Hour}
	for name, algorithm := range map[string]func(n int, w time.Duration) ratelimit.Algorithm{
		"token bucket": func(n int, w time.Duration) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: n, Per: w}}
		},
		"leaky bucket": func(n int, w time.Duration) ratelimit.Algorithm {
			return ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 3, Per: w}, Capacity: n}
		},
		"interval": func(n int, w time.Duration) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: n, Per: w}, Refill: ratelimit.RefillInterval}
		},
		"aligned": func(n int, w time.Duration) ratelimit.Algorithm { return ratelimit.FixedWindow{Limit: n, Window: w} },
		"first event": func(n int, w time.Duration) ratelimit.Algorithm {
			return ratelimit.FixedWindow{Limit: n, Window: w, Start: ratelimit.StartOnFirstEvent}
		},
		"sliding": func(n int, w time.Duration) ratelimit.Algorithm {
			return ratelimit.SlidingWindow{Limit: n, Window: w, Segments: []int{1, 2, 5}[n%3]}
		},
		"log": func(n int, w time.Duration) ratelimit.Algorithm { return ratelimit.SlidingLog{Limit: n, Window: w} },
		"rolling": func(n int, w time.Duration) ratelimit.Algorithm {
			return ratelimit.RollingWindow{Quota: n, Window: w, Period: w / 4}
		},
		"all": func(n int, w time.Duration) ratelimit.Algorithm {
			return ratelimit.All{
				ratelimit.SlidingLog{Limit: n, Window: w},
				ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: n, Per: w}},
				ratelimit.FixedWindow{Limit: n, Window: w},
			}
		},
	} {
		for seed := range budget.Seeds(t, budget.Histories(40, 300)) {
			rng := rand.New(rand.NewPCG(seed, 1))
			l, own, s, _ := fakes.Varying(t, algorithm(1, time.Minute))
			most, granted := 0, 0
			for range 30 {
				n, w := 1+rng.IntN(20), windows[rng.IntN(len(windows))]
				own.Set("key", algorithm(n, w))
				most = max(most, n)
				if rng.IntN(8) == 0 && seed%3 == 0 {
					ahead := 1 + rng.IntN(n)
					if r, _, err := l.Reserve(t.Context(), "key", ahead); err == nil && r != nil && r.Delay() == 0 {
						granted += ahead
					}
				}
				for range rng.IntN(30) {
					if l.Allow("key") {
						granted++
					}
				}
			}
			require.LessOrEqual(t, granted, most, "%s, seed %d", name, seed)
			fakes.Check(t, s, 0)
		}
	}
}

// TestChangesOverTime: after a change, refills and tokens come back at the new rate, and
// reservations keep their turns, as time passes.
func TestChangesOverTime(t *testing.T) {
	// Refills come at the new rate from the change on.
	bucket := func(per time.Duration) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 10, Per: per}, Refill: ratelimit.RefillInterval}
	}
	l, own, _, clk := fakes.Varying(t, bucket(time.Hour))
	require.True(t, l.AllowN("key", 10))
	clk.Advance(59 * time.Minute)
	own.Set("key", bucket(time.Minute))
	d, err := l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: 10, RetryAfter: time.Minute, ResetAfter: time.Minute}, d)
	clk.Advance(time.Minute)
	assert.True(t, l.AllowN("key", 10))

	// No caller overtakes a reservation for a window whose length changes.
	window := func(w time.Duration) ratelimit.Algorithm { return ratelimit.FixedWindow{Limit: 2, Window: w} }
	l, own, _, clk = fakes.Varying(t, window(time.Hour))
	require.True(t, l.AllowN("key", 2))
	r, _, err := l.Reserve(t.Context(), "key", 2)
	require.NoError(t, err)
	own.Set("key", window(24*time.Hour))
	require.False(t, l.Allow("key"))
	own.Set("key", nil)
	clk.Advance(r.Delay())
	assert.False(t, l.Allow("key"))

	// Tokens come back at the new rate from the first request under the new limit on, even if it is
	// denied.
	l, own, _, clk = fakes.Varying(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)})
	require.True(t, l.AllowN("key", 10))
	own.Set("key", ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10)})
	peeked, err := l.Peek(t.Context(), "key")
	require.NoError(t, err)
	d, err = l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, d, peeked)
	clk.Advance(d.RetryAfter - 1)
	assert.False(t, l.Allow("key"))
	clk.Advance(1)
	assert.True(t, l.Allow("key"))
	own.Set("key", nil)
	clk.Advance(time.Minute)
	assert.False(t, l.Allow("key"), "by the hour, a minute brings nothing back")
}

// TestPeekUnderAnotherLimit: a Peek under another limit changes nothing.
func TestPeekUnderAnotherLimit(t *testing.T) {
	for _, algs := range [][2]ratelimit.Algorithm{
		{ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10)}},
		{
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(10), Refill: ratelimit.RefillInterval},
			ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10), Refill: ratelimit.RefillInterval},
		},
		{ratelimit.LeakyBucket{Rate: ratelimit.PerHour(10), Capacity: 10}, ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(10), Capacity: 10}},
		{ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour}, ratelimit.FixedWindow{Limit: 10, Window: time.Minute}},
		{ratelimit.SlidingWindow{Limit: 10, Window: 24 * time.Hour, Segments: 4}, ratelimit.SlidingWindow{Limit: 10, Window: time.Minute}},
		{ratelimit.SlidingLog{Limit: 10, Window: time.Hour}, ratelimit.SlidingLog{Limit: 10, Window: time.Minute}},
		{
			ratelimit.RollingWindow{Quota: 10, Window: 24 * time.Hour, Period: time.Hour},
			ratelimit.RollingWindow{Quota: 10, Window: time.Minute, Period: time.Second},
		},
		{ratelimit.SlidingLog{Limit: 10, Window: time.Hour}, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10)}},
	} {
		l, own, s, clk := fakes.Varying(t, algs[0])
		require.True(t, l.AllowN("key", 8))
		own.Set("key", algs[1])
		for range 3 {
			_, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			clk.Advance(time.Minute)
		}
		own.Set("key", nil)
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, 2, d.Remaining, "%+v", algs)
		fakes.Check(t, s, 0)
	}
}

// varying returns the compiled form of a limit that may change.
func varying(t *testing.T, alg ratelimit.Algorithm) *limit.Limit {
	t.Helper()
	s := &fakes.Hooked{Store: new(ratelimit.MemoryStore)}
	_, err := ratelimit.New(alg, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithLimits((&fakes.OwnLimits{}).Lookup))
	require.NoError(t, err)
	return s.With
}

// TestDamagedStates: a state as bytes whose counts are impossible is an error.
func TestDamagedStates(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.FixedWindow{Limit: 10, Window: time.Hour},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7), Refill: ratelimit.RefillInterval},
		ratelimit.SlidingWindow{Limit: fakes.MostEvents, Window: time.Hour},
		ratelimit.RollingWindow{Quota: fakes.MostEvents, Window: time.Hour, Period: time.Minute},
		ratelimit.SlidingLog{Limit: 10, Window: time.Hour},
		ratelimit.All{ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.SlidingLog{Limit: 10, Window: time.Hour}},
	} {
		tr := varying(t, alg)
		req := step.Request{N: 1}.At(time.Unix(1e9, 0))
		after, err := tr.Apply(nil, req)
		require.NoError(t, err)
		state := after.State
		if math.MaxInt == math.MaxInt32 && after.Answer.Limit == fakes.MostEvents {
			continue // each count of 32 bits is possible
		}
		for i := len(tr.Tag()) + 8; i+8 <= len(state); i += 8 {
			for j := range 8 {
				state[i+j] = 255
			}
		}
		_, err = tr.Apply(state, req)
		assert.ErrorIs(t, err, ratelimit.ErrState, "%+v", alg)
		assert.ErrorContains(t, err, "damaged", "%+v", alg)
	}
}

// TestDisagreement: while processes disagree about a limit, a key is granted no more events than
// the higher limit allows, although each process adopts the states of the other.
func TestDisagreement(t *testing.T) {
	rate := func(n int) ratelimit.Rate { return ratelimit.Rate{Events: n, Per: 1000 * time.Hour} }
	for name, of := range map[string]func(n int) ratelimit.Algorithm{
		"TokenBucket": func(n int) ratelimit.Algorithm { return ratelimit.TokenBucket{Rate: rate(n), Burst: n} },
		"TokenBucket/interval": func(n int) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: rate(n), Burst: n, Refill: ratelimit.RefillInterval}
		},
		"LeakyBucket": func(n int) ratelimit.Algorithm { return ratelimit.LeakyBucket{Rate: rate(n), Capacity: n} },
		"FixedWindow": func(n int) ratelimit.Algorithm { return ratelimit.FixedWindow{Limit: n, Window: 1000 * time.Hour} },
		"FixedWindow/length": func(n int) ratelimit.Algorithm {
			return ratelimit.FixedWindow{Limit: n, Window: time.Duration(n) * 1000 * time.Hour, Start: ratelimit.StartOnFirstEvent}
		},
		"SlidingWindow": func(n int) ratelimit.Algorithm {
			return ratelimit.SlidingWindow{Limit: n, Window: 1000 * time.Hour, Segments: 5}
		},
		"SlidingWindow/length": func(n int) ratelimit.Algorithm {
			return ratelimit.SlidingWindow{Limit: n, Window: 1000 * time.Hour, Segments: n}
		},
		"RollingWindow": func(n int) ratelimit.Algorithm {
			return ratelimit.RollingWindow{Quota: n, Window: 1000 * time.Hour, Period: 100 * time.Hour}
		},
		"SlidingLog": func(n int) ratelimit.Algorithm { return ratelimit.SlidingLog{Limit: n, Window: 1000 * time.Hour} },
		"SlidingLog/count denied": func(n int) ratelimit.Algorithm {
			return ratelimit.SlidingLog{Limit: n, Window: 1000 * time.Hour, CountDenied: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, own, _, clk := fakes.Varying(t, of(20))
			allowed := 0
			for i := range 300 {
				clk.Advance(time.Millisecond)
				own.Set("k", of(20+10*(i/3%2)))
				if l.AllowN("k", 1+i%2) {
					allowed += 1 + i%2
				}
			}
			assert.LessOrEqual(t, allowed, 30)
			assert.GreaterOrEqual(t, allowed, 20)
		})
	}
}

// TestLookupsOfCalls: every call that decides on a key looks its limit up, and no other call does.
func TestLookupsOfCalls(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)},
		ratelimit.SlidingLog{Limit: 100, Window: time.Hour},
		ratelimit.All{
			ratelimit.InFlight{Limit: 100, Timeout: time.Hour},
			ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 9},
		},
	} {
		lookups := 0
		l, err := ratelimit.New(ratelimit.Blocked{}, ratelimit.WithClock(stepclock.New()),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
				lookups++
				return alg, nil
			}))
		require.NoError(t, err)
		ctx := t.Context()
		hold := func(key string) *ratelimit.Reservation {
			r, _, err := l.Hold(ctx, key, 1)
			require.NoError(t, err)
			return r
		}
		held, released, reserved := hold("held"), hold("released"), (*ratelimit.Reservation)(nil)
		for _, call := range []struct {
			name string
			want int
			call func()
		}{
			{"Allow", 1, func() { l.Allow("a") }},
			{"Take", 1, func() { _, _ = l.Take(ctx, "b", 1) }},
			{"Hold", 1, func() { hold("d") }},
			{"Charge", 1, func() { _, _ = l.Charge(ctx, "e", 1) }},
			{"Peek", 1, func() { _, _ = l.Peek(ctx, "f") }},
			{"Reserve", 1, func() { reserved, _, _ = l.Reserve(ctx, "g", 1) }},
			{"Reserve within", 1, func() { _, _, _ = l.Reserve(ctx, "h", 1, ratelimit.Within(time.Minute)) }},
			{"TakeAll", 2, func() { _, _ = ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "i"), ratelimit.For(l, "j")) }},
			{"TakeEach", 2, func() { _, _ = l.TakeEach(ctx, []string{"k", "l"}, 1, make([]ratelimit.Decision, 2)) }},
			{"TakeUpTo", 1, func() { _, _, _ = l.TakeUpTo(ctx, "m", 2) }},
			{"Settle", 0, func() { _, _ = held.Settle(ctx, 3) }},
			{"Release", 0, func() { _ = released.Release(ctx) }},
			{"Cancel", 0, func() { reserved.Cancel() }},
			{"Reset", 0, func() { _ = l.Reset(ctx, "a") }},
		} {
			lookups = 0
			call.call()
			assert.Equal(t, call.want, lookups, "%s with a %T", call.name, alg)
		}
	}
}

// The tests that follow check what a change of the limit does to pending reservations. The
// documentation of WithLimits has the rules.

// TestRaisedLimitKeepsTheOrder: when the limit of a TokenBucket is raised, no caller overtakes
// pending reservations.
func TestRaisedLimitKeepsTheOrder(t *testing.T) {
	slow, fast := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 1}
	l, own, _, clk := fakes.Varying(t, slow)
	begin := clk.Now()
	require.True(t, l.Allow("key"))
	var last *ratelimit.Reservation
	for range 100 {
		var err error
		last, _, err = l.Reserve(t.Context(), "key", 1)
		require.NoError(t, err)
	}
	require.Equal(t, 100*time.Second, last.Delay())
	for i := range 10 { // there and back makes no difference
		own.Set("key", fast)
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 100*time.Second+100*time.Millisecond, d.RetryAfter, "round %d", i)
		own.Set("key", slow)
		d, err = l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 101*time.Second, d.RetryAfter, "round %d", i)
	}
	own.Set("key", fast)
	require.False(t, l.Allow("key"))
	clk.Advance(100 * time.Second)
	require.False(t, l.Allow("key"))
	granted := 0
	for clk.Now().Before(begin.Add(110 * time.Second)) {
		clk.Advance(100 * time.Millisecond)
		if l.Allow("key") {
			granted++
		}
	}
	assert.Equal(t, 100, granted)
}

// TestRaisedLimitKeepsTheTurns: the rate of a LeakyBucket is raised. No caller gets an earlier turn
// than the pending reservations have. Behind these reservations, the bucket leaks at the new rate.
func TestRaisedLimitKeepsTheTurns(t *testing.T) {
	slow, fast := ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 20}, ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1000), Capacity: 500}
	l, own, s, clk := fakes.Varying(t, slow)
	reserve := func(n int, want time.Duration) *ratelimit.Reservation {
		t.Helper()
		r, _, err := l.Reserve(t.Context(), "key", n)
		require.NoError(t, err)
		require.Equal(t, want, r.Delay())
		return r
	}
	reserve(2, 0)
	last := reserve(3, 200*time.Millisecond)
	for range 10 { // there and back makes no difference
		own.Set("key", fast)
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 500*time.Millisecond, d.Delay)
		own.Set("key", slow)
		d, err = l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 500*time.Millisecond, d.Delay)
	}
	own.Set("key", fast)
	r := reserve(1, 500*time.Millisecond)
	r.Cancel()
	reserve(1, 500*time.Millisecond)
	d, err := l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, 501*time.Millisecond, d.Delay)
	assert.Equal(t, 200*time.Millisecond, last.Delay())
	clk.Advance(400 * time.Millisecond)
	reserve(1, 102*time.Millisecond)
	clk.Advance(103 * time.Millisecond)
	reserve(1, 0)
	fakes.Check(t, s, 0)

	// Without reservations, no turns are promised. So the level leaks at the new rate.
	own.Set("meter", slow)
	require.True(t, l.AllowN("meter", 20))
	own.Set("meter", fast)
	d, err = l.Peek(t.Context(), "meter")
	require.NoError(t, err)
	assert.Equal(t, 20*time.Millisecond, d.Delay)
}

// TestTakeAllAfterATurn: the turn of a reservation has come, and then the limit of the key has
// changed. TakeAll decides under the present limit, and spends in all keys or in none.
func TestTakeAllAfterATurn(t *testing.T) {
	bucket := func(burst int) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: burst}
	}
	for burst, passed := range map[int]time.Duration{100: 1500 * time.Millisecond, 3: 5 * time.Second} {
		l, own, s, clk := fakes.Varying(t, bucket(10))
		require.True(t, l.AllowN("key", 10))
		_, d, err := l.Reserve(t.Context(), "key", 1)
		require.NoError(t, err)
		require.Equal(t, time.Second, d.Delay)
		clk.Advance(passed)
		own.Set("key", bucket(burst))
		before, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		d, err = ratelimit.TakeAll(t.Context(), 2, ratelimit.For(l, "key"), ratelimit.For(l, "other"))
		require.NoError(t, err)
		require.Equal(t, before.Remaining >= 2, d.Allowed)
		spent := 0
		if d.Allowed {
			spent = 2
		}
		after, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, before.Remaining-spent, after.Remaining)
		other, err := l.Peek(t.Context(), "other")
		require.NoError(t, err)
		assert.Equal(t, 10-spent, other.Remaining)
		fakes.Check(t, s, 0)
	}
}
