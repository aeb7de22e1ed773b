package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// TestTakeAllLooksUpOnce: the limit of a key is looked up once, wherever its state is, and even if
// it needs none or is not known.
func TestTakeAllLooksUpOnce(t *testing.T) {
	unknown := errors.New("unknown")
	for name, store := range map[string]func() ratelimit.Store{
		"memory": func() ratelimit.Store { return ratelimit.NewMemoryStore() },
		"bytes":  func() ratelimit.Store { return newMapDB().store() },
	} {
		for limit, alg := range map[string]ratelimit.Algorithm{
			"window": ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, "unlimited": ratelimit.Unlimited{}, "blocked": ratelimit.Blocked{}, "unknown": nil,
		} {
			t.Run(name+"/"+limit, func(t *testing.T) {
				lookups := 0
				l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithStore(store()), ratelimit.WithName("test"), ratelimit.WithFailureLog(nil),
					ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
						if lookups++; alg == nil {
							return nil, unknown
						}
						return alg, nil
					})))
				d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "k"))
				if alg == nil {
					require.ErrorIs(t, err, unknown)
				} else {
					require.NoError(t, err)
				}
				assert.Equal(t, limit != "blocked", d.Allowed)
				assert.Equal(t, 1, lookups)
				r, d, _ := ratelimit.HoldAll(t.Context(), 1, ratelimit.For(l, "k"))
				assert.Equal(t, d.Allowed, r != nil)
				assert.Equal(t, 2, lookups)
				if alg != nil {
					_, _ = ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "k"), ratelimit.For(l, "other"))
					assert.Equal(t, 4, lookups)
				}
			})
		}
	}
}

// TestHoldAllOfWrappersIsSeen: HoldAll calls Hold of a limiter that New has not made. If another one
// refuses, an observer sees the hold and that it is settled with 0.
func TestHoldAllOfWrappersIsSeen(t *testing.T) {
	l, w, _ := observedLimiter(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour})
	blocked := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}))
	require.True(t, blocked.Allow("k"))
	_, d, err := ratelimit.HoldAll(t.Context(), 2, ratelimit.For(wrapped{l}, "k"), ratelimit.For(wrapped{blocked}, "k"))
	require.NoError(t, err)
	require.False(t, d.Allowed)
	seen := w.told()
	require.Len(t, seen, 2)
	assert.Equal(t, ratelimit.CallHold, seen[0].Call)
	assert.Equal(t, 2, seen[0].Granted)
	assert.Equal(t, ratelimit.CallSettle, seen[1].Call)
	assert.Equal(t, 2, seen[1].Granted)
	assert.Equal(t, 0, seen[1].N)
	d, err = l.Peek(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining)
}

// If another limiter refuses after a key was held, the key is as if it had not been asked: now, and
// whatever happens later. Only a SlidingLog with CountDenied has noted something.
func TestTakeAllLeavesNoTrace(t *testing.T) {
	refuser := ratelimit.For(struct{ ratelimit.Limiter }{ratelimit.Must(ratelimit.New(ratelimit.Blocked{}))}, "k") // asked last
	eachAccounted(t, func(t *testing.T, i int, store ratelimit.Store) {
		alg := accounted[i].alg
		if log, ok := alg.(ratelimit.SlidingLog); ok && log.CountDenied {
			return // what it has counted stays
		}
		l, clk := at(t, alg, ratelimit.WithStore(store), ratelimit.WithName("test"))
		twin := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
		rnd := newRand(t)
		for step := range 200 {
			n := 1 + rnd.IntN(5)
			want, err := twin.Peek(ctx, "k")
			require.NoError(t, err)
			var d ratelimit.Decision
			if rnd.IntN(2) == 0 {
				d, err = ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "k").N(n), refuser)
			} else {
				_, d, err = ratelimit.HoldAll(ctx, n, ratelimit.For(l, "k"), refuser)
			}
			require.NoError(t, err)
			require.False(t, d.Allowed)
			got, err := l.Peek(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, want, got, "step %d: %d of %v", step, n, alg)
			if rnd.IntN(3) == 0 {
				want, err = twin.Take(ctx, "k", n)
				require.NoError(t, err)
				got, err = l.Take(ctx, "k", n)
				require.NoError(t, err)
				require.Equal(t, want, got, "step %d: Take of %d of %v", step, n, alg)
			}
			clk.Advance(time.Duration(rnd.IntN(200)) * time.Millisecond)
		}
	})
}
