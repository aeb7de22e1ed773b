package decide_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// This file has laws of requests that are made while a reservation's turn is ahead.

// TestNothingIsGrantedBeforeATurn: nothing is granted before a turn, even if a charge has begun the
// window, or the interval of refills, in which the turn lies, and it has room.
func TestNothingIsGrantedBeforeATurn(t *testing.T) {
	for algName, alg := range map[string]ratelimit.Algorithm{
		"FixedWindow": ratelimit.FixedWindow{Limit: 3, Window: time.Minute, Start: ratelimit.StartOnFirstEvent},
		"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerMinute(3), Refill: ratelimit.RefillInterval},
	} {
		for keepingName, keeping := range fakes.Keepings {
			t.Run(algName+"/"+keepingName, func(t *testing.T) {
				l, clk := fakes.At(t, alg, keeping()...)
				held, _, err := l.Hold(ctx, "key", 3, ratelimit.GiveBack(), ratelimit.HoldFor(30*time.Second))
				require.NoError(t, err)
				require.NotNil(t, held)
				first, _, err := l.Reserve(ctx, "key", 1)
				require.NoError(t, err)
				require.Equal(t, time.Minute, first.Delay())

				clk.Advance(40 * time.Second) // what was held has come back
				denied := ratelimit.Decision{Limit: 3, RetryAfter: 20 * time.Second, ResetAfter: time.Minute}
				d, err := l.Charge(ctx, "key", 1)
				require.NoError(t, err)
				assert.Equal(t, denied, d)
				assert.Equal(t, denied, fakes.Peek(t, l))
				d, err = l.Take(ctx, "key", 1)
				require.NoError(t, err)
				assert.Equal(t, denied, d)
				d, err = ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "key"), ratelimit.For(l, "another key"))
				require.NoError(t, err)
				assert.False(t, d.Allowed)
				second, _, err := l.Reserve(ctx, "key", 1)
				require.NoError(t, err)
				assert.Equal(t, 20*time.Second, second.Delay(), "it comes with the first")
				second.Cancel()

				clk.Advance(20 * time.Second)
				assert.True(t, l.Allow("key"))
				assert.False(t, l.Allow("key"))
			})
		}
	}
}

// TestPeekCountsItsDenialOnce: while a reservation's turn is ahead, a Peek returns the decision of
// a Take of one event, even if denials count and a hold will give events back.
func TestPeekCountsItsDenialOnce(t *testing.T) {
	for name, keeping := range fakes.Keepings {
		t.Run(name, func(t *testing.T) {
			l, clk := fakes.At(t, ratelimit.SlidingLog{Limit: 2, Window: time.Minute, CountDenied: true}, keeping()...)
			require.True(t, l.AllowN("key", 2))
			r, _, err := l.Reserve(ctx, "key", 1, ratelimit.GiveBack(), ratelimit.HoldFor(10*time.Second))
			require.NoError(t, err)
			require.Equal(t, time.Minute, r.Delay())
			clk.Advance(30 * time.Second)
			peeked := fakes.Peek(t, l)
			assert.Equal(t, 40*time.Second, peeked.RetryAfter, "when the hold ends, of which the denial leaves room")
			d, err := l.Take(ctx, "key", 1)
			require.NoError(t, err)
			assert.Equal(t, d, peeked)
			clk.Advance(peeked.RetryAfter)
			assert.True(t, l.Allow("key"))
		})
	}
}

// TestHoldsThatEndKeepLaterTurns: after the limit of an InFlight is raised, events that were
// reserved under the lower limit happen at their turn. If another hold ends, nothing is granted
// before that turn.
func TestHoldsThatEndKeepLaterTurns(t *testing.T) {
	alg := ratelimit.InFlight{Limit: 3, Timeout: time.Minute}
	for name, end := range map[string]func(t *testing.T, r *ratelimit.Reservation, clk *stepclock.Clock){
		"by itself": func(t *testing.T, r *ratelimit.Reservation, clk *stepclock.Clock) {
			require.NoError(t, r.Extend(ctx, 5*time.Second))
			clk.Advance(5 * time.Second)
		},
		"settled": func(t *testing.T, r *ratelimit.Reservation, _ *stepclock.Clock) {
			require.NoError(t, r.Release(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, own, s, clk := fakes.Varying(t, alg)
			_, _, err := l.Hold(ctx, "key", 2, ratelimit.HoldFor(30*time.Second))
			require.NoError(t, err)
			long, _, err := l.Hold(ctx, "key", 1, ratelimit.HoldFor(40*time.Second))
			require.NoError(t, err)
			reserved, _, err := l.Reserve(ctx, "key", 2, ratelimit.HoldFor(20*time.Second))
			require.NoError(t, err)
			require.Equal(t, 30*time.Second, reserved.Delay())

			own.Set("key", ratelimit.InFlight{Limit: 9, Timeout: time.Minute})
			behind, _, err := l.Reserve(ctx, "key", 1) // from now on, the state is of this limit
			require.NoError(t, err)
			require.Equal(t, reserved.Delay(), behind.Delay())
			behind.Cancel()
			end(t, long, clk)
			d, err := l.Take(ctx, "key", 1)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "before the turn")
			assert.Equal(t, reserved.Delay(), d.RetryAfter)
			clk.Advance(d.RetryAfter)
			assert.True(t, l.Allow("key"))
			fakes.Check(t, s, 0)
		})
	}
}
