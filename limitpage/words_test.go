package limitpage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

func TestWords(t *testing.T) {
	for _, tt := range []struct {
		alg         ratelimit.Algorithm
		name, limit string
	}{
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, "token bucket", "10 per second"},
		{ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1000), Burst: 20}, "token bucket", "1,000 per minute, 20 at once"},
		{ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 5, Per: 90 * time.Second}, Burst: 7, Refill: ratelimit.RefillInterval}, "token bucket, refilled at intervals", "5 every 1m30s, 7 at once"},
		{ratelimit.LeakyBucket{Rate: ratelimit.PerHour(2)}, "leaky bucket", "2 per hour, a queue of 1"},
		{ratelimit.FixedWindow{Limit: 1_000_000, Window: 24 * time.Hour}, "fixed window", "1,000,000 per day"},
		{ratelimit.FixedWindow{Limit: 5, Window: 48 * time.Hour, Start: ratelimit.StartOnFirstEvent}, "fixed window, from the first event", "5 per 2d"},
		{ratelimit.SlidingWindow{Limit: 5, Window: time.Minute}, "sliding window", "5 per minute"},
		{ratelimit.SlidingWindow{Limit: 5, Window: time.Minute, Segments: 6}, "sliding window of 6 segments", "5 per minute"},
		{ratelimit.SlidingLog{Limit: 5, Window: 10 * time.Second}, "sliding log", "5 in any 10s"},
		{ratelimit.SlidingLog{Limit: 5, Window: 36 * time.Hour, CountDenied: true}, "sliding log, which counts denials", "5 in any 1d12h"},
		{ratelimit.RollingWindow{Quota: 100, Window: 24 * time.Hour, Period: time.Hour, PeriodLimit: 10}, "rolling window, in periods of 1h", "100 per day, 10 per hour"},
		{ratelimit.RollingWindow{Quota: 100, Window: 24 * time.Hour, Period: time.Hour}, "rolling window, in periods of 1h", "100 per day"},
		{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: 3 * time.Second}, "warming up", "100 per second, and 1/3 of that at first, for a warm-up of 3s"},
		{ratelimit.InFlight{Limit: 5, Timeout: time.Minute}, "in flight", "5 at once, each for 1m at most"},
		{ratelimit.All{ratelimit.InFlight{Limit: 5, Timeout: time.Minute}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3)}}, "all of: in flight; token bucket", "5 at once, each for 1m at most; 3 per second"},
		{ratelimit.Unlimited{}, "unlimited", "no limit"},
		{ratelimit.Blocked{}, "blocked", "nothing is granted"},
	} {
		l, err := ratelimit.New(tt.alg)
		require.NoError(t, err)
		name, limit := words(ratelimit.Describe(l).Algorithm)
		assert.Equal(t, tt.name, name)
		assert.Equal(t, tt.limit, limit)
	}
}

// TestEveryAlgorithmHasWords fails for a new algorithm until words knows it.
func TestEveryAlgorithmHasWords(t *testing.T) {
	for name, alg := range storetest.Algorithms() {
		_, limit := words(ratelimit.Describe(ratelimit.Must(ratelimit.New(alg))).Algorithm)
		assert.NotContains(t, limit, "{", name)
	}
	for name, alg := range storetest.Plans() {
		_, limit := words(ratelimit.Describe(ratelimit.Must(ratelimit.New(alg))).Algorithm)
		assert.NotContains(t, limit, "{", name)
	}
}

func TestComma(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		assert.Equal(t, want, comma(n))
	}
}
