package decide_test

import (
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// What is returned at once is as if it had not been taken; what a reservation counts
// on is not returned; and nothing is ever returned beyond what was taken.
func TestReturn(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC)
	for name, tt := range map[string]struct {
		alg   ratelimit.Algorithm
		keeps bool
	}{
		"bucket":   {alg: ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10)}},
		"sevenths": {alg: ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 7, Per: time.Minute}, Burst: 10}},
		"interval": {alg: ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10), Refill: ratelimit.RefillInterval}},
		"fixed":    {alg: ratelimit.FixedWindow{Limit: 10, Window: time.Hour}},
		"sliding":  {alg: ratelimit.SlidingWindow{Limit: 10, Window: time.Hour, Segments: 3}},
		"log":      {alg: ratelimit.SlidingLog{Limit: 10, Window: time.Minute}},
		"rolling":  {alg: ratelimit.RollingWindow{Quota: 10, Window: time.Hour, Period: time.Minute}},
		"all":      {alg: ratelimit.All{ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.SlidingLog{Limit: 11, Window: time.Minute}}},
		"leaky":    {alg: ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(10), Capacity: 10}, keeps: true},
		"warming":  {alg: ratelimit.WarmingUp{Rate: ratelimit.PerMinute(10), Warmup: time.Minute}, keeps: true},
		"counted":  {alg: ratelimit.SlidingLog{Limit: 10, Window: time.Minute, CountDenied: true}, keeps: true},
	} {
		tr, err := fakes.NewLimit(tt.alg)
		require.NoError(t, err)
		var state []byte
		now := start
		do := func(req kernel.Request) ratelimit.Decision {
			next, _, res, err := tr.Apply(state, req.At(now))
			require.NoError(t, err)
			state = next
			return ratelimit.Decision(res.Decision)
		}
		take := func(n int) ratelimit.Decision { return do(kernel.Request{Op: kernel.OpTake, N: n}) }
		giveBack := func(n int) ratelimit.Decision {
			return do(kernel.Request{Op: kernel.OpReturn, N: n, Taken: kernel.InstantOf(start)})
		}
		take(3)
		before := take(0)
		take(4)
		taken := take(0)
		after := giveBack(4)
		if tt.keeps {
			assert.Equal(t, taken.ResetAfter, after.ResetAfter, name)
			assert.Equal(t, taken.Remaining, after.Remaining, name)
			continue
		}
		assert.NotEqual(t, taken.Remaining, after.Remaining, name)
		assert.Equal(t, before.Remaining, after.Remaining, name)
		assert.LessOrEqual(t, after.ResetAfter, before.ResetAfter, name)
		assert.LessOrEqual(t, giveBack(1000).Remaining, 10, name)

		state = nil
		take(10)
		reserved := do(kernel.Request{Op: kernel.OpReserve, N: 2, MaxWait: ratelimit.Never})
		require.Zero(t, reserved.Remaining, name)
		assert.Zero(t, giveBack(5).Remaining, "%s: a reservation is ahead", name)
	}
}

// A bucket whose burst was lowered below what is missing takes events back: nobody counts on
// them but reservations.
func TestReturnToLoweredBucket(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC)
	var state []byte
	do := func(burst int, req kernel.Request) ratelimit.Decision {
		tr, err := fakes.NewLimit(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: burst})
		require.NoError(t, err)
		next, _, res, err := tr.Apply(state, req.At(now))
		require.NoError(t, err)
		state = next
		return ratelimit.Decision(res.Decision)
	}
	require.True(t, do(1000, kernel.Request{Op: kernel.OpTake, N: 609}).Allowed)
	require.True(t, do(1000, kernel.Request{Op: kernel.OpTake, N: 7}).Allowed)
	require.False(t, do(300, kernel.Request{Op: kernel.OpTake, N: 1}).Allowed)
	do(300, kernel.Request{Op: kernel.OpReturn, N: 7, Taken: kernel.InstantOf(now)})
	require.False(t, do(300, kernel.Request{Op: kernel.OpTake, N: 1}).Allowed)
	assert.Equal(t, 391, do(1000, kernel.Request{Op: kernel.OpTake}).Remaining)
}

// TestReturnIsExact: after a return, with or without a reservation ahead, either none of the
// events counts any more, or Allowed is false and all of them count once the reservation is
// cancelled.
func TestReturnIsExact(t *testing.T) {
	const limit, used, leased = 1000, 100, 60
	start := time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC)
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket":           ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1000, Per: 1e5 * time.Hour}},
		"lumps":            ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1000, Per: 1000 * time.Hour}, Refill: ratelimit.RefillInterval},
		"fixed":            ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour},
		"fixed, on demand": ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour, Start: ratelimit.StartOnFirstEvent},
		"sliding":          ratelimit.SlidingWindow{Limit: 1000, Window: 1000 * time.Hour, Segments: 4},
		"log":              ratelimit.SlidingLog{Limit: 1000, Window: 1000 * time.Hour},
		"rolling":          ratelimit.RollingWindow{Quota: 1000, Window: 1000 * time.Hour, Period: 10 * time.Hour},
		"all": ratelimit.All{
			ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour},
			ratelimit.RollingWindow{Quota: 1000, Window: 1000 * time.Hour, Period: 500 * time.Hour},
		},
	} {
		tr, err := fakes.NewLimit(alg)
		require.NoError(t, err)
		for _, reserved := range []int{0, 841, 1000} {
			for _, times := range []int{1, 2, 3} {
				var state []byte
				now := start
				do := func(req kernel.Request) kernel.Answer {
					next, _, res, err := tr.Apply(state, req.At(now))
					require.NoError(t, err)
					state = next
					return res
				}
				do(kernel.Request{Op: kernel.OpTake, N: used})
				now = now.Add(time.Minute)
				do(kernel.Request{Op: kernel.OpTake, N: leased})
				taken := now
				now = now.Add(time.Minute)
				for i := range times {
					if reserved > 0 {
						do(kernel.Request{Op: kernel.OpReserve, N: reserved, MaxWait: ratelimit.Never, Hold: kernel.Handle{ID: 2 + 2*uint64(i)}})
					}
				}
				returned := do(kernel.Request{Op: kernel.OpReturn, N: leased, Taken: kernel.InstantOf(taken)}).Allowed
				if reserved == 0 {
					require.True(t, returned, name)
				}
				for i := range times {
					do(kernel.Request{Op: kernel.OpSettle, Hold: kernel.Handle{ID: 2 + 2*uint64(i)}})
				}
				d := do(kernel.Request{Op: kernel.OpPeek, N: 1}).Decision
				want := limit - used
				if !returned {
					want -= leased
				}
				assert.Equal(t, want, d.Remaining, "%s: %d times %d reserved, returned %v, retry %v", name, times, reserved, returned, d.RetryAfter)
			}
		}
	}
}

// TestReturnTooLate: events whose window is over do not count any more, even if a reservation
// is ahead.
func TestReturnTooLate(t *testing.T) {
	taken := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, alg := range map[string]ratelimit.Algorithm{
		"fixed":            ratelimit.FixedWindow{Limit: 10, Window: time.Hour},
		"fixed, on demand": ratelimit.FixedWindow{Limit: 10, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
		"log":              ratelimit.SlidingLog{Limit: 10, Window: time.Hour},
		"rolling":          ratelimit.RollingWindow{Quota: 10, Window: time.Hour, Period: time.Hour},
	} {
		tr, err := fakes.NewLimit(alg)
		require.NoError(t, err)
		var state []byte
		do := func(at time.Duration, req kernel.Request) ratelimit.Decision {
			next, _, res, err := tr.Apply(state, req.At(taken.Add(at)))
			require.NoError(t, err)
			state = next
			return ratelimit.Decision(res.Decision)
		}
		do(0, kernel.Request{Op: kernel.OpTake, N: 4})
		for range 3 {
			do(0, kernel.Request{Op: kernel.OpReserve, N: 10, MaxWait: ratelimit.Never})
		}
		back := kernel.Request{Op: kernel.OpReturn, N: 2, Taken: kernel.InstantOf(taken)}
		assert.Equal(t, name == "log", do(time.Hour-1, back).Allowed, name)
		assert.True(t, do(time.Hour, back).Allowed, name)
	}
}
