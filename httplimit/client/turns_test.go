package client_test

import (
	"context"
	"sync"
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
			turn, err := turns.Wait(t.Context(), step.key, step.n)
			require.NoError(t, err)
			turn.End()
			assert.Equal(t, step.at, time.Since(begin), "step %d", i)
		}

		turns.HoldBack("a", time.Minute)
		turns.HoldBack("a", time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute-1)
		defer cancel()
		begin = time.Now()
		_, err := turns.Wait(ctx, "a", 1)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "the next request may go in 1m0s")
		assert.Zero(t, time.Since(begin))
		_, err = turns.Wait(t.Context(), "b", 3)
		assert.ErrorIs(t, err, ratelimit.ErrNever)
	})
}

// TestTurnsReturnByTwosAndFours checks how many streams begin after a rest, if each is granted a second
// later, and stays open.
func TestTurnsReturnByTwosAndFours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(t, ratelimit.Unlimited{})
		turns.HoldBack("a", time.Minute)
		begin, at := time.Now(), make(map[time.Duration]int)
		var mu sync.Mutex // protects at
		var wg sync.WaitGroup
		for range 300 {
			wg.Go(func() {
				turn, err := turns.Wait(t.Context(), "a", 1)
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				at[time.Since(begin)-time.Minute]++
				mu.Unlock()
				time.Sleep(time.Second)
				turn.Granted()
				time.Sleep(time.Hour)
				turn.Granted()
				turn.End()
			})
		}
		wg.Wait()
		const s = time.Second
		assert.Equal(t, map[time.Duration]int{0: 1, s: 2, 2 * s: 4, 3 * s: 8, 4 * s: 16, 5 * s: 32, 6 * s: 237}, at)
	})
}

// TestTurnsNotGranted has a server that does not grant the first requests after a rest: each lets another
// one go when it ends.
func TestTurnsNotGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(t, ratelimit.Unlimited{})
		turns.HoldBack("a", time.Minute)
		begin := time.Now()
		var mu sync.Mutex // protects at
		var at []time.Duration
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				turn, err := turns.Wait(t.Context(), "a", 1)
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				at = append(at, time.Since(begin))
				mu.Unlock()
				time.Sleep(time.Second)
				turn.End()
			})
		}
		wg.Wait()
		const s = time.Second
		assert.Equal(t, []time.Duration{60 * s, 61 * s, 62 * s}, at)
		var none *client.Turn
		none.HoldBack(time.Hour)
		none.Refused(time.Hour)
		none.Granted()
		none.End()
	})
}

// TestTurnsRefused has a server that refuses requests, some of which it has granted before, and says for how
// long, or not.
func TestTurnsRefused(t *testing.T) {
	for _, isGranted := range []bool{false, true} {
		for asked, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, 0: time.Second, -time.Hour: time.Second} {
			synctest.Test(t, func(t *testing.T) {
				turns := newTurns(t, ratelimit.Unlimited{})
				turn, err := turns.Wait(t.Context(), "a", 1)
				require.NoError(t, err)
				if isGranted {
					turn.Granted()
				}
				turn.Refused(asked)
				turn.End()
				begin := time.Now()
				_, err = turns.Wait(t.Context(), "a", 1)
				require.NoError(t, err)
				assert.GreaterOrEqual(t, time.Since(begin), want)
				assert.LessOrEqual(t, time.Since(begin), want+want/2)
			})
		}
	}
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
			first.End()
			first.End()
		}()
		turn, err := turns.Wait(t.Context(), "a", 1)
		require.NoError(t, err)
		assert.Equal(t, 2*time.Minute, time.Since(begin), "it gives its slot back during the rest, and takes one after it")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = turns.Wait(ctx, "a", 1)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		turn.End()
		_, err = turns.Wait(t.Context(), "a", 1)
		require.NoError(t, err)
	})
	_, err := client.NewTurns(nil, false)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}
