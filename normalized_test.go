package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
)

// TestZeroFields: a limiter tells what its zero fields stand for, so that nobody else
// must know.
func TestZeroFields(t *testing.T) {
	rate := ratelimit.PerSecond(7)
	for _, tt := range []struct{ given, want ratelimit.Algorithm }{
		{ratelimit.TokenBucket{Rate: rate}, ratelimit.TokenBucket{Rate: rate, Burst: 7}},
		{ratelimit.TokenBucket{Rate: rate, Burst: 3}, ratelimit.TokenBucket{Rate: rate, Burst: 3}},
		{ratelimit.LeakyBucket{Rate: rate}, ratelimit.LeakyBucket{Rate: rate, Capacity: 1}},
		{ratelimit.SlidingWindow{Limit: 5, Window: time.Minute}, ratelimit.SlidingWindow{Limit: 5, Window: time.Minute, Segments: 1}},
		{ratelimit.WarmingUp{Rate: rate, Warmup: time.Second}, ratelimit.WarmingUp{Rate: rate, Warmup: time.Second, ColdFactor: 3}},
		{ratelimit.RollingWindow{Quota: 5, Window: time.Hour, Period: time.Minute}, ratelimit.RollingWindow{Quota: 5, Window: time.Hour, Period: time.Minute}},
		{
			ratelimit.All{ratelimit.LeakyBucket{Rate: rate}, ratelimit.All{&ratelimit.TokenBucket{Rate: rate}}},
			ratelimit.All{ratelimit.LeakyBucket{Rate: rate, Capacity: 1}, ratelimit.TokenBucket{Rate: rate, Burst: 7}},
		},
	} {
		l := ratelimit.Must(ratelimit.New(tt.given))
		assert.Equal(t, tt.want, ratelimit.AlgorithmOf(l))
		if _, several := tt.given.(ratelimit.All); !several {
			assert.Equal(t, ratelimit.Share(tt.want, 2), ratelimit.Share(tt.given, 2))
		}
	}
}
