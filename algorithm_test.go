package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A user's type that embeds an algorithm is refused: the library cannot know what its
// other fields mean, or whether it can be compared.
func TestForeignAlgorithm(t *testing.T) {
	type tagged struct {
		ratelimit.TokenBucket
		Labels []string
	}
	type pointing struct{ *ratelimit.TokenBucket }
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}
	for name, alg := range map[string]ratelimit.Algorithm{
		"embedded":            tagged{TokenBucket: bucket},
		"a pointer to it":     &tagged{TokenBucket: bucket},
		"an embedded pointer": pointing{&bucket},
		"an embedded nil":     pointing{},
		"embedded All":        struct{ ratelimit.All }{ratelimit.All{bucket}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, alg := range []ratelimit.Algorithm{alg, ratelimit.All{bucket, alg}, ratelimit.All{ratelimit.All{alg}}} {
				_, err := ratelimit.New(alg)
				require.ErrorIs(t, err, ratelimit.ErrInvalid)
				assert.ErrorContains(t, err, "must be one of this package's own")
				_, err = ratelimit.NewTransition(alg)
				require.ErrorIs(t, err, ratelimit.ErrInvalid)
			}
			assert.Nil(t, ratelimit.Share(alg, 2))

			// Nor does one from a lookup keep others from being looked up.
			limits := map[string]ratelimit.Algorithm{"foreign": alg, "parts": ratelimit.All{bucket, alg}, "good": ratelimit.FixedWindow{Limit: 3, Window: time.Hour}}
			l, err := ratelimit.New(bucket, ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
				return limits[key], nil
			}))
			require.NoError(t, err)
			for range 2 {
				for _, key := range []string{"foreign", "parts"} {
					_, err = l.Take(t.Context(), key, 1)
					require.ErrorIs(t, err, ratelimit.ErrInvalid)
				}
				assert.True(t, l.Allow("good"))
			}
		})
	}
}

// TestZeroFields: AlgorithmOf returns parameters with defaults filled in, so that its
// callers need not know the defaults.
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

// TestSlidingWindowRetryAfter: an event counts, in the end in part, until Segments whole segments
// have passed after its own.
func TestSlidingWindowRetryAfter(t *testing.T) {
	for segments, want := range map[int]time.Duration{
		0: 2 * time.Minute,
		1: 2 * time.Minute,
		2: 90 * time.Second,
		6: 70 * time.Second,
	} {
		clk := clock.NewMock() // at the Unix epoch, where a segment begins
		l, err := ratelimit.New(ratelimit.SlidingWindow{Limit: 1, Window: time.Minute, Segments: segments}, ratelimit.WithClock(clk))
		require.NoError(t, err)
		require.True(t, l.Allow("key"))
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, want, d.RetryAfter, "%d segments", segments)
	}
}
