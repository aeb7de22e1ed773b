package docs_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

// The tests that docs/testing.md shows.

func TestDocumentedBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
		require.True(t, limiter.Allow("alice"))
		require.False(t, limiter.Allow("alice"))
		time.Sleep(time.Second) // takes no time
		require.True(t, limiter.Allow("alice"))

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		require.ErrorIs(t, limiter.Wait(ctx, "alice"), context.DeadlineExceeded)
	})
}

// A limiter made before a bubble is ahead of the bubble's clock: time stands still.
func TestDocumentedBubbleNeedsItsOwnLimiter(t *testing.T) {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
	limiter.Allow("alice")
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		require.False(t, limiter.Allow("alice"))
	})
}

func TestDocumentedFake(t *testing.T) {
	limiter := ratelimittest.New(func(call ratelimit.Call, key string, n int) ratelimit.Decision {
		if key == "mallory" {
			return ratelimit.Decision{Limit: 10, RetryAfter: time.Minute}
		}
		return ratelimit.Decision{Allowed: true, Limit: 10, Remaining: 9}
	})
	require.True(t, limiter.Allow("alice"))
	require.False(t, limiter.Allow("mallory"))
}

func TestDocumentedExhaustedLimiter(t *testing.T) {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour}))
	limiter.Allow("alice")
	require.False(t, limiter.Allow("alice"))
}

// With a mock, a deadline of today is decades away for the limiter, and real for the
// context.
func TestDocumentedDeadlineWithMock(t *testing.T) {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)},
		ratelimit.WithClock(clock.NewMock())))
	limiter.Allow("alice")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		begin := time.Now()
		err := limiter.Wait(ctx, "alice")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorAs(t, err, new(*ratelimit.TurnError)) // it did not fail at once
		require.Equal(t, time.Millisecond, time.Since(begin))
	})
}
