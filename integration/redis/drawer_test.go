package redis_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// spanOf returns the longest time until a key is like a new one, after an event under one of the limits.
func spanOf(t *testing.T, limits ...ratelimit.Algorithm) time.Duration {
	t.Helper()
	span := time.Microsecond
	for _, alg := range limits {
		l, err := ratelimit.New(alg, ratelimit.WithClock(storetest.NewClock(began)))
		require.NoError(t, err, "%#v: %s", alg, drawOthers)
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		span = max(span, up(d.ResetAfter))
	}
	return span
}

// A drawer draws what histories are played on.
type drawer struct{ rng *rand.Rand }

// newDrawer returns a drawer that depends on two seeds.
func newDrawer(seed, stream uint64) drawer { return drawer{rand.New(rand.NewPCG(seed, stream))} }

// drawOthers says why an algorithm that was drawn must not be refused.
const drawOthers = "every store has room for the parameters that are drawn; draw others"

// setup draws an algorithm, and how limiters of it are set up.
func (d drawer) setup() (alg ratelimit.Algorithm, how setup) {
	return d.algorithm(), [...]setup{uncached, varying, varying, cached}[d.rng.IntN(4)]
}

// algorithm returns a random algorithm, with ordinary or extreme parameters.
func (d drawer) algorithm() ratelimit.Algorithm {
	if kind := d.rng.IntN(kinds + 2); kind < kinds {
		return d.ofKind(kind)
	}
	var all ratelimit.All
	for range 1 + d.rng.IntN(4) {
		all = append(all, d.ofKind(d.rng.IntN(kinds)))
	}
	return all
}

// short returns an algorithm of which a few reservations are in one window or slot, or in several,
// or any algorithm.
func (d drawer) short() ratelimit.Algorithm {
	switch d.rng.IntN(10) {
	default:
		return d.algorithm()
	case 0:
		return ratelimit.FixedWindow{Limit: 1 + d.rng.IntN(4), Window: time.Minute, Start: ratelimit.WindowStart(d.rng.IntN(2))}
	case 1:
		return ratelimit.SlidingWindow{Limit: 7, Window: time.Minute, Segments: 1 + d.rng.IntN(2)}
	case 2:
		return ratelimit.SlidingWindow{Limit: 2, Window: time.Second, Segments: 1 << d.rng.IntN(5)}
	case 3:
		return ratelimit.RollingWindow{Quota: 3, Window: 3 * time.Second, Period: time.Second, PeriodLimit: d.rng.IntN(3)}
	case 4:
		return ratelimit.RollingWindow{Quota: 9, Window: 3 * time.Second, Period: 500 * time.Millisecond, PeriodLimit: 4}
	case 5:
		return ratelimit.SlidingLog{Limit: 3, Window: time.Second, CountDenied: d.rng.IntN(2) == 0}
	case 6:
		return ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4},
			ratelimit.FixedWindow{Limit: 5, Window: 1700 * time.Millisecond},
			ratelimit.SlidingWindow{Limit: 4, Window: time.Second, Segments: 2},
			ratelimit.SlidingLog{Limit: 4, Window: 1300 * time.Millisecond},
			ratelimit.RollingWindow{Quota: 6, Window: 2 * time.Second, Period: 500 * time.Millisecond},
		}
	case 7:
		return ratelimit.All{
			ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(2), Capacity: 3},
			ratelimit.SlidingWindow{Limit: 2, Window: time.Second},
			ratelimit.WarmingUp{Rate: ratelimit.PerSecond(5), Warmup: time.Second},
		}
	}
}

// like returns a random algorithm whose states can be converted to and from those of alg.
func (d drawer) like(alg ratelimit.Algorithm) ratelimit.Algorithm {
	switch a := alg.(type) {
	case ratelimit.All:
		var all ratelimit.All
		for _, part := range a {
			all = append(all, d.like(part))
		}
		return all
	case ratelimit.TokenBucket:
		if a.Refill == ratelimit.RefillInterval {
			return d.ofKind(1)
		}
		return d.ofKind(0)
	case ratelimit.LeakyBucket:
		return d.ofKind(2)
	case ratelimit.FixedWindow:
		return d.ofKind(3)
	case ratelimit.SlidingWindow:
		return d.ofKind(4)
	case ratelimit.SlidingLog:
		return d.ofKind(5)
	case ratelimit.RollingWindow:
		return d.ofKind(6)
	case ratelimit.InFlight:
		return d.ofKind(7)
	case ratelimit.Lockout:
		return d.ofKind(8)
	case ratelimit.CalendarWindow:
		return d.ofKind(9)
	}
	return d.ofKind(10)
}

// kinds is the number of kinds of algorithms, apart from All.
const kinds = 11

func (d drawer) ofKind(kind int) ratelimit.Algorithm {
	oneOf := func(numbers ...int64) int64 { return numbers[d.rng.IntN(len(numbers))] }
	of := func(numbers ...int64) int { return int(min(oneOf(numbers...), math.MaxInt)) }
	limit := func() int { return of(1, 2, 3, 5, 10, 100, 1<<33, 1<<51) }
	window := func() time.Duration {
		return time.Duration(oneOf(10, 1000, 1e6, 60e6, 977_000_001, 86400e6)) * time.Microsecond
	}
	// No two rates are equal, because a state that has another form of the same limit need not
	// be adopted here.
	rate := func() ratelimit.Rate {
		return ratelimit.Rate{
			Events: of(1, 2, 3, 7, 10, 1000, math.MaxInt32, 1<<40+1),
			Per:    time.Duration(oneOf(1, 1001, 12345, 1e9, 977e9+1, 86400e9)),
		}
	}
	switch kind {
	case 0:
		return ratelimit.TokenBucket{Rate: rate(), Burst: of(0, 1, 3, 10, 1000)}
	case 1:
		return ratelimit.TokenBucket{
			Rate:   ratelimit.Rate{Events: of(1, 4, 10, 1<<40), Per: window()},
			Burst:  of(0, 1, 7, 1000),
			Refill: ratelimit.RefillInterval,
		}
	case 2:
		return ratelimit.LeakyBucket{Rate: rate(), Capacity: of(0, 1, 3, 10)}
	case 3:
		return ratelimit.FixedWindow{Limit: limit(), Window: window(), Start: ratelimit.WindowStart(d.rng.IntN(2))}
	case 4:
		segments := of(1, 2, 6, 61, 300)
		return ratelimit.SlidingWindow{Limit: limit(), Window: window() * time.Duration(segments), Segments: segments}
	case 5:
		return ratelimit.SlidingLog{Limit: of(1, 2, 5, 30), Window: window(), CountDenied: d.rng.IntN(3) == 0}
	case 6:
		period := window()
		return ratelimit.RollingWindow{Quota: limit(), Window: period * time.Duration(oneOf(1, 2, 24, 299)), Period: period, PeriodLimit: of(0, 1, 3, 1<<35)}
	case 7:
		return ratelimit.InFlight{Limit: of(1, 2, 5, 30), Timeout: window()}
	case 8:
		first := window()
		most := time.Duration(oneOf(0, 1, 2, 3, 40, 1e4))
		return ratelimit.Lockout{Limit: limit(), Window: window(), First: first, Longest: most * first}
	case 9:
		return ratelimit.CalendarWindow{
			Limit: limit(),
			Every: ratelimit.CalendarUnit(1 + d.rng.IntN(5)),
			Zone:  []string{"", "Europe/London", "Asia/Kolkata"}[d.rng.IntN(3)],
			Hour:  of(0, 4),
		}
	}
	return ratelimit.WarmingUp{
		Rate:       ratelimit.Rate{Events: of(1, 10, 999), Per: time.Duration(oneOf(1e6, 1e9, 60e9))},
		Warmup:     window(),
		ColdFactor: []float64{0, 1, 2.5, 100}[d.rng.IntN(4)],
	}
}
