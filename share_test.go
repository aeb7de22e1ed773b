package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

func TestShare(t *testing.T) {
	second := ratelimit.PerSecond
	for _, tt := range []struct{ whole, quarter ratelimit.Algorithm }{
		{ratelimit.TokenBucket{Rate: second(100)}, ratelimit.TokenBucket{Rate: second(25), Burst: 25}},
		{ratelimit.TokenBucket{Rate: second(10), Burst: 3}, ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 10, Per: 4 * time.Second}, Burst: 1}},
		{&ratelimit.TokenBucket{Rate: second(9), Refill: ratelimit.RefillInterval}, ratelimit.TokenBucket{Rate: second(2), Burst: 2, Refill: ratelimit.RefillInterval}},
		{ratelimit.LeakyBucket{Rate: second(1)}, ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 1, Per: 4 * time.Second}, Capacity: 1}},
		{ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}, ratelimit.FixedWindow{Limit: 250, Window: time.Hour}},
		{ratelimit.SlidingWindow{Limit: 10, Window: time.Hour, Segments: 2}, ratelimit.SlidingWindow{Limit: 2, Window: time.Hour, Segments: 2}},
		{ratelimit.SlidingLog{Limit: 1, Window: time.Hour, CountDenied: true}, ratelimit.SlidingLog{Limit: 1, Window: time.Hour, CountDenied: true}},
		{ratelimit.RollingWindow{Quota: 100, Window: 24 * time.Hour, Period: time.Hour}, ratelimit.RollingWindow{Quota: 25, Window: 24 * time.Hour, Period: time.Hour}},
		{ratelimit.WarmingUp{Rate: second(100), Warmup: time.Second}, ratelimit.WarmingUp{Rate: second(25), Warmup: time.Second, ColdFactor: 3}},
		{
			ratelimit.All{ratelimit.FixedWindow{Limit: 8, Window: time.Hour}, ratelimit.All{ratelimit.TokenBucket{Rate: second(4)}}},
			ratelimit.All{ratelimit.FixedWindow{Limit: 2, Window: time.Hour}, ratelimit.All{ratelimit.TokenBucket{Rate: second(1), Burst: 1}}},
		},
		{ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 3, Per: ratelimit.Never}}, ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1, Per: ratelimit.Never}, Burst: 1}},
		{nil, nil},
	} {
		assert.Equal(t, tt.quarter, ratelimit.Share(tt.whole, 4))
	}
	for name, alg := range storetest.Algorithms() {
		for _, n := range []int{-1, 0, 1, 2, 7, 1 << 30} {
			_, err := ratelimit.New(ratelimit.Share(alg, n))
			assert.NoError(t, err, "%s, %d", name, n)
		}
		if _, several := alg.(ratelimit.All); !several {
			assert.Equal(t, ratelimit.AlgorithmOf(ratelimit.Must(ratelimit.New(alg))), ratelimit.Share(alg, 1), name)
		}
	}
	itself := ratelimit.All{nil}
	itself[0] = itself
	_, err := ratelimit.New(ratelimit.Share(itself, 4))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)

	// What cannot be used stays so.
	_, err = ratelimit.New(ratelimit.Share(ratelimit.FixedWindow{Limit: -1, Window: time.Hour}, 4))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}
