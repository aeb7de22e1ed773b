package ratelimit

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

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// Package storetest has what must hold for every store; here is what is the
// limiter's and the memory's own.

// ownLimits are limits that a test changes.
type ownLimits struct {
	mu  sync.Mutex // protects what follows
	of  map[string]Algorithm
	err error
}

func (o *ownLimits) lookup(_ context.Context, key string) (Algorithm, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[key], o.err
}

func (o *ownLimits) set(key string, alg Algorithm) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = make(map[string]Algorithm)
	}
	o.of[key] = alg
}

func newVaryingLimiter(t testing.TB, base Algorithm, opts ...Option) (Limiter, *ownLimits, *MemoryStore, *stepclock.Clock) {
	t.Helper()
	own, s, clk := &ownLimits{}, NewMemoryStore(), stepclock.New()
	l, err := New(base, append([]Option{WithStore(s), WithName("test"), WithClock(clk), WithLimits(own.lookup)}, opts...)...)
	require.NoError(t, err)
	return l, own, s, clk
}

func TestLimitsOfKeys(t *testing.T) {
	l, own, s, clk := newVaryingLimiter(t, TokenBucket{Rate: PerHour(2)})
	own.set("gold", &TokenBucket{Rate: PerHour(5)})
	own.set("both", All{TokenBucket{Rate: PerHour(9)}, FixedWindow{Limit: 4, Window: time.Hour}})
	count := func(key string) (n int) {
		for l.Allow(key) {
			n++
		}
		return n
	}
	assert.Equal(t, 2, count("free"))
	assert.Equal(t, 5, count("gold"))
	assert.Equal(t, 4, count("both"))
	assert.Nil(t, AlgorithmOf(l), "it has no one limit")
	for key, want := range map[string]Algorithm{
		"free": TokenBucket{Rate: PerHour(2), Burst: 2},
		"gold": TokenBucket{Rate: PerHour(5), Burst: 5},
		"both": All{TokenBucket{Rate: PerHour(9), Burst: 9}, FixedWindow{Limit: 4, Window: time.Hour}},
	} {
		alg, err := AlgorithmFor(t.Context(), l, key)
		require.NoError(t, err)
		assert.Equal(t, want, alg)
	}
	alg, err := AlgorithmFor(t.Context(), Must(New(TokenBucket{Rate: PerHour(3)})), "key")
	require.NoError(t, err)
	assert.Equal(t, TokenBucket{Rate: PerHour(3), Burst: 3}, alg)
	alg, err = AlgorithmFor(t.Context(), struct{ Limiter }{l}, "key")
	require.NoError(t, err)
	assert.Nil(t, alg, "a wrapper without the method")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = AlgorithmFor(ended, l, "key")
	require.ErrorIs(t, err, context.Canceled)
	_, err = AlgorithmFor(context.Context(nil), l, "key")
	require.ErrorIs(t, err, errNoContext)
	d, err := l.Take(t.Context(), "gold", 1)
	require.NoError(t, err)
	assert.Equal(t, Decision{Limit: 5, RetryAfter: 12 * time.Minute, ResetAfter: time.Hour}, d)
	_, err = l.Reserve(t.Context(), "gold", 6)
	assert.ErrorIs(t, err, ErrNever)
	assert.ErrorContains(t, err, "a limit of 5")
	require.NoError(t, l.Reset(t.Context(), "gold"))
	assert.True(t, l.AllowN("gold", 5))
	s.check(t)
	clk.Advance(2 * time.Hour)
	s.Shrink()
	assert.Zero(t, s.Len())
}

// TestLimitsAtTheCap: each key is judged by its own limit when the store is full.
func TestLimitsAtTheCap(t *testing.T) {
	own, s, clk := &ownLimits{}, NewMemoryStore(WithMaxKeys(2)), stepclock.New()
	l, err := New(TokenBucket{Rate: PerHour(2)}, WithStore(s), WithName("test"), WithClock(clk), WithLimits(own.lookup))
	require.NoError(t, err)
	own.set("gold", TokenBucket{Rate: PerHour(100)})
	require.True(t, l.AllowN("gold", 50))
	require.True(t, l.AllowN("free", 2))
	require.True(t, l.Allow("new"))
	d, err := l.Peek(t.Context(), "gold")
	require.NoError(t, err)
	assert.Equal(t, 100, d.Remaining, "it had the most remaining")
	assert.False(t, l.Allow("free"))
	s.check(t)
}

func TestLimitsThatFail(t *testing.T) {
	down := errors.New("the store of limits is down")
	for _, tt := range []struct {
		policy FailurePolicy
		want   Decision
	}{
		{FailOpen, Decision{Allowed: true, Limit: 2, Degraded: true}},
		{FailClosed, Decision{Limit: 2, RetryAfter: time.Second, Degraded: true}},
		{Fallback(Must(New(TokenBucket{Rate: PerHour(7)}))), Decision{Allowed: true, Limit: 7, Remaining: 6, Degraded: true}},
	} {
		l, own, s, _ := newVaryingLimiter(t, TokenBucket{Rate: PerHour(2)}, WithFailurePolicy(tt.policy))
		own.err = down
		d, err := l.Take(t.Context(), "key", 1)
		require.ErrorIs(t, err, down)
		d.ResetAfter = 0
		assert.Equal(t, tt.want, d)
		assert.Zero(t, s.Len())
		own.err = nil
		own.set("key", TokenBucket{})
		_, err = l.Take(t.Context(), "key", 1)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, `the limit of key "key"`)
		_, err = AlgorithmFor(t.Context(), l, "key")
		require.ErrorIs(t, err, ErrInvalid)
		own.set("key", (*TokenBucket)(nil))
		_, err = l.Take(t.Context(), "key", 1)
		assert.ErrorIs(t, err, ErrInvalid)
	}
	_, err := New(TokenBucket{Rate: PerHour(2)}, WithLimits(nil))
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = New(TokenBucket{}, WithLimits((&ownLimits{}).lookup))
	assert.ErrorIs(t, err, ErrInvalid)
}

// TestReservationAcrossAChange: the events of a reservation that was made under
// other parameters stay spent.
func TestReservationAcrossAChange(t *testing.T) {
	for _, change := range []Algorithm{
		FixedWindow{Limit: 9, Window: time.Hour},
		TokenBucket{Rate: PerHour(2)},
		All{FixedWindow{Limit: 9, Window: time.Hour}, SlidingLog{Limit: 4, Window: time.Hour}},
	} {
		l, own, s, _ := newVaryingLimiter(t, FixedWindow{Limit: 2, Window: time.Hour})
		require.True(t, l.AllowN("key", 2))
		r, err := l.Reserve(t.Context(), "key", 2)
		require.NoError(t, err)
		own.set("key", change)
		before, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		r.Cancel()
		after, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		if _, similar := change.(FixedWindow); similar { // nothing was granted under it
			assert.Equal(t, 7, after.Remaining)
		} else {
			assert.Equal(t, before, after, "%+v", change)
		}
		s.check(t)

		own.set("key", nil)
		require.NoError(t, l.Reset(t.Context(), "key"))
		r, err = l.Reserve(t.Context(), "key", 2)
		require.NoError(t, err)
		r.Cancel()
		assert.True(t, l.AllowN("key", 2), "without a change, they are given back")
	}
}

// cached returns the number of transitions in the cache.
func (l *limits) cached() (n int) {
	for _, m := range []*sync.Map{l.young.Load(), l.old.Load()} {
		if m != nil {
			m.Range(func(any, any) bool { n++; return true })
		}
	}
	return n
}

// TestManyLimits asks for more limits than are remembered.
func TestManyLimits(t *testing.T) {
	l, own, s, _ := newVaryingLimiter(t, FixedWindow{Limit: 2, Window: time.Hour})
	for i := 1; i <= manyLimits+10; i++ {
		own.set("key", FixedWindow{Limit: i, Window: time.Hour})
		require.True(t, l.Allow("key"), "one more each time")
		require.False(t, l.Allow("key"))
	}
	assert.LessOrEqual(t, l.(*limiter).own.cached(), 2*manyLimits)
	s.check(t)
}

// TestChangesUnderConcurrency changes a limit while many goroutines make calls. As many
// events are granted as the highest limit allows.
func TestChangesUnderConcurrency(t *testing.T) {
	for _, withLimit := range []func(n int) Algorithm{
		func(n int) Algorithm { return FixedWindow{Limit: n, Window: time.Hour} },
		func(n int) Algorithm { return SlidingWindow{Limit: n, Window: time.Hour} },
		func(n int) Algorithm { return SlidingLog{Limit: n, Window: time.Hour} },
		func(n int) Algorithm { return RollingWindow{Quota: n, Window: time.Hour, Period: time.Minute} },
		func(n int) Algorithm { return LeakyBucket{Rate: PerHour(1), Capacity: n} },
		func(n int) Algorithm {
			return All{SlidingLog{Limit: n, Window: time.Hour}, FixedWindow{Limit: n, Window: time.Hour}}
		},
	} {
		l, own, s, _ := newVaryingLimiter(t, withLimit(100))
		var granted atomic.Int64
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range 1000 {
					if i%10 == 0 {
						own.set("key", withLimit(1+(i*7+g)%100))
					}
					if l.Allow("key") {
						granted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		own.set("key", withLimit(100))
		for l.Allow("key") {
			granted.Add(1)
		}
		assert.EqualValues(t, 100, granted.Load(), "%T", withLimit(1))
		s.check(t)
	}
}

// TestKnownLimits: equal parameters are compiled once, and different ones are kept
// apart.
func TestKnownLimits(t *testing.T) {
	l, own, _, _ := newVaryingLimiter(t, TokenBucket{Rate: PerHour(2)})
	one, two := TokenBucket{Rate: PerHour(1), Burst: 1}, FixedWindow{Limit: 2, Window: time.Hour}
	transition := func(alg Algorithm) *Transition {
		own.set("key", alg)
		tr, err := l.(*limiter).own.forKey(t.Context(), "key")
		require.NoError(t, err)
		return tr
	}
	assert.Same(t, transition(one), transition(&TokenBucket{Rate: PerHour(1), Burst: 1}))
	assert.Same(t, transition(All{one, two}), transition(All{one, &two}))
	assert.NotSame(t, transition(All{one, two}), transition(All{two, one}))
	assert.NotSame(t, transition(All{one}), transition(one))
	assert.NotSame(t, transition(All{one}), transition(All{one, one}))
	assert.Equal(t, All{one, one, one, one, two}, transition(All{one, one, one, one, two}).Algorithm(), "too many to be remembered")
	assert.Equal(t, All{one, two}, transition(All{one, All{two}}).Algorithm(), "nor is one in another")
	own.set("key", All{})
	_, err := l.(*limiter).own.forKey(t.Context(), "key")
	require.ErrorIs(t, err, ErrInvalid)
	own.set("key", All{one, nil})
	_, err = l.(*limiter).own.forKey(t.Context(), "key")
	require.ErrorIs(t, err, ErrInvalid)
}

func BenchmarkWithLimits(b *testing.B) {
	bucket := TokenBucket{Rate: PerSecond(1e8)}
	for name, alg := range map[string]Algorithm{
		"bucket": bucket,
		"all":    All{bucket, FixedWindow{Limit: 1e9, Window: time.Hour}},
	} {
		b.Run(name, func(b *testing.B) {
			l := Must(New(TokenBucket{Rate: PerSecond(1e9)}, WithLimits(func(context.Context, string) (Algorithm, error) { return alg, nil })))
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

// TestEditsGrantNothing edits limits at random, at one instant: never are more events
// granted than the highest limit, reservations included.
func TestEditsGrantNothing(t *testing.T) {
	budget.Alone(t)
	windows := []time.Duration{time.Second, time.Minute, 7 * time.Minute, time.Hour, 24 * time.Hour}
	for name, algorithm := range map[string]func(n int, w time.Duration) Algorithm{
		"token bucket": func(n int, w time.Duration) Algorithm { return TokenBucket{Rate: Rate{n, w}} },
		"leaky bucket": func(n int, w time.Duration) Algorithm { return LeakyBucket{Rate: Rate{3, w}, Capacity: n} },
		"interval":     func(n int, w time.Duration) Algorithm { return TokenBucket{Rate: Rate{n, w}, Refill: RefillInterval} },
		"aligned":      func(n int, w time.Duration) Algorithm { return FixedWindow{Limit: n, Window: w} },
		"first event": func(n int, w time.Duration) Algorithm {
			return FixedWindow{Limit: n, Window: w, Start: StartOnFirstEvent}
		},
		"sliding": func(n int, w time.Duration) Algorithm {
			return SlidingWindow{Limit: n, Window: w, Segments: []int{1, 2, 5}[n%3]}
		},
		"log":     func(n int, w time.Duration) Algorithm { return SlidingLog{Limit: n, Window: w} },
		"rolling": func(n int, w time.Duration) Algorithm { return RollingWindow{Quota: n, Window: w, Period: w / 4} },
		"all": func(n int, w time.Duration) Algorithm {
			return All{SlidingLog{Limit: n, Window: w}, TokenBucket{Rate: Rate{n, w}}, FixedWindow{Limit: n, Window: w}}
		},
	} {
		for seed := range budget.Histories(40, 300) {
			rng := rand.New(rand.NewPCG(seed, 1))
			l, own, s, _ := newVaryingLimiter(t, algorithm(1, time.Minute))
			most, granted := 0, 0
			for range 30 {
				n, w := 1+rng.IntN(20), windows[rng.IntN(len(windows))]
				own.set("key", algorithm(n, w))
				most = max(most, n)
				if rng.IntN(8) == 0 && seed%3 == 0 {
					ahead := 1 + rng.IntN(n)
					if r, err := l.Reserve(t.Context(), "key", ahead); err == nil && r.Delay() == 0 {
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
			s.check(t)
		}
	}
}

// TestChangesOverTime has what matters only as time passes.
func TestChangesOverTime(t *testing.T) {
	// Refills come at the new pace from the change on.
	bucket := func(per time.Duration) Algorithm {
		return TokenBucket{Rate: Rate{10, per}, Refill: RefillInterval}
	}
	l, own, _, clk := newVaryingLimiter(t, bucket(time.Hour))
	require.True(t, l.AllowN("key", 10))
	clk.Advance(59 * time.Minute)
	own.set("key", bucket(time.Minute))
	d, err := l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, Decision{Limit: 10, RetryAfter: time.Minute, ResetAfter: time.Minute}, d)
	clk.Advance(time.Minute)
	assert.True(t, l.AllowN("key", 10))

	// No caller overtakes a reservation for a window whose length changes.
	window := func(w time.Duration) Algorithm { return FixedWindow{Limit: 2, Window: w} }
	l, own, _, clk = newVaryingLimiter(t, window(time.Hour))
	require.True(t, l.AllowN("key", 2))
	r, err := l.Reserve(t.Context(), "key", 2)
	require.NoError(t, err)
	own.set("key", window(24*time.Hour))
	require.False(t, l.Allow("key"))
	own.set("key", nil)
	clk.Advance(r.Delay())
	assert.False(t, l.Allow("key"))

	// Tokens come back at the new pace from the first request on, even if it is denied.
	l, own, _, clk = newVaryingLimiter(t, TokenBucket{Rate: PerHour(10)})
	require.True(t, l.AllowN("key", 10))
	own.set("key", TokenBucket{Rate: PerMinute(10)})
	peeked, err := l.Peek(t.Context(), "key")
	require.NoError(t, err)
	d, err = l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, d, peeked)
	clk.Advance(d.RetryAfter - 1)
	assert.False(t, l.Allow("key"))
	clk.Advance(1)
	assert.True(t, l.Allow("key"))
	own.set("key", nil)
	clk.Advance(time.Minute)
	assert.False(t, l.Allow("key"), "by the hour, a minute brings nothing back")
}

// TestPeekUnderAnotherLimit changes nothing.
func TestPeekUnderAnotherLimit(t *testing.T) {
	for _, algs := range [][2]Algorithm{
		{TokenBucket{Rate: PerHour(10)}, TokenBucket{Rate: PerMinute(10)}},
		{TokenBucket{Rate: PerHour(10), Refill: RefillInterval}, TokenBucket{Rate: PerMinute(10), Refill: RefillInterval}},
		{LeakyBucket{Rate: PerHour(10), Capacity: 10}, LeakyBucket{Rate: PerMinute(10), Capacity: 10}},
		{FixedWindow{Limit: 10, Window: 24 * time.Hour}, FixedWindow{Limit: 10, Window: time.Minute}},
		{SlidingWindow{Limit: 10, Window: 24 * time.Hour, Segments: 4}, SlidingWindow{Limit: 10, Window: time.Minute}},
		{SlidingLog{Limit: 10, Window: time.Hour}, SlidingLog{Limit: 10, Window: time.Minute}},
		{RollingWindow{Quota: 10, Window: 24 * time.Hour, Period: time.Hour}, RollingWindow{Quota: 10, Window: time.Minute, Period: time.Second}},
		{SlidingLog{Limit: 10, Window: time.Hour}, TokenBucket{Rate: PerMinute(10)}},
	} {
		l, own, s, clk := newVaryingLimiter(t, algs[0])
		require.True(t, l.AllowN("key", 8))
		own.set("key", algs[1])
		for range 3 {
			_, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			clk.Advance(time.Minute)
		}
		own.set("key", nil)
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, 2, d.Remaining, "%+v", algs)
		s.check(t)
	}
}

// TestLimitsInTurns: whatever is asked of a key while its limits are asked in turns, memory and a CASStore
// decide alike, and a Peek writes nothing.
func TestLimitsInTurns(t *testing.T) {
	for _, algs := range [][]Algorithm{
		{TokenBucket{Rate: PerMinute(10)}, TokenBucket{Rate: PerMinute(20), Burst: 5}, TokenBucket{Rate: PerHour(10)}},
		{TokenBucket{Rate: PerMinute(10), Refill: RefillInterval}, TokenBucket{Rate: PerHour(20), Refill: RefillInterval}},
		{LeakyBucket{Rate: PerMinute(10), Capacity: 10}, LeakyBucket{Rate: PerMinute(20), Capacity: 7}},
		{FixedWindow{Limit: 10, Window: time.Minute, Start: StartOnFirstEvent}, FixedWindow{Limit: 20, Window: time.Hour}},
		{SlidingWindow{Limit: 10, Window: time.Minute, Segments: 5}, SlidingWindow{Limit: 10, Window: time.Minute, Segments: 10}, SlidingWindow{Limit: 20, Window: time.Hour}},
		{SlidingLog{Limit: 10, Window: time.Minute}, SlidingLog{Limit: 20, Window: time.Hour}},
		{SlidingLog{Limit: 10, Window: time.Minute, CountDenied: true}, SlidingLog{Limit: 20, Window: time.Hour}},
		{RollingWindow{Quota: 10, Window: time.Minute, Period: 10 * time.Second}, RollingWindow{Quota: 10, Window: time.Minute, Period: 20 * time.Second, PeriodLimit: 6}},
		{WarmingUp{Rate: PerSecond(2), Warmup: time.Minute}, WarmingUp{Rate: PerSecond(3), Warmup: time.Minute}},
		{All{InFlight{Limit: 6, Timeout: time.Minute}, TokenBucket{Rate: PerMinute(10)}}, All{InFlight{Limit: 9, Timeout: time.Hour}, TokenBucket{Rate: PerMinute(20)}}},
		{All{FixedWindow{Limit: 10, Window: time.Minute}, SlidingLog{Limit: 9, Window: time.Minute}}, All{FixedWindow{Limit: 15, Window: time.Hour}, SlidingLog{Limit: 9, Window: time.Hour}}},
	} {
		for seed := range uint64(20) {
			rng := rand.New(rand.NewPCG(seed, 0))
			db := mapStates{}
			cas := NewCASStore(
				func(_ context.Context, key string) ([]byte, string, error) { return []byte(db[key]), db[key], nil },
				func(_ context.Context, key, _ string, state []byte, _ time.Time) (bool, error) {
					db[key] = string(state)
					return true, nil
				},
				func(context.Context, string) error { return nil })
			l, own, s, clk := newVaryingLimiter(t, algs[0])
			limiters := []Limiter{l, Must(New(algs[0], WithStore(cas), WithName("test"), WithClock(clk), WithLimits(own.lookup)))}
			var held [2][]*Reservation
			for range 40 {
				clk.Advance(time.Duration(rng.IntN(2000)) * time.Millisecond)
				own.set("key", algs[rng.IntN(len(algs))])
				n, op, which := 1+rng.IntN(4), rng.IntN(7), rng.IntN(40)
				var got [2]Decision
				before := db["test:key"]
				for i, l := range limiters {
					var err error
					var r *Reservation
					switch last := len(held[i]); op {
					case 0:
						got[i], err = l.Peek(t.Context(), "key")
						assert.Equal(t, before, db["test:key"])
					case 1:
						if r, err = l.Reserve(t.Context(), "key", n); err == nil {
							got[i].Delay = r.Delay()
						}
					case 2:
						r, got[i], err = l.Hold(t.Context(), "key", n)
					case 3:
						got[i], err = l.Charge(t.Context(), "key", n)
					case 4:
						if last > 0 {
							held[i][which%last].Cancel()
						}
					case 5:
						if last > 0 {
							got[i], err = held[i][which%last].Settle(t.Context(), n-1)
						}
					default:
						got[i], err = l.Take(t.Context(), "key", n)
					}
					require.NotErrorIs(t, err, ErrState)
					if r != nil {
						held[i] = append(held[i], r)
					}
				}
				require.Equal(t, got[0], got[1], "%+v, seed %d: %d of %d", algs, seed, op, n)
			}
			assert.NotEmpty(t, db["test:key"])
			s.check(t)
		}
	}
}

// TestShareUnseenOfTwoKinds: new keys with limits of different kinds share what can
// be shared.
func TestShareUnseenOfTwoKinds(t *testing.T) {
	own, clk := &ownLimits{}, stepclock.New()
	l, err := New(TokenBucket{Rate: PerHour(10)}, WithStore(NewMemoryStore(WithMaxKeys(1), WithFullPolicy(ShareUnseen))), WithName("test"), WithClock(clk), WithLimits(own.lookup))
	require.NoError(t, err)
	require.True(t, l.Allow("first"))
	own.set("a", FixedWindow{Limit: 2, Window: time.Hour})
	own.set("b", SlidingLog{Limit: 2, Window: time.Hour})
	own.set("c", All{SlidingLog{Limit: 2, Window: time.Hour}, TokenBucket{Rate: PerHour(2)}})
	granted := 0
	for range 10 {
		for _, key := range []string{"a", "b", "c"} {
			if l.Allow(key) {
				granted++
			}
		}
	}
	assert.Equal(t, 6, granted)
}

// TestDamagedStates: bytes with impossible counts are an error.
func TestDamagedStates(t *testing.T) {
	for _, alg := range []Algorithm{
		FixedWindow{Limit: 10, Window: time.Hour},
		TokenBucket{Rate: PerSecond(7)},
		TokenBucket{Rate: PerSecond(7), Refill: RefillInterval},
		SlidingWindow{Limit: math.MaxInt, Window: time.Hour},
		RollingWindow{Quota: math.MaxInt, Window: time.Hour, Period: time.Minute},
		SlidingLog{Limit: 10, Window: time.Hour},
		All{FixedWindow{Limit: 10, Window: time.Hour}, SlidingLog{Limit: 10, Window: time.Hour}},
	} {
		if k := kernelOf(t, alg); math.MaxInt == math.MaxInt32 && k.Limit() == math.MaxInt {
			continue // its counts have 32 bits, and any is one
		}
		tr, err := newTransition(alg, kernel.InMemory.Varying())
		require.NoError(t, err)
		req := Request{N: 1}.At(time.Unix(1e9, 0))
		state, _, _, err := tr.Apply(nil, req)
		require.NoError(t, err)
		for i := len(tr.Tag()) + 8; i+8 <= len(state); i += 8 {
			for j := range 8 {
				state[i+j] = 255
			}
		}
		_, _, res, err := tr.Apply(state, req)
		require.NoError(t, err)
		assert.ErrorIs(t, res.StateErr(), ErrState, "%+v", alg)
		assert.ErrorContains(t, res.StateErr(), "damaged", "%+v", alg)
	}
}

// What was taken under other parameters is returned to the limit that adopted it, whose
// state it stays. An algorithm of another kind has not adopted it.
func TestReturnAfterChange(t *testing.T) {
	bucket, err := newTransition(TokenBucket{Rate: PerHour(100)}, kernel.InMemory.Varying())
	require.NoError(t, err)
	now := time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC)
	for _, tt := range []struct {
		alg      Algorithm
		returned int
	}{
		{FixedWindow{Limit: 10, Window: time.Hour}, 0},
		{TokenBucket{Rate: PerHour(10)}, 4},
	} {
		other, err := newTransition(tt.alg, kernel.InMemory.Varying())
		require.NoError(t, err)
		state, changed, res, err := other.Apply(nil, Request{Op: OpTake, N: 10}.At(now))
		require.NoError(t, err)
		require.True(t, changed && res.Decision.Allowed)
		next, changed, res, err := bucket.Apply(state, Request{Op: OpReturn, N: 4, Taken: now}.At(now))
		require.NoError(t, err)
		assert.Equal(t, tt.returned > 0, changed)
		assert.Equal(t, tt.returned, res.Decision.Remaining)
		assert.Equal(t, other.Tag(), next[:len(other.Tag())])
		_, _, res, err = other.Apply(next, Request{Op: OpPeek, N: 1}.At(now))
		require.NoError(t, err)
		assert.Equal(t, tt.returned, res.Decision.Remaining)
	}
}

// TestLimitsInUseAreKept: a limit that is in use is compiled once, however many other
// limits follow. Unused ones are forgotten.
func TestLimitsInUseAreKept(t *testing.T) {
	budget.Alone(t)
	l := &limits{}
	compiled := func(n int) *Transition {
		tr, err := l.compiled(FixedWindow{Limit: 1 + n, Window: time.Hour})
		require.NoError(t, err)
		return tr
	}
	used := compiled(0)
	for n := range 5 * manyLimits {
		compiled(n)
		require.Same(t, used, compiled(0), "after %d others", n)
	}
	require.LessOrEqual(t, l.cached(), 2*manyLimits)
	for n := range 3 * manyLimits / 4 {
		compiled(n)
	}
	var kept [3 * manyLimits / 4]*Transition
	for range 3 {
		for n := range kept {
			tr := compiled(n)
			require.True(t, kept[n] == nil || kept[n] == tr, "limit %d was compiled again", n)
			kept[n] = tr
		}
	}
}

// While processes disagree about a limit, a key is granted no more than the higher one,
// although each adopts what the other left.
func TestDisagreement(t *testing.T) {
	rate := func(n int) Rate { return Rate{Events: n, Per: 1000 * time.Hour} }
	for name, of := range map[string]func(n int) Algorithm{
		"TokenBucket":          func(n int) Algorithm { return TokenBucket{Rate: rate(n), Burst: n} },
		"TokenBucket/interval": func(n int) Algorithm { return TokenBucket{Rate: rate(n), Burst: n, Refill: RefillInterval} },
		"LeakyBucket":          func(n int) Algorithm { return LeakyBucket{Rate: rate(n), Capacity: n} },
		"FixedWindow":          func(n int) Algorithm { return FixedWindow{Limit: n, Window: 1000 * time.Hour} },
		"FixedWindow/length": func(n int) Algorithm {
			return FixedWindow{Limit: n, Window: time.Duration(n) * 1000 * time.Hour, Start: StartOnFirstEvent}
		},
		"SlidingWindow":        func(n int) Algorithm { return SlidingWindow{Limit: n, Window: 1000 * time.Hour, Segments: 5} },
		"SlidingWindow/length": func(n int) Algorithm { return SlidingWindow{Limit: n, Window: 1000 * time.Hour, Segments: n} },
		"RollingWindow": func(n int) Algorithm {
			return RollingWindow{Quota: n, Window: 1000 * time.Hour, Period: 100 * time.Hour}
		},
		"SlidingLog":              func(n int) Algorithm { return SlidingLog{Limit: n, Window: 1000 * time.Hour} },
		"SlidingLog/count denied": func(n int) Algorithm { return SlidingLog{Limit: n, Window: 1000 * time.Hour, CountDenied: true} },
	} {
		t.Run(name, func(t *testing.T) {
			l, own, _, clk := newVaryingLimiter(t, of(20))
			allowed := 0
			for i := range 300 {
				clk.Advance(time.Millisecond)
				own.set("k", of(20+10*(i/3%2)))
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
	for _, alg := range []Algorithm{TokenBucket{Rate: PerHour(100)}, SlidingLog{Limit: 100, Window: time.Hour}, All{InFlight{Limit: 100, Timeout: time.Hour}, LeakyBucket{Rate: PerSecond(1), Capacity: 9}}} {
		lookups := 0
		l, err := New(Blocked{}, WithClock(stepclock.New()), WithLimits(func(context.Context, string) (Algorithm, error) {
			lookups++
			return alg, nil
		}))
		require.NoError(t, err)
		ctx := t.Context()
		hold := func(key string) *Reservation {
			r, _, err := l.Hold(ctx, key, 1)
			require.NoError(t, err)
			return r
		}
		held, released, reserved := hold("held"), hold("released"), (*Reservation)(nil)
		for _, call := range []struct {
			name string
			want int
			call func()
		}{
			{"Allow", 1, func() { l.Allow("a") }},
			{"Take", 1, func() { _, _ = l.Take(ctx, "b", 1) }},
			{"TakeUpTo", 1, func() { _, _, _ = l.TakeUpTo(ctx, "c", 1) }},
			{"Hold", 1, func() { hold("d") }},
			{"Charge", 1, func() { _, _ = l.Charge(ctx, "e", 1) }},
			{"Peek", 1, func() { _, _ = l.Peek(ctx, "f") }},
			{"Reserve", 1, func() { reserved, _ = l.Reserve(ctx, "g", 1) }},
			{"ReserveWithin", 1, func() { _, _, _ = l.ReserveWithin(ctx, "h", 1, time.Minute) }},
			{"TakeAll", 2, func() { _, _ = TakeAll(ctx, 1, For(l, "i"), For(l, "j")) }},
			{"TakeEach", 2, func() { _, _ = TakeEach(ctx, l, []string{"k", "l"}, 1, make([]Decision, 2)) }},
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
