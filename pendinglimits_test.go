package ratelimit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// What a change of its limit does to a key is documented at WithLimits, in limits.go. These
// tests check what it does to pending reservations.

// Raising a bucket's limit lets no caller overtake pending reservations.
func TestRaisedLimitKeepsTheOrder(t *testing.T) {
	slow, fast := TokenBucket{Rate: PerSecond(1)}, TokenBucket{Rate: PerSecond(10), Burst: 1}
	l, own, _, clk := newVaryingLimiter(t, slow)
	begin := clk.Now()
	require.True(t, l.Allow("key"))
	var last *Reservation
	for range 100 {
		var err error
		last, err = l.Reserve(t.Context(), "key", 1)
		require.NoError(t, err)
	}
	require.Equal(t, 100*time.Second, last.Delay())
	for i := range 10 { // there and back makes no difference
		own.set("key", fast)
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 100*time.Second+100*time.Millisecond, d.RetryAfter, "round %d", i)
		own.set("key", slow)
		d, err = l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 101*time.Second, d.RetryAfter, "round %d", i)
	}
	own.set("key", fast)
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

// A LeakyBucket that leaks faster from now on gives no caller an earlier turn than the
// pending reservations have, and leaks at the new rate behind them.
func TestRaisedLimitKeepsTheTurns(t *testing.T) {
	slow, fast := LeakyBucket{Rate: PerSecond(10), Capacity: 20}, LeakyBucket{Rate: PerSecond(1000), Capacity: 500}
	l, own, s, clk := newVaryingLimiter(t, slow)
	reserve := func(n int, want time.Duration) *Reservation {
		t.Helper()
		r, err := l.Reserve(t.Context(), "key", n)
		require.NoError(t, err)
		require.Equal(t, want, r.Delay())
		return r
	}
	reserve(2, 0)
	last := reserve(3, 200*time.Millisecond)
	for range 10 { // there and back makes no difference
		own.set("key", fast)
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 500*time.Millisecond, d.Delay)
		own.set("key", slow)
		d, err = l.Peek(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 500*time.Millisecond, d.Delay)
	}
	own.set("key", fast)
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
	s.check(t)

	// Without reservations, no turns are promised: the level leaks at the new rate.
	own.set("meter", slow)
	require.True(t, l.AllowN("meter", 20))
	own.set("meter", fast)
	d, err = l.Peek(t.Context(), "meter")
	require.NoError(t, err)
	assert.Equal(t, 20*time.Millisecond, d.Delay)
}

// However limits change, up, down and back, nothing is granted before the latest
// pending reservation.
func TestChangesKeepPendingReservations(t *testing.T) {
	draw := func(rng *rand.Rand) (n int, w time.Duration) {
		return 1 + rng.IntN(12), []time.Duration{time.Second, 7 * time.Second, time.Minute}[rng.IntN(3)]
	}
	for name, random := range map[string]func(rng *rand.Rand) Algorithm{
		"token": func(rng *rand.Rand) Algorithm {
			n, w := draw(rng)
			return TokenBucket{Rate: Rate{n, w}, Burst: 1 + rng.IntN(12)}
		},
		"interval": func(rng *rand.Rand) Algorithm {
			n, w := draw(rng)
			return TokenBucket{Rate: Rate{n, w}, Burst: 1 + rng.IntN(12), Refill: RefillInterval}
		},
		"fixed": func(rng *rand.Rand) Algorithm {
			n, w := draw(rng)
			return FixedWindow{Limit: n, Window: w, Start: WindowStart(rng.IntN(2))}
		},
		"sliding": func(rng *rand.Rand) Algorithm {
			n, w := draw(rng)
			return SlidingWindow{Limit: n, Window: w, Segments: []int{1, 2, 5}[rng.IntN(3)]}
		},
		"log": func(rng *rand.Rand) Algorithm {
			n, w := draw(rng)
			return SlidingLog{Limit: n, Window: w}
		},
		"counted": func(rng *rand.Rand) Algorithm {
			n, w := draw(rng)
			return SlidingLog{Limit: n, Window: w, CountDenied: true}
		},
		"rolling": func(rng *rand.Rand) Algorithm {
			n, w := draw(rng)
			return RollingWindow{Quota: n, Window: w, Period: w / []time.Duration{1, 2, 4, 5}[rng.IntN(4)]}
		},
		"warming": func(rng *rand.Rand) Algorithm {
			n, w := draw(rng)
			return WarmingUp{Rate: Rate{n, w}, Warmup: w}
		},
		"all": func(rng *rand.Rand) Algorithm {
			n, w := draw(rng)
			m, v := draw(rng)
			return All{TokenBucket{Rate: Rate{n, w}}, SlidingLog{Limit: m, Window: v}, FixedWindow{Limit: n, Window: v}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range budget.Histories(50, 200) {
				rng := rand.New(rand.NewPCG(seed, 23))
				l, own, s, clk := newVaryingLimiter(t, random(rng))
				var promised time.Time
				for range 60 {
					switch rng.IntN(4) {
					case 0:
						alg := random(rng)
						own.set("key", alg)
					case 1:
						clk.Advance(time.Duration(rng.Int64N(int64(3 * time.Second))))
					case 2:
						r, err := l.Reserve(t.Context(), "key", 1+rng.IntN(2))
						if err != nil {
							continue
						}
						due := clk.Now().Add(r.Delay())
						require.False(t, due.Before(promised), "seed %d: reserved %v before a promise", seed, promised.Sub(due))
						promised = due
					default:
						d, err := l.Take(t.Context(), "key", 1)
						require.NoError(t, err)
						require.False(t, d.Allowed && clk.Now().Before(promised), "seed %d: granted %v before a promise", seed, promised.Sub(clk.Now()))
						if !d.Allowed {
							require.False(t, clk.Now().Add(d.RetryAfter).Before(promised), "seed %d", seed)
						}
					}
				}
				s.check(t)
			}
		})
	}
}

// The bound of a bucket, burst + t·rate, holds for the highest of its limits.
func TestChangedBucketsKeepTheHighestBound(t *testing.T) {
	for seed := range budget.Histories(75, 300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l, own, _, clk := newVaryingLimiter(t, TokenBucket{Rate: PerSecond(1)})
		begin := clk.Now()
		var granted []time.Duration // when
		burst, rate := 1, 1
		for range 80 {
			switch rng.IntN(5) {
			case 0:
				a := TokenBucket{Rate: PerSecond(1 + rng.IntN(8)), Burst: 1 + rng.IntN(8)}
				burst, rate = max(burst, a.Burst), max(rate, a.Rate.Events)
				own.set("key", a)
			case 1:
				clk.Advance(time.Duration(rng.Int64N(int64(2 * time.Second))))
			case 2:
				if r, err := l.Reserve(t.Context(), "key", 1); err == nil {
					granted = append(granted, clk.Now().Add(r.Delay()).Sub(begin))
				}
			default:
				if l.Allow("key") {
					granted = append(granted, clk.Now().Sub(begin))
				}
			}
		}
		slices.Sort(granted)
		for i := range granted {
			for j := i; j < len(granted); j++ {
				span := granted[j] - granted[i]
				most := float64(burst) + span.Seconds()*float64(rate) + 1e-6
				require.LessOrEqual(t, float64(j-i+1), most, "seed %d: in %v", seed, span)
			}
		}
	}
}
