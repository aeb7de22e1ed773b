package ratelimit

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func kernelOf(t testing.TB, alg Algorithm) kernel {
	t.Helper()
	_, k, err := compile(alg)
	require.NoError(t, err)
	return k
}

// TestFigureWeightedPair is the example of the definition: 9 before, 5 now, a
// quarter in, limit 10: 9·0.75 + 5 = 11.75, refused.
func TestFigureWeightedPair(t *testing.T) {
	const w = uint64(time.Minute)
	k := kernelOf(t, SlidingWindow{Limit: 10, Window: time.Minute})
	st := k.spend(make([]uint64, k.width()), 7*w, 9)
	now := 8*w + w/4
	st = k.spend(st, now, 5)
	assert.Zero(t, k.room(st, now))
	// 9·(1−e) + 5 + 1 ≤ 10 from e = 5/9 on: 33⅓ s.
	assert.Equal(t, 8*w+33_333_333_334, k.ready(st, now, 1))
	// Compared exactly, not after flooring: ⌊9·0.75⌋ + 1 + 3 = 10 would fit, 10.75 does not.
	st = k.spend(make([]uint64, k.width()), 7*w, 9)
	st = k.spend(st, now, 1)
	assert.Equal(t, 2, k.room(st, now))
	assert.Greater(t, k.ready(st, now, 3), now)
}

// TestWidths holds the table of docs/design.md, and what each algorithm's
// documentation says a key costs.
func TestWidths(t *testing.T) {
	for _, tt := range []struct {
		alg   Algorithm
		words int
	}{
		{TokenBucket{Rate: PerSecond(10)}, 1},
		{TokenBucket{Rate: PerMinute(60)}, 1},
		{TokenBucket{Rate: PerSecond(3), Burst: 1e9}, 1}, // thirds of a nanosecond
		{TokenBucket{Rate: PerSecond(60)}, 1},            // thirds too
		{TokenBucket{Rate: PerSecond(7)}, 2},             // sevenths
		{TokenBucket{Rate: PerDay(1), Burst: 50_000}, 1}, // 137 years to fill
		{TokenBucket{Rate: PerDay(1), Burst: 60_000}, 2}, // 164 years
		{TokenBucket{Rate: PerSecond(1), Refill: RefillInterval}, 2},
		{LeakyBucket{Rate: PerSecond(10), Capacity: 10}, 1},
		{FixedWindow{Limit: 1e9, Window: time.Second}, 1},
		{FixedWindow{Limit: math.MaxInt32, Window: time.Microsecond}, 2},
		{FixedWindow{Limit: 10, Window: time.Second, Start: StartOnFirstEvent}, 2},
		{SlidingWindow{Limit: 10, Window: time.Minute}, 2},
		{SlidingWindow{Limit: 10, Window: time.Minute, Segments: 60}, 1 + 31},
		{RollingWindow{Quota: 10_000, Window: 24 * time.Hour, Period: time.Hour}, 1 + 12},
		{SlidingLog{Limit: 10, Window: time.Second}, 0},
		{WarmingUp{Rate: PerSecond(10), Warmup: time.Second}, 2},
		{All{TokenBucket{Rate: PerSecond(10)}, RollingWindow{Quota: 4, Window: 2, Period: 1}}, 1 + 2},
		{All{TokenBucket{Rate: PerSecond(10)}, SlidingLog{Limit: 4, Window: 2}}, 0},
	} {
		assert.Equal(t, tt.words, kernelOf(t, tt.alg).width(), "%T%+v", tt.alg, tt.alg)
	}
}

// TestWidthOfHugeLimits has the rows of the table that a 32-bit int cannot name.
func TestWidthOfHugeLimits(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		return
	}
	below, above := int64(math.MaxUint32), int64(math.MaxUint32+1)
	assert.Equal(t, 2, kernelOf(t, SlidingWindow{Limit: int(below), Window: time.Minute}).width())
	assert.Equal(t, 3, kernelOf(t, SlidingWindow{Limit: int(above), Window: time.Minute}).width())
	assert.Equal(t, 1+24, kernelOf(t, RollingWindow{Quota: int(above), Window: 24 * time.Hour, Period: time.Hour}).width())
}

// TestLogGrowsWithUse checks that the memory of a SlidingLog follows what is
// in the window, not Limit, and that it does not keep what has left it.
func TestLogGrowsWithUse(t *testing.T) {
	k := kernelOf(t, SlidingLog{Limit: math.MaxInt, Window: time.Second})
	var st []uint64
	for i := range uint64(1000) {
		st = k.spend(st, i, 1)
	}
	assert.Len(t, st, logHeader+1000, "a word for each event")
	assert.Equal(t, math.MaxInt-1000, k.room(st, 1000))
	grown := cap(st)

	st = k.spend(st, uint64(time.Second)+998, 5)
	assert.Len(t, st, logHeader+1+2, "one left, and two words for five at once")
	assert.Less(t, cap(st), grown/2, "memory is given back")

	now := uint64(time.Hour)
	for range 100_000 { // a steady flow of about 100 in the window
		now += uint64(10 * time.Millisecond)
		st = k.spend(st, now, 1)
		require.LessOrEqual(t, len(st), logHeader+2*100+2)
	}
	require.LessOrEqual(t, cap(st), 1024)
}

// TestLogKeepsRefusedThatMatter checks that refused events do not grow a log
// beyond its limit.
func TestLogKeepsRefusedThatMatter(t *testing.T) {
	k := kernelOf(t, SlidingLog{Limit: 10, Window: time.Second, CountDenied: true})
	st := k.spend(nil, 1, 10)
	for i := range uint64(10_000) {
		var changed bool
		st, changed = k.refuse(st, 2+i, 1+int(i%10))
		require.True(t, changed)
		require.LessOrEqual(t, st[0], uint64(10))
		require.LessOrEqual(t, len(st), logHeader+2*(2*10))
	}
}

// TestExtremes drives every kernel at the ends of the integers: nothing
// panics, and the answers stay within their bounds.
func TestExtremes(t *testing.T) {
	const huge = math.MaxInt
	const long = time.Duration(math.MaxInt64)
	var algorithms []Algorithm
	for _, events := range []int{1, 2, 3, 7, 1e9, huge - 1, huge} {
		for _, span := range []time.Duration{1, 2, 3, time.Second, 1e18 + 3, long - 1, long} {
			rate := Rate{events, span}
			for _, size := range []int{1, 2, 1e9 + 7, huge - 1, huge} {
				algorithms = append(algorithms,
					TokenBucket{Rate: rate, Burst: size},
					TokenBucket{Rate: rate, Burst: size, Refill: RefillInterval},
					LeakyBucket{Rate: rate, Capacity: size},
					FixedWindow{Limit: size, Window: span},
					FixedWindow{Limit: size, Window: span, Start: StartOnFirstEvent},
					SlidingWindow{Limit: size, Window: span},
					SlidingLog{Limit: size, Window: span},
					SlidingLog{Limit: size, Window: span, CountDenied: true},
					RollingWindow{Quota: size, Window: span, Period: span, PeriodLimit: events},
				)
			}
			for _, factor := range []float64{1, 3, math.MaxInt32} {
				algorithms = append(algorithms, WarmingUp{Rate: rate, Warmup: span, ColdFactor: factor},
					WarmingUp{Rate: rate, Warmup: 1, ColdFactor: factor})
			}
		}
	}
	for _, span := range []time.Duration{1 << 20, 1 << 62} {
		algorithms = append(algorithms,
			SlidingWindow{Limit: huge, Window: span, Segments: 1 << 10},
			RollingWindow{Quota: huge, Window: span, Period: span / (1 << 10), PeriodLimit: huge - 1})
	}
	instants := []instant{0, 1, uint64(time.Second), 1_800_000_000e9 + 1, maxInstant - 1, maxInstant}
	for _, alg := range algorithms {
		k := kernelOf(t, alg)
		limit := k.limit()
		require.Positive(t, limit, "%T%+v", alg, alg)
		for _, first := range instants {
			st := make([]uint64, k.width())
			for _, now := range instants {
				if now < first {
					continue
				}
				for _, n := range []int{1, limit/2 + 1, limit} {
					room := k.room(st, now)
					require.GreaterOrEqual(t, room, 0, "%T%+v", alg, alg)
					require.LessOrEqual(t, room, limit, "%T%+v", alg, alg)
					at := k.ready(st, now, n)
					require.GreaterOrEqual(t, at, now, "%T%+v", alg, alg)
					require.Equal(t, at == now, n <= room, "%T%+v: %d at %d: room %d, ready %d", alg, alg, n, now, room, at)
					if at > now && at <= maxInstant {
						require.LessOrEqual(t, n, k.room(st, at), "%T%+v: %d at %d, ready at %d", alg, alg, n, now, at)
						require.Greater(t, n, k.room(st, at-1), "%T%+v: %d at %d, ready before %d", alg, alg, n, now, at)
					}
					if at == now {
						st = k.spend(st, now, n)
						require.Greater(t, k.fresh(st), now, "%T%+v", alg, alg)
					}
				}
			}
			if fresh := k.fresh(st); fresh <= maxInstant {
				require.Equal(t, limit, k.room(st, fresh), "%T%+v: not fresh at %d", alg, alg, fresh)
			}
		}
	}
}
