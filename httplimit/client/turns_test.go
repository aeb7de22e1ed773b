package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
)

func newTurns(t *testing.T, alg ratelimit.Algorithm) *client.Turns {
	l, err := ratelimit.New(alg)
	require.NoError(t, err)
	turns, err := client.NewTurns(l, false)
	require.NoError(t, err)
	return turns
}

// TestTurns checks at which instants requests may be sent.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, begin := newTurns(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2}), time.Now()
		for i, step := range []struct {
			key      string
			n        int
			holdBack time.Duration // before
			at       time.Duration
		}{
			{"a", 2, 0, 0},
			{"a", 1, 0, time.Second},
			{"b", 1, 0, time.Second},
			{"a", 1, 10 * time.Second, 11 * time.Second},
			{"a", 1, -time.Hour, 11 * time.Second},
			{"a", 1, 0, 12 * time.Second},
			{"a", 1, 48 * time.Hour, 24*time.Hour + 12*time.Second},
		} {
			turns.HoldBack(step.key, step.holdBack)
			release, err := turns.Wait(t.Context(), step.key, step.n)
			require.NoError(t, err)
			release()
			assert.Equal(t, step.at, time.Since(begin), "step %d", i)
		}

		turns.HoldBack("a", time.Minute)
		turns.HoldBack("a", time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute-1)
		defer cancel()
		begin = time.Now()
		_, err := turns.Wait(ctx, "a", 1)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "the server asked to wait 1m0s")
		assert.Zero(t, time.Since(begin))
		_, err = turns.Wait(t.Context(), "b", 3)
		assert.ErrorIs(t, err, ratelimit.ErrNever)
	})
}

// TestTurnsInFlight checks that a request is in flight until it is released, once.
func TestTurnsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, begin := newTurns(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour}), time.Now()
		first, err := turns.Wait(t.Context(), "a", 1)
		require.NoError(t, err)
		go func() {
			time.Sleep(time.Minute)
			turns.HoldBack("a", time.Minute)
			first()
			first()
		}()
		release, err := turns.Wait(t.Context(), "a", 1)
		require.NoError(t, err)
		assert.Equal(t, 2*time.Minute, time.Since(begin), "it gives its slot back during the rest, and takes one after it")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = turns.Wait(ctx, "a", 1)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		release()
		_, err = turns.Wait(t.Context(), "a", 1)
		require.NoError(t, err)
	})
	_, err := client.NewTurns(nil, false)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}
