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
				l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithStore(store()), ratelimit.WithFailureLog(nil),
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

// TestTakeAllOfWrappersIsSeen: TakeAll calls Hold of a limiter that New has not made. If another key
// refuses, an observer sees the hold and that it is settled with 0.
func TestTakeAllOfWrappersIsSeen(t *testing.T) {
	l, w, _ := observedLimiter(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour})
	blocked := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}))
	require.True(t, blocked.Allow("k"))
	d, err := ratelimit.TakeAll(t.Context(), 2, ratelimit.For(wrapped{l}, "k"), ratelimit.For(blocked, "k"))
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
