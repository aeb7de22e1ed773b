package ratelimit_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// TestWidths holds the table of docs/design.md, and what each algorithm's
// documentation says a key costs.
func TestWidths(t *testing.T) {
	for _, tt := range []struct {
		alg   ratelimit.Algorithm
		words int
	}{
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, 1},
		{ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}, 1},
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 1e9}, 1}, // thirds of a nanosecond
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(60)}, 1},            // thirds too
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)}, 3},             // sevenths
		{ratelimit.TokenBucket{Rate: ratelimit.PerDay(1), Burst: 50_000}, 1}, // 137 years to fill
		{ratelimit.TokenBucket{Rate: ratelimit.PerDay(1), Burst: 60_000}, 3}, // 164 years
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Refill: ratelimit.RefillInterval}, 2},
		{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 10}, 1},
		{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(7), Capacity: 10}, 2},
		{ratelimit.FixedWindow{Limit: 1e9, Window: time.Second}, 1},
		{ratelimit.FixedWindow{Limit: math.MaxInt32, Window: time.Microsecond}, 2},
		{ratelimit.FixedWindow{Limit: 3, Window: 1}, 2}, // the last of one word would be gone
		{ratelimit.FixedWindow{Limit: 10, Window: time.Second, Start: ratelimit.StartOnFirstEvent}, 2},
		{ratelimit.CalendarWindow{Limit: math.MaxInt32, Every: ratelimit.Year}, 1},
		{ratelimit.SlidingWindow{Limit: 32_767, Window: time.Second}, 1},
		{ratelimit.SlidingWindow{Limit: 32_768, Window: time.Second}, 2},
		{ratelimit.SlidingWindow{Limit: 262_143, Window: time.Minute}, 1},
		{ratelimit.SlidingWindow{Limit: 262_144, Window: time.Minute}, 2},
		{ratelimit.SlidingWindow{Limit: 2_097_151, Window: time.Hour}, 1},
		{ratelimit.SlidingWindow{Limit: 2_097_152, Window: time.Hour}, 2},
		{ratelimit.SlidingWindow{Limit: 8_388_607, Window: 24 * time.Hour}, 1},
		{ratelimit.SlidingWindow{Limit: 8_388_608, Window: 24 * time.Hour}, 2},
		{ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.SlidingWindow{Limit: 10, Window: time.Minute}}, 2 + 2},
		{ratelimit.SlidingWindow{Limit: 10, Window: time.Minute, Segments: 60}, 2 + 31},
		{ratelimit.RollingWindow{Quota: 10_000, Window: 24 * time.Hour, Period: time.Hour}, 2 + 12},
		{ratelimit.SlidingLog{Limit: 10, Window: time.Second}, 0},
		{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(10), Warmup: time.Second}, 2},
		{ratelimit.Lockout{Limit: 5, Window: time.Hour, First: time.Minute, Longest: time.Hour}, 5},
		{ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.RollingWindow{Quota: 4, Window: 2, Period: 1}}, 2 + 2},
		{ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.SlidingLog{Limit: 4, Window: 2}}, 0},
	} {
		assert.Equal(t, tt.words, ratelimit.KernelOf(t, tt.alg).Width(), "%T %v", tt.alg, tt.alg)
	}
}

// TestWidthOfHugeLimits has the rows of the table that a 32-bit int cannot name.
func TestWidthOfHugeLimits(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		return
	}
	below, above := int64(math.MaxUint32), int64(math.MaxUint32+1)
	assert.Equal(t, 2, ratelimit.KernelOf(t, ratelimit.CalendarWindow{Limit: int(above / 2), Every: ratelimit.Year}).Width())
	assert.Equal(t, 2, ratelimit.KernelOf(t, ratelimit.SlidingWindow{Limit: int(below), Window: time.Minute}).Width())
	assert.Equal(t, 3, ratelimit.KernelOf(t, ratelimit.SlidingWindow{Limit: int(above), Window: time.Minute}).Width())
	assert.Equal(t, 2+24, ratelimit.KernelOf(t, ratelimit.RollingWindow{Quota: int(above), Window: 24 * time.Hour, Period: time.Hour}).Width())
}

// TestExtremes drives every kernel at the ends of the integers: nothing
// panics, and the answers stay within their bounds.
func TestExtremes(t *testing.T) {
	budget.Alone(t)
	const huge = fakes.MostEvents
	const long = time.Duration(math.MaxInt64)
	var algorithms []ratelimit.Algorithm
	for _, events := range []int{1, 2, 3, 7, 1e9, huge - 1, huge} {
		for _, span := range []time.Duration{1, 2, 3, time.Second, 1e18 + 3, long - 1, long} {
			rate := ratelimit.Rate{events, span}
			for _, size := range []int{1, 2, 1e9 + 7, huge - 1, huge} {
				algorithms = append(algorithms,
					ratelimit.TokenBucket{Rate: rate, Burst: size},
					ratelimit.TokenBucket{Rate: rate, Burst: size, Refill: ratelimit.RefillInterval},
					ratelimit.LeakyBucket{Rate: rate, Capacity: size},
					ratelimit.FixedWindow{Limit: size, Window: span},
					ratelimit.FixedWindow{Limit: size, Window: span, Start: ratelimit.StartOnFirstEvent},
					ratelimit.SlidingWindow{Limit: size, Window: span},
					ratelimit.SlidingLog{Limit: size, Window: span},
					ratelimit.SlidingLog{Limit: size, Window: span, CountDenied: true},
					ratelimit.RollingWindow{Quota: size, Window: span, Period: span, PeriodLimit: events},
					ratelimit.Lockout{Limit: size, Window: span, First: span},
					ratelimit.Lockout{Limit: size, Window: 1, First: span, Longest: long},
				)
			}
			for _, factor := range []float64{1, 3, math.MaxInt32} {
				algorithms = append(algorithms, ratelimit.WarmingUp{Rate: rate, Warmup: span, ColdFactor: factor},
					ratelimit.WarmingUp{Rate: rate, Warmup: 1, ColdFactor: factor})
			}
		}
	}
	for every := ratelimit.Day; every <= ratelimit.Year; every++ {
		algorithms = append(algorithms,
			ratelimit.CalendarWindow{Limit: huge, Every: every},
			ratelimit.CalendarWindow{Limit: 1e9 + 7, Every: every, Hour: 23, Zone: "Pacific/Apia"})
	}
	for _, span := range []time.Duration{1 << 20, 1 << 62} {
		algorithms = append(algorithms,
			ratelimit.SlidingWindow{Limit: huge, Window: span, Segments: 1 << 10},
			ratelimit.RollingWindow{Quota: huge, Window: span, Period: span / (1 << 10), PeriodLimit: huge - 1})
	}
	instants := []kernel.Instant{0, 1, uint64(time.Second), 1_800_000_000e9 + 1, kernel.MaxInstant - 1, kernel.MaxInstant}
	for _, alg := range algorithms {
		k := ratelimit.KernelOf(t, alg)
		limit := k.Limit()
		require.Positive(t, limit, "%T %v", alg, alg)
		for _, first := range instants {
			st := make([]uint64, k.Width())
			for _, now := range instants {
				if now < first {
					continue
				}
				for _, n := range []int{1, limit/2 + 1, limit} {
					room := k.Remaining(st, now)
					require.GreaterOrEqual(t, room, 0, "%T %v", alg, alg)
					require.LessOrEqual(t, room, limit, "%T %v", alg, alg)
					at := k.Ready(st, now, n)
					require.GreaterOrEqual(t, at, now, "%T %v", alg, alg)
					require.Equal(t, at == now, n <= room, "%T %v: %d at %d: room %d, ready %d", alg, alg, n, now, room, at)
					if at > now && at <= kernel.MaxInstant {
						require.LessOrEqual(t, n, k.Remaining(st, at), "%T %v: %d at %d, ready at %d", alg, alg, n, now, at)
						require.Greater(t, n, k.Remaining(st, at-1), "%T %v: %d at %d, ready before %d", alg, alg, n, now, at)
					}
					if at == now {
						st = k.Spend(st, now, n)
						require.Greater(t, k.Fresh(st), now, "%T %v", alg, alg)
					}
				}
			}
			if fresh := k.Fresh(st); fresh <= kernel.MaxInstant {
				require.Equal(t, limit, k.Remaining(st, fresh), "%T %v: not fresh at %d", alg, alg, fresh)
			}
		}
	}
}

// TestSum: the sum of the events that several Bounds ask of one key is exact, up to the greatest
// number.
func TestSum(t *testing.T) {
	assert.Equal(t, math.MaxInt-1, ratelimit.Sum(math.MaxInt/2, math.MaxInt/2))
	assert.Equal(t, math.MaxInt, ratelimit.Sum(math.MaxInt/2, math.MaxInt/2+2))
}
