package decide_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The tests in this file check how many events Settle gives back of a continuous TokenBucket, in
// all forms of its state. The bucket must be as if the unused events had never been taken, so that
// no span has more events than the bucket bounds. TestBounds checks the same for all
// algorithms.

// A settledBucket is a way to keep the state of a TokenBucket.
type settledBucket struct {
	name   string
	events int // a second, in multiples of which a test counts
	limit  func(b ratelimit.TokenBucket) ratelimit.Algorithm
	opts   func() []ratelimit.Option
}

func alone(b ratelimit.TokenBucket) ratelimit.Algorithm { return b }

// inAll returns b with a part that never decides.
func inAll(b ratelimit.TokenBucket) ratelimit.Algorithm {
	return ratelimit.All{b, ratelimit.FixedWindow{Limit: 1 << 20, Window: time.Hour}}
}

var settledBuckets = []settledBucket{
	{"one word", 1, alone, fakes.InMemory},
	{"one word of thirds", 3, alone, fakes.InMemory},
	{"three words", 7, alone, fakes.InMemory},
	{"All", 1, inAll, fakes.InMemory},
	{"bytes", 1, alone, fakes.InBytes},
	{"bytes of All", 7, inAll, fakes.InBytes},
	{"limits", 1, alone, fakes.WithLimits},
	{"limits of three words", 7, alone, fakes.WithLimits},
}

// newSettled returns a limiter of a bucket of the given seconds' worth of events, and its clock.
func (b settledBucket) new(t *testing.T, seconds int) (ratelimit.Limiter, *storetest.Clock) {
	t.Helper()
	return fakes.At(t, b.limit(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(b.events), Burst: seconds * b.events}), b.opts()...)
}

func eachSettledBucket(t *testing.T, f func(t *testing.T, b settledBucket)) {
	for _, b := range settledBuckets {
		t.Run(b.name, func(t *testing.T) { f(t, b) })
	}
}

// mustHold holds n events of a key that grants them.
func mustHold(t *testing.T, l ratelimit.Limiter, n int) *ratelimit.Reservation {
	t.Helper()
	return fakes.Held(t, l, "key", n)
}

// mustSettle settles r, and returns what remains.
func mustSettle(t *testing.T, r *ratelimit.Reservation, n int) int {
	t.Helper()
	d, err := r.Settle(ctx, n)
	require.NoError(t, err)
	return d.Remaining
}

// A bucket may be as a hold left it because just as many events have come back of an earlier hold
// as others were granted. What has come back meanwhile does not come back again.
func TestSettleAsTheHoldLeftIt(t *testing.T) {
	eachSettledBucket(t, func(t *testing.T, b settledBucket) {
		for _, others := range []int{3, 5} {
			l, clk := b.new(t, 10)
			first, second := mustHold(t, l, 5*b.events), mustHold(t, l, 5*b.events)
			require.Equal(t, 5*b.events, mustSettle(t, first, 0))
			clk.Advance(4 * time.Second)
			require.True(t, l.AllowN("key", others*b.events))
			// Of five, one is missing still.
			assert.Equal(t, (9-others+1)*b.events, mustSettle(t, second, 0), "%d taken by others", others)
		}
	})
}

// Holds that are settled last in first out are as if there had been only the first ones.
func TestSettleNested(t *testing.T) {
	for name, store := range fakes.Stores {
		l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10}, ratelimit.WithStore(store()), ratelimit.WithName("test"))
		first, second, third := mustHold(t, l, 3), mustHold(t, l, 3), mustHold(t, l, 3)
		for i, r := range []*ratelimit.Reservation{third, second, first} {
			assert.Equal(t, 4+3*i, mustSettle(t, r, 0), name)
		}
		clk.Advance(time.Second)
		assert.Equal(t, 10, fakes.Take(t, l, 0).Remaining, name)
	}
}

// TestBounds_Buckets: nor do more happen in any form of the state of a bucket.
func TestBounds_Buckets(t *testing.T) {
	t.Parallel()
	eachSettledBucket(t, func(t *testing.T, b settledBucket) {
		for seed := range budget.Seeds(t, budget.Histories(150, 1500)) {
			c := history.NewRandom(seed, 3)
			burst := (1 + c.Below(12)) * b.events
			s := &history.Setup{
				Algorithm: b.limit(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(b.events), Burst: burst}),
				Start:     fakes.Midnight,
				Kept:      b.name,
				Bound: func(span time.Duration) int {
					return burst + int(span*time.Duration(b.events)/time.Second)
				},
			}
			s.Open = func() ([]ratelimit.Limiter, history.Clock) {
				l, clk := fakes.At(t, s.Algorithm, b.opts()...)
				return []ratelimit.Limiter{l}, clk
			}
			playBounded(t, s, c)
		}
	})
}

// A store drops what it remembers of keys whose events came back together with the keys. So a
// client that sends pairs of requests with new keys does not fill the memory.
func TestSettledKeysAreForgotten(t *testing.T) {
	t.Parallel()
	store := &ratelimit.MemoryStore{MaxKeys: 1000}
	l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerDay(10)}, ratelimit.WithStore(store), ratelimit.WithName("test"))
	empty := store.Stats().Bytes
	for i := range 30_000 {
		key := fmt.Sprint(i)
		first, _, err := l.Hold(ctx, key, 1)
		require.NoError(t, err)
		_, _, err = l.Hold(ctx, key, 1)
		require.NoError(t, err)
		_, err = first.Settle(ctx, 0)
		require.NoError(t, err)
	}
	assert.Less(t, store.Stats().Bytes, uint64(500_000))
	clk.Advance(48 * time.Hour)
	store.Shrink()
	assert.Less(t, store.Stats().Bytes, empty+8_000)
}

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
	opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(l.Describe().Clock)}
	alg := l.Describe().Algorithm
	if alg == nil {
		var err error
		alg, err = l.Describe().AlgorithmOf(ctx, "k")
		require.NoError(t, err)
		opts = append(opts, fakes.OwnLimit(alg))
	}
	return ratelimit.Must(ratelimit.New(alg, opts...))
}

// heldOf holds n events of the key k or, if both is true, of k and k2.
func heldOf(t *testing.T, l ratelimit.Limiter, both bool, n int) *ratelimit.Reservation {
	t.Helper()
	if !both {
		return fakes.Held(t, l, "k", n)
	}
	r, d, err := ratelimit.HoldAll(t.Context(), n, ratelimit.For(l, "k"), ratelimit.For(l, "k2"))
	require.NoError(t, err)
	require.True(t, d.Allowed)
	return r
}

// A hold of a key that was forgotten gives nothing back. All events that the key has counted since
// are those of other callers.
func TestSettleAfterTheKeyWasForgotten(t *testing.T) {
	t.Parallel()
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
				t.Run(fmt.Sprintf("%s/own=%v/known=%v/both=%v/%T %v", how, own, known, both, alg, alg), func(t *testing.T) {
					clk := stepclock.New()
					store := &ratelimit.MemoryStore{MaxKeys: 3}
					opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk)}
					if own {
						opts = append(opts, fakes.OwnLimit(alg))
					}
					l := ratelimit.Must(ratelimit.New(alg, opts...))
					if known { // a hold on a key that the store has is another path
						require.True(t, l.Allow("k"))
					}
					r := heldOf(t, l, both, 5)
					forget(ctx, t, l, store)
					fakes.Held(t, l, "k", 5)
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
					opts := []ratelimit.Option{ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: 10}), ratelimit.WithName("test")}
					if own {
						opts = append(opts, fakes.OwnLimit(alg))
					}
					l, clk := fakes.At(t, alg, opts...)
					r := fakes.Held(t, l, "k", 5)
					clk.Advance(time.Second)
					forget(t, l)
					require.NoError(t, r.Release(t.Context()))
					d, err := l.Peek(t.Context(), "k")
					require.NoError(t, err)
					assert.Equal(t, 5, d.Remaining)

					r = fakes.Held(t, l, "k", 2)
					reset(t, l, "k")
					fakes.Held(t, l, "k", 3) // at the same instant
					require.NoError(t, r.Release(t.Context()))
					d, err = l.Peek(t.Context(), "k")
					require.NoError(t, err)
					assert.Equal(t, 2, d.Remaining)
				})
			}
		}
	}
}

// A hold gives back what it would, although a hundred other keys were reset since, and the key
// itself before.
func TestSettleAfterOtherKeysWereReset(t *testing.T) {
	ctx := t.Context()
	for _, a := range accounted {
		if _, ok := a.alg.(ratelimit.WarmingUp); ok {
			continue // its other keys are not granted anything at the same instant
		}
		for i := range 4 {
			own, both := i%2 > 0, i/2 > 0
			t.Run(fmt.Sprintf("own=%v/both=%v/%T %v", own, both, a.alg, a.alg), func(t *testing.T) {
				var decisions [2]ratelimit.Decision
				for round := range decisions {
					var opts []ratelimit.Option
					if own {
						opts = append(opts, fakes.OwnLimit(a.alg))
					}
					l, clk := fakes.At(t, a.alg, opts...)
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
		t.Run(fmt.Sprintf("%T %v", alg, alg), func(t *testing.T) {
			clk := stepclock.New()
			store := &ratelimit.MemoryStore{MaxKeys: 3}
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
