package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
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
		tr, err := ratelimit.NewTransition(tt.alg)
		require.NoError(t, err)
		var state []byte
		now := start
		do := func(req ratelimit.Request) ratelimit.Decision {
			next, _, res, err := tr.Apply(state, req.At(now))
			require.NoError(t, err)
			state = next
			return res.Decision
		}
		take := func(n int) ratelimit.Decision { return do(ratelimit.Request{Op: ratelimit.OpTake, N: n}) }
		giveBack := func(n int) ratelimit.Decision {
			return do(ratelimit.Request{Op: ratelimit.OpReturn, N: n, Taken: start})
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
		reserved := do(ratelimit.Request{Op: ratelimit.OpReserve, N: 2, MaxWait: ratelimit.Never})
		require.Zero(t, reserved.Remaining, name)
		assert.Zero(t, giveBack(5).Remaining, "%s: a reservation is ahead", name)
	}
}

// A bucket whose burst was lowered below what is missing takes events back: nobody counts on
// them but reservations.
func TestReturnToLoweredBucket(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC)
	var state []byte
	do := func(burst int, req ratelimit.Request) ratelimit.Decision {
		tr, err := ratelimit.NewTransition(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: burst})
		require.NoError(t, err)
		next, _, res, err := tr.Apply(state, req.At(now))
		require.NoError(t, err)
		state = next
		return res.Decision
	}
	require.True(t, do(1000, ratelimit.Request{Op: ratelimit.OpTake, N: 609}).Allowed)
	require.True(t, do(1000, ratelimit.Request{Op: ratelimit.OpTake, N: 7}).Allowed)
	require.False(t, do(300, ratelimit.Request{Op: ratelimit.OpTake, N: 1}).Allowed)
	do(300, ratelimit.Request{Op: ratelimit.OpReturn, N: 7, Taken: now})
	require.False(t, do(300, ratelimit.Request{Op: ratelimit.OpTake, N: 1}).Allowed)
	assert.Equal(t, 391, do(1000, ratelimit.Request{Op: ratelimit.OpTake}).Remaining)
}
