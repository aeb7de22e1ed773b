package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// forgetting are the ways in which a key that is in use can be forgotten, other than by its own
// limiter.
var forgetting = map[string]func(ctx context.Context, t *testing.T, l ratelimit.Limiter, store *ratelimit.MemoryStore){
	"evicted": func(_ context.Context, t *testing.T, l ratelimit.Limiter, store *ratelimit.MemoryStore) {
		before := store.Stats().Evictions
		for i := range 3 {
			assert.True(t, l.AllowN(fmt.Sprint("other ", i), 12)) // has less left than the key
		}
		require.Equal(t, before+1, store.Stats().Evictions)
	},
	"reset": func(ctx context.Context, t *testing.T, l ratelimit.Limiter, store *ratelimit.MemoryStore) {
		require.NoError(t, another(ctx, t, l, store).Reset(ctx, "k"))
	},
	"reset before Shrink": func(ctx context.Context, t *testing.T, l ratelimit.Limiter, store *ratelimit.MemoryStore) {
		require.NoError(t, another(ctx, t, l, store).Reset(ctx, "k"))
		store.Shrink()
	},
	"reset long ago": func(ctx context.Context, t *testing.T, l ratelimit.Limiter, store *ratelimit.MemoryStore) {
		other := another(ctx, t, l, store)
		require.NoError(t, other.Reset(ctx, "k"))
		for i := range 6000 { // more than the store remembers
			key := fmt.Sprint("other ", i)
			require.True(t, other.Allow(key))
			require.NoError(t, other.Reset(ctx, key))
		}
	},
}

// another returns a limiter with the states of l, which is not told of the other's Resets.
func another(ctx context.Context, t *testing.T, l ratelimit.Limiter, store *ratelimit.MemoryStore) ratelimit.Limiter {
	opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(ratelimit.ClockOf(l))}
	alg := ratelimit.AlgorithmOf(l)
	if alg == nil {
		var err error
		alg, err = ratelimit.AlgorithmFor(ctx, l, "k")
		require.NoError(t, err)
		opts = append(opts, ownLimits(alg))
	}
	return ratelimit.Must(ratelimit.New(alg, opts...))
}

// heldOf holds n events of the key k or, if both is true, of k and k2.
func heldOf(t *testing.T, l ratelimit.Limiter, both bool, n int) *ratelimit.Reservation {
	t.Helper()
	if !both {
		return held(t, l, "k", n)
	}
	r, d, err := ratelimit.HoldAll(t.Context(), n, ratelimit.For(l, "k"), ratelimit.For(l, "k2"))
	require.NoError(t, err)
	require.True(t, d.Allowed)
	return r
}

func ownLimits(alg ratelimit.Algorithm) ratelimit.Option {
	return ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })
}

// A hold of a key that was forgotten gives nothing back: what is known of the key since are the
// events of others.
func TestSettleAfterTheKeyWasForgotten(t *testing.T) {
	ctx := context.Background()
	for how, forget := range forgetting {
		for _, a := range accounted {
			alg := a.alg
			if _, ok := alg.(ratelimit.WarmingUp); ok {
				continue // a second hold has to wait for the first one
			}
			for i := range 8 {
				own, known, both := i%2 > 0, i/2%2 > 0, i/4 > 0
				if both && how == "evicted" {
					continue // the second key has as much left as the first
				}
				t.Run(fmt.Sprintf("%s/own=%v/known=%v/both=%v/%T%+v", how, own, known, both, alg, alg), func(t *testing.T) {
					clk := stepclock.New()
					store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(3))
					opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk)}
					if own {
						opts = append(opts, ownLimits(alg))
					}
					l := ratelimit.Must(ratelimit.New(alg, opts...))
					if known { // a hold on a key that the store has is another path
						require.True(t, l.Allow("k"))
					}
					r := heldOf(t, l, both, 5)
					forget(ctx, t, l, store)
					held(t, l, "k", 5)
					before, err := l.Peek(ctx, "k")
					require.NoError(t, err)

					_, err = r.Settle(ctx, 0)
					require.NoError(t, err)
					after, err := l.Peek(ctx, "k")
					require.NoError(t, err)
					assert.Equal(t, before, after)
				})
			}
		}
	}
}

// TestReleaseAfterKeysWereForgotten: events in flight are released, even if the store has evicted
// or reset other keys since, or so many that the limiter does not know which. But if the key
// itself was reset, they are those of others.
func TestReleaseAfterKeysWereForgotten(t *testing.T) {
	five := ratelimit.InFlight{Limit: 5, Timeout: time.Hour}
	reset := func(t *testing.T, l ratelimit.Limiter, keys ...string) {
		for _, key := range keys {
			l.Allow(key)
			require.NoError(t, l.Reset(t.Context(), key))
		}
	}
	for name, forget := range map[string]func(t *testing.T, l ratelimit.Limiter){
		"one was reset":   func(t *testing.T, l ratelimit.Limiter) { reset(t, l, "other") },
		"many were reset": func(t *testing.T, l ratelimit.Limiter) { reset(t, l, make([]string, 3000)...) },
		"evicted": func(_ *testing.T, l ratelimit.Limiter) {
			for i := range 50 {
				l.Allow(fmt.Sprint("other ", i)) // has more left than the key
			}
		},
	} {
		for _, alg := range []ratelimit.Algorithm{five, ratelimit.All{five, ratelimit.FixedWindow{Limit: 100, Window: 24 * time.Hour}}} {
			for _, own := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/own=%v/%T", name, own, alg), func(t *testing.T) {
					opts := []ratelimit.Option{ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(10))), ratelimit.WithName("test")}
					if own {
						opts = append(opts, ownLimits(alg))
					}
					l, clk := at(t, alg, opts...)
					r := held(t, l, "k", 5)
					clk.Advance(time.Second)
					forget(t, l)
					require.NoError(t, r.Release(t.Context()))
					d, err := l.Peek(t.Context(), "k")
					require.NoError(t, err)
					assert.Equal(t, 5, d.Remaining)

					r = held(t, l, "k", 2)
					reset(t, l, "k")
					held(t, l, "k", 3) // at the same instant
					require.NoError(t, r.Release(t.Context()))
					d, err = l.Peek(t.Context(), "k")
					require.NoError(t, err)
					assert.Equal(t, 2, d.Remaining)
				})
			}
		}
	}
}

// A hold gives back what it would, although a hundred other keys were reset since, and the key itself
// before.
func TestSettleAfterOtherKeysWereReset(t *testing.T) {
	ctx := t.Context()
	for _, a := range accounted {
		if _, ok := a.alg.(ratelimit.WarmingUp); ok {
			continue // its other keys are not granted anything at the same instant
		}
		for i := range 4 {
			own, both := i%2 > 0, i/2 > 0
			t.Run(fmt.Sprintf("own=%v/both=%v/%T%+v", own, both, a.alg, a.alg), func(t *testing.T) {
				var decisions [2]ratelimit.Decision
				for round := range decisions {
					var opts []ratelimit.Option
					if own {
						opts = append(opts, ownLimits(a.alg))
					}
					l, clk := at(t, a.alg, opts...)
					if round > 0 { // before the holds, which does not matter
						require.True(t, l.Allow("k"))
						require.NoError(t, l.Reset(ctx, "k"))
					}
					require.True(t, l.AllowN("k", 2))
					r, late := heldOf(t, l, both, 5), heldOf(t, l, both, 3)
					if round > 0 {
						for i := range 100 {
							key := fmt.Sprint("other ", i)
							l.Allow(key)
							require.NoError(t, l.Reset(ctx, key))
						}
					}
					clk.Advance(10 * time.Millisecond)
					_, err := late.Settle(ctx, 0)
					require.NoError(t, err)
					_, err = r.Settle(ctx, 1)
					require.NoError(t, err)
					decisions[round], err = l.Peek(ctx, "k")
					require.NoError(t, err)
				}
				assert.Equal(t, decisions[0], decisions[1])
			})
		}
	}
}

// Keys that are forgotten because they are idle do not make other keys lose their holds.
func TestSettleAfterIdleKeysWereForgotten(t *testing.T) {
	ctx := context.Background()
	for _, a := range accounted {
		alg := a.alg
		t.Run(fmt.Sprintf("%T%+v", alg, alg), func(t *testing.T) {
			clk := stepclock.New()
			store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(3))
			l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk)))
			l.Allow("idle")
			clk.Set(clk.Now().Add(time.Hour))
			r, d, err := l.Hold(ctx, "k", 1)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			l.Allow("a")
			l.Allow("b")
			require.Zero(t, store.Stats().Evictions)
			require.NoError(t, l.Reset(ctx, "never used"))
			d, err = r.Settle(ctx, 0)
			require.NoError(t, err)
			if log, ok := alg.(ratelimit.SlidingLog); !ok || !log.CountDenied {
				assert.Equal(t, d.Limit, d.Remaining)
			}
		})
	}
}
