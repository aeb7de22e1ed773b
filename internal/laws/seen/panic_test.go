package seen_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// A frail observer panics if the test has set it to.
type frail struct{ panics bool }

func (f *frail) Observe(context.Context, ratelimit.Observation) {
	if f.panics {
		panic("a bug in an observer")
	}
}

// broken calls call, whose observer panics.
func (f *frail) broken(t *testing.T, call func()) {
	t.Helper()
	f.panics = true
	require.PanicsWithValue(t, "a bug in an observer", call)
	f.panics = false
}

// TestObserverThatPanics: if no caller gets the Reservation of a call, because an observer panics,
// the events of the call are given back.
func TestObserverThatPanics(t *testing.T) {
	for store, make := range fakes.Stores {
		for _, alg := range []ratelimit.Algorithm{fakes.Five, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}} {
			for name, call := range map[string]func(ctx context.Context, l ratelimit.Limiter){
				"Hold":        func(ctx context.Context, l ratelimit.Limiter) { _, _, _ = l.Hold(ctx, "key", 2) },
				"Hold, waits": func(ctx context.Context, l ratelimit.Limiter) { _, _, _ = l.Hold(ctx, "key", 2, ratelimit.Waiting()) },
				"Reserve": func(ctx context.Context, l ratelimit.Limiter) {
					_, _, _ = l.Reserve(ctx, "key", 2, ratelimit.HoldFor(time.Hour))
				},
				"HoldAll": func(ctx context.Context, l ratelimit.Limiter) {
					_, _, _ = ratelimit.HoldAll(ctx, 1, ratelimit.For(l, "key"), ratelimit.For(l, "other"), ratelimit.For(l, "key"))
				},
				"HoldAll, one": func(ctx context.Context, l ratelimit.Limiter) {
					_, _, _ = ratelimit.HoldAll(ctx, 2, ratelimit.For(l, "key"))
				},
			} {
				t.Run(store+"/"+name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						var f frail
						l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(make()), ratelimit.WithName("api"), ratelimit.WithObserver(f.Observe)))
						f.broken(t, func() { call(t.Context(), l) })
						for _, key := range []string{"key", "other"} {
							d, err := l.Peek(t.Context(), key)
							require.NoError(t, err)
							assert.Equal(t, 5, d.Remaining, "%T: %s", alg, key)
						}
					})
				})
			}
		}
	}
}

// TestWaitWhoseObserverPanics: the same holds for a caller that has stood in line.
func TestWaitWhoseObserverPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
			if o.Call == ratelimit.CallWait {
				panic("a bug in an observer")
			}
		})))
		first := fakes.Held(t, l, "key", 5)
		panicked := false
		go func() {
			defer func() { panicked = recover() != nil }()
			_, _, _ = l.Hold(t.Context(), "key", 3, ratelimit.Waiting())
		}()
		synctest.Wait()
		_, err := first.Settle(t.Context(), 0)
		require.NoError(t, err)
		synctest.Wait()
		require.True(t, panicked)
		assert.Equal(t, 5, fakes.Remaining(t, l))
	})
}

// TestSettleWhoseObserverPanics: all keys of a HoldAll are settled or cancelled before an observer
// is told of one.
func TestSettleWhoseObserverPanics(t *testing.T) {
	for store, make := range fakes.Stores {
		for name, end := range map[string]func(r *ratelimit.Reservation){
			"Settle":  func(r *ratelimit.Reservation) { _, _ = r.Settle(context.Background(), 0) },
			"Release": func(r *ratelimit.Reservation) { _ = r.Release(context.Background()) },
			"Cancel":  func(r *ratelimit.Reservation) { r.Cancel() },
		} {
			t.Run(store+"/"+name, func(t *testing.T) {
				var f frail
				l, _ := fakes.At(t, fakes.Five, ratelimit.WithStore(make()), ratelimit.WithName("api"), ratelimit.WithObserver(f.Observe))
				r, _, err := ratelimit.HoldAll(t.Context(), 1, ratelimit.For(l, "a"), ratelimit.For(l, "key"), ratelimit.For(l, "z"))
				require.NoError(t, err)
				f.broken(t, func() { end(r) })
				for _, key := range []string{"a", "key", "z"} {
					d, err := l.Peek(t.Context(), key)
					require.NoError(t, err)
					assert.Equal(t, 5, d.Remaining, key)
				}
			})
		}
	}
}

// A careless limiter is one that New has not made, and panics.
type careless struct{ ratelimit.Limiter }

func (careless) Take(context.Context, string, int) (ratelimit.Decision, error) {
	panic("a bug in a limiter")
}

func (careless) Hold(context.Context, string, int, ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	panic("a bug in a limiter")
}

// TestTakeAllOfALimiterThatPanics: what was held in other keys before is given back.
func TestTakeAllOfALimiterThatPanics(t *testing.T) {
	for store, make := range fakes.Stores {
		l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.WithStore(make()), ratelimit.WithName("api"))
		bounds := []ratelimit.Bound{ratelimit.For(l, "key"), ratelimit.For(careless{l}, "key")}
		require.PanicsWithValue(t, "a bug in a limiter", func() { _, _ = ratelimit.TakeAll(t.Context(), 1, bounds...) })
		require.PanicsWithValue(t, "a bug in a limiter", func() { _, _, _ = ratelimit.HoldAll(t.Context(), 1, bounds...) })
		assert.Equal(t, 5, fakes.Remaining(t, l), store)
	}
}
