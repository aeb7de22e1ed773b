package memory_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// A flood of new keys comes to a full store: one by one or in batches, while limits change, and
// while tables are replaced. A known key that has used more than the new keys is still granted
// exactly its limit.
func TestFullStoreIsExact(t *testing.T) {
	const known, limit = 7, 100
	limits := func(limit int) map[string]ratelimit.Algorithm {
		return map[string]ratelimit.Algorithm{
			"FixedWindow":      ratelimit.FixedWindow{Limit: limit, Window: time.Hour},
			"SlidingWindow":    ratelimit.SlidingWindow{Limit: limit, Window: time.Hour},
			"TokenBucket":      ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: limit},
			"TokenBucket/wide": ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 7, Per: 24 * time.Hour}, Burst: limit},
			"SlidingLog":       ratelimit.SlidingLog{Limit: limit, Window: time.Hour},
		}
	}
	low := limits(60)
	for name, alg := range limits(limit) {
		for _, refuses := range []bool{false, true} {
			for _, maxKeys := range []int{30, 700} { // with a scan of all keys, and with samples
				for _, own := range []bool{false, true} {
					store := &ratelimit.MemoryStore{MaxKeys: maxKeys, RefuseNew: refuses}
					opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New())}
					var changes atomic.Int64
					if own {
						opts = append(opts, ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
							if strings.HasPrefix(key, "known") && changes.Load()%2 == 1 {
								return low[name], nil
							}
							return nil, nil
						}))
					}
					l := ratelimit.Must(ratelimit.New(alg, opts...))
					var granted [known]atomic.Int64
					take := func(k int) bool {
						ok := l.Allow(fmt.Sprint("known ", k))
						if ok {
							granted[k].Add(1)
						}
						return ok
					}
					for k := range known {
						for range limit / 2 {
							take(k)
						}
					}
					var wg sync.WaitGroup
					for g := range 4 {
						wg.Go(func() {
							for i := range 300 {
								switch {
								case i%13 == 5:
									changes.Add(1)
								case i%60 == 7:
									store.Shrink()
								case i%20 == 9:
									var keys []string
									for k := range known {
										keys = append(keys, fmt.Sprint("known ", k), fmt.Sprint("new ", g, i, k))
									}
									out, err := l.TakeEach(t.Context(), keys, 1, nil)
									assert.NoError(t, err)
									for k := range known {
										if out[2*k].Allowed {
											granted[k].Add(1)
										}
									}
								case i%3 == 0:
									l.Allow(fmt.Sprint("new ", g, i))
								default:
									take(i % known)
								}
								assert.LessOrEqual(t, store.Len(), maxKeys)
							}
						})
					}
					wg.Wait()
					changes.Store(0)
					for k := range known {
						for take(k) {
						}
						assert.Equal(t, int64(limit), granted[k].Load(), "%s, RefuseNew: %t, %d keys, own=%v", name, refuses, maxKeys, own)
					}
				}
			}
		}
	}
}

// fullStore returns a limiter on a store for two keys, which holds one that is used up and one
// with 4 of 5 events left.
func fullStore(t *testing.T, refuses bool, opts ...ratelimit.Option) (*ratelimit.MemoryStore, ratelimit.Limiter) {
	t.Helper()
	store := &ratelimit.MemoryStore{MaxKeys: 2, RefuseNew: refuses}
	opts = append(opts, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New()))
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, opts...))
	require.True(t, l.AllowN("used up", 5))
	require.True(t, l.Allow("used"))
	return store, l
}

func TestTakeAllInAFullStore(t *testing.T) {
	ctx := context.Background()
	other := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour})), "other")
	for name, opts := range map[string][]ratelimit.Option{
		"tables": nil,
		"varied": {fakes.OwnLimit(ratelimit.FixedWindow{Limit: 5, Window: time.Hour})},
	} {
		all := func(l ratelimit.Limiter, n int, keys ...string) ratelimit.Decision {
			t.Helper()
			bounds := []ratelimit.Bound{other}
			for _, key := range keys {
				bounds = append(bounds, ratelimit.For(l, key))
			}
			require.NoError(t, other.Limiter().Reset(ctx, other.Key()))
			r, d, err := ratelimit.HoldAll(ctx, n, bounds...)
			require.NoError(t, err)
			require.Equal(t, d.Allowed, r != nil)
			left, err := other.Limiter().Peek(ctx, other.Key())
			require.NoError(t, err)
			want := 5
			if d.Allowed {
				want -= n
			}
			assert.Equal(t, want, left.Remaining, "all or nothing")
			return d
		}
		left := func(l ratelimit.Limiter, key string) int {
			t.Helper()
			d, err := l.Peek(ctx, key)
			require.NoError(t, err)
			return d.Remaining
		}
		t.Run(name+"/evicts", func(t *testing.T) {
			store, l := fullStore(t, false, opts...)
			d := all(l, 1, "new", "used up")
			assert.False(t, d.Allowed)
			assert.Equal(t, 2, d.Part)
			assert.Zero(t, store.Stats().Evictions, "a denial evicts nothing")
			assert.Equal(t, 4, left(l, "used"))

			d = all(l, 2, "new")
			assert.True(t, d.Allowed)
			assert.Equal(t, uint64(1), store.Stats().Evictions)
			assert.Equal(t, 3, left(l, "new"))
			assert.Zero(t, left(l, "used up"))

			d = all(l, 1, "newer", "new") // evicts new, which has most left, and then one of these two
			assert.True(t, d.Allowed)
			assert.Equal(t, uint64(3), store.Stats().Evictions)
			assert.Equal(t, 4+5, left(l, "newer")+left(l, "new"))
			assert.Zero(t, left(l, "used up"))
			assert.Equal(t, 2, store.Len())

			d = all(l, 1, "a", "b", "c")
			assert.True(t, d.Allowed)
			assert.Equal(t, 2, store.Len())
		})
		t.Run(name+"/refuses", func(t *testing.T) {
			store, l := fullStore(t, true, opts...)
			alone, err := l.Take(ctx, "new", 1)
			require.NoError(t, err)
			d := all(l, 1, "used", "new")
			alone.ResetAfter, alone.Part = d.ResetAfter, 2
			assert.Equal(t, alone, d)
			assert.Equal(t, uint64(2), store.Stats().Rejected)
			assert.Equal(t, 4, left(l, "used"))
			assert.True(t, all(l, 1, "used").Allowed)

			require.NoError(t, l.Reset(ctx, "used up"))
			d = all(l, 1, "new", "newer") // a place for one of them
			assert.False(t, d.Allowed)
			assert.Equal(t, 5, left(l, "new"))
			assert.LessOrEqual(t, store.Len(), 2)
			assert.True(t, all(l, 1, "new").Allowed)
			assert.Equal(t, 2, store.Len())
			assert.False(t, all(l, 1, "used", "a", "b", "c").Allowed)
			assert.Equal(t, 3, left(l, "used"))
		})
	}
}

// A full store keeps a new key of a TakeAll that has used less than all others, and so its limit,
// as for a Take.
func TestTakeAllKeepsNewKeys(t *testing.T) {
	for _, known := range []int{4, 2000} { // with a look at all keys, and with samples
		store := &ratelimit.MemoryStore{MaxKeys: known}
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
			ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New())))
		for i := range known {
			require.True(t, l.AllowN(fmt.Sprint("known ", i), 5))
		}
		for round := range 20 {
			granted := 0
			for range 7 {
				d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, fmt.Sprint("a ", round)), ratelimit.For(l, fmt.Sprint("b ", round)))
				require.NoError(t, err)
				require.Equal(t, known, store.Len())
				if d.Allowed {
					granted++
				}
			}
			require.Equal(t, 5, granted)
		}
	}
}

// Calls for more new keys than a store may hold do not wait for each other, and leave it within its
// bound.
func TestTakeAllOfTooManyKeys(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		store := &ratelimit.MemoryStore{MaxKeys: 1, RefuseNew: refuses}
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
			ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New())))
		d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "a"), ratelimit.For(l, "b"), ratelimit.For(l, "a"))
		require.NoError(t, err)
		assert.Equal(t, !refuses, d.Allowed)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range 500 {
					key := fmt.Sprint(g, " ", i)
					if g == 0 {
						l.Allow(key)
						continue
					}
					d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, key), ratelimit.For(l, key+"!"))
					assert.NoError(t, err)
					assert.Equal(t, !refuses, d.Allowed)
				}
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, store.Len(), 1)
		assert.Equal(t, store.Len(), store.Stats().Keys)
	}
}

// A call for any number of new keys leaves the store within its bound, and the next new key evicts
// one key, as any other does.
func TestTakeAllOfManyNewKeys(t *testing.T) {
	for _, most := range []int{1, 100, 2000} { // with a look at all keys, and with samples
		store := &ratelimit.MemoryStore{MaxKeys: most}
		opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithClock(stepclock.New())}
		one := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, append(opts, ratelimit.WithName("one"))...))
		two := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 10, Window: time.Hour}, append(opts, ratelimit.WithName("two"))...))
		for call := range 5 {
			var keys []ratelimit.Bound
			for i := range 500 {
				key := fmt.Sprint(call, " ", i)
				keys = append(keys, ratelimit.For(one, key), ratelimit.For(two, key))
			}
			r, d, err := ratelimit.HoldAll(t.Context(), 1, keys...)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.LessOrEqual(t, store.Len(), most)
			require.Equal(t, store.Len(), store.Stats().Keys)
			_, err = r.Settle(t.Context(), 1)
			require.NoError(t, err)
			d, err = ratelimit.TakeAll(t.Context(), 1, keys...)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.LessOrEqual(t, store.Len(), most)
		}
		require.Equal(t, most, store.Len())
		before := store.Stats().Evictions
		require.True(t, one.Allow("new"))
		assert.Equal(t, before+1, store.Stats().Evictions)
		assert.Equal(t, most, store.Len())
	}
}

// A log that counts denials notes those of a new key if there is room for it.
func TestTakeAllNotesDenialsOfNewKeys(t *testing.T) {
	ctx := context.Background()
	clk := stepclock.New()
	store := &ratelimit.MemoryStore{MaxKeys: 2, RefuseNew: true}
	opts := []ratelimit.Option{ratelimit.WithClock(clk), ratelimit.WithStore(store), ratelimit.WithName("test")}
	log := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 5, Window: time.Hour, CountDenied: true}, append(opts, ratelimit.WithName("log"))...))
	window := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, opts...))
	require.True(t, window.Allow("k"))
	d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(log, "a"), ratelimit.For(window, "k"))
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	d, err = log.Peek(ctx, "a")
	require.NoError(t, err)
	assert.Equal(t, 4, d.Remaining)
	d, err = ratelimit.TakeAll(ctx, 1, ratelimit.For(log, "b"), ratelimit.For(window, "k"))
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.Equal(t, 2, store.Len())
}

// TestTakeAllOfAnyOrder calls TakeAll with overlapping keys in any order, while others use the
// keys alone, and tables grow and are full. It would hang if the calls waited for each other.
func TestTakeAllOfAnyOrder(t *testing.T) {
	const limit = 50
	ctx := context.Background()
	for _, refuses := range []bool{false, true} {
		for _, most := range []int{0, 4, 40} { // 4: the places of a store are those of one call
			t.Run(fmt.Sprintf("refuses=%t/most=%d", refuses, most), func(t *testing.T) {
				t.Parallel()
				clk := stepclock.New()
				var limiters []ratelimit.Limiter
				var stores []*ratelimit.MemoryStore
				for s := range 2 {
					store := &ratelimit.MemoryStore{MaxKeys: most, RefuseNew: refuses && most > 0}
					stores = append(stores, store)
					for i, alg := range []ratelimit.Algorithm{
						ratelimit.FixedWindow{Limit: limit, Window: time.Hour},
						ratelimit.SlidingWindow{Limit: limit, Window: time.Hour, Segments: 4},
						ratelimit.SlidingLog{Limit: limit, Window: time.Hour},
						ratelimit.TokenBucket{Rate: ratelimit.PerHour(limit)},
					} {
						opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithClock(clk), ratelimit.WithName(fmt.Sprint(s, i))}
						if i == 3 {
							opts = append(opts, fakes.OwnLimit(alg))
						}
						limiters = append(limiters, ratelimit.Must(ratelimit.New(alg, opts...)))
					}
				}
				var mu sync.Mutex
				granted := map[string]int{}
				var wg sync.WaitGroup
				for id := range 4 {
					rng := rand.New(rand.NewPCG(1, uint64(id)))
					wg.Go(func() {
						for range 1500 {
							var bounds []ratelimit.Bound
							var names []string
							for range 1 + rng.IntN(4) {
								i, key := rng.IntN(len(limiters)), fmt.Sprint(rng.IntN(12))
								bounds = append(bounds, ratelimit.For(limiters[i], key))
								names = append(names, fmt.Sprint(i, " ", key))
							}
							var d ratelimit.Decision
							var err error
							switch rng.IntN(4) {
							case 0:
								names = names[:1]
								d, err = bounds[0].Limiter().Take(ctx, bounds[0].Key(), 1)
							case 1:
								var r *ratelimit.Reservation
								if r, d, err = ratelimit.HoldAll(ctx, 1, bounds...); r != nil {
									_, err = r.Settle(ctx, 1)
								}
							default:
								d, err = ratelimit.TakeAll(ctx, 1, bounds...)
							}
							assert.NoError(t, err)
							if d.Allowed {
								mu.Lock()
								for _, name := range names {
									granted[name]++
								}
								mu.Unlock()
							}
							if rng.IntN(100) == 0 {
								stores[rng.IntN(2)].Shrink()
							}
						}
					})
				}
				wg.Wait()
				for _, store := range stores {
					if most > 0 {
						assert.LessOrEqual(t, store.Len(), most)
						assert.Equal(t, store.Stats().Keys, store.Len())
					}
				}
				if most == 0 {
					for i, l := range limiters {
						for key := range 12 {
							d, err := l.Peek(ctx, fmt.Sprint(key))
							require.NoError(t, err)
							require.Equal(t, limit-granted[fmt.Sprint(i, " ", key)], d.Remaining)
						}
					}
				}
			})
		}
	}
}

// TestTakeAll_ClockThatPanics: whichever reading panics, all keys are as they were, and can be
// used.
func TestTakeAll_ClockThatPanics(t *testing.T) {
	for way, make := range fakes.Ways {
		for _, words := range []bool{true, false} {
			panicked := 0
			for reading := range 6 {
				clk := &panickingClock{Clock: stepclock.New()}
				store := new(ratelimit.MemoryStore)
				var bounds []ratelimit.Bound
				for i, alg := range []ratelimit.Algorithm{
					ratelimit.FixedWindow{Limit: 20, Window: time.Hour},
					ratelimit.TokenBucket{Rate: ratelimit.PerHour(20)},
					ratelimit.SlidingWindow{Limit: 20, Window: time.Hour, Segments: 4},
					ratelimit.SlidingLog{Limit: 20, Window: time.Hour},
				} {
					opts := append(make(i, store, alg), ratelimit.WithClock(clk), ratelimit.WithName(fmt.Sprint(i)))
					bounds = append(bounds, ratelimit.For(ratelimit.Must(ratelimit.New(alg, opts...)), "k"))
				}
				if words {
					bounds = bounds[:2]
				}
				left := 20
				take := func() {
					d, err := ratelimit.TakeAll(t.Context(), 1, bounds...)
					require.NoError(t, err)
					require.True(t, d.Allowed)
					left--
				}
				take()
				func() {
					defer func() {
						if recover() != nil {
							panicked++
						}
						clk.panics = false
					}()
					clk.panics, clk.good = true, reading
					take()
				}()
				for range 2 {
					for _, b := range bounds {
						d, err := b.Limiter().Peek(t.Context(), b.Key())
						require.NoError(t, err)
						require.Equal(t, left, d.Remaining, "%s, after %d good readings", way, reading)
					}
					take()
				}
			}
			assert.GreaterOrEqual(t, panicked, 1, way)
		}
	}
}

// A store that refuses new keys never holds more than it may, whatever asks for them at once.
func TestTakeAllNeverExceedsAStoreThatRefuses(t *testing.T) {
	for range budget.Histories(100, 2000) {
		store := &ratelimit.MemoryStore{MaxKeys: 3, RefuseNew: true}
		var bounds []ratelimit.Bound
		for i := range 8 {
			l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
				ratelimit.WithStore(store), ratelimit.WithName(fmt.Sprint(i))))
			bounds = append(bounds, ratelimit.For(l, "key"))
		}
		var calls sync.WaitGroup
		for two := range slices.Chunk(bounds, 2) {
			calls.Go(func() {
				_, err := ratelimit.TakeAll(t.Context(), 1, two...)
				assert.NoError(t, err)
			})
		}
		calls.Wait()
		require.LessOrEqual(t, store.Len(), 3)
	}
}

// TestRefusingStoreForgetsWhatIsSettled: a key is idle when the last of the holds that are still
// open has ended, and not when one would have that was settled, or that ends earlier now. Its room
// is that of a new key then.
func TestRefusingStoreForgetsWhatIsSettled(t *testing.T) {
	for name, end := range map[string]func(r *ratelimit.Reservation) error{
		"cancelled": func(r *ratelimit.Reservation) error { r.Cancel(); return nil },
		"settled":   func(r *ratelimit.Reservation) error { _, err := r.Settle(t.Context(), 1); return err },
		"extended":  func(r *ratelimit.Reservation) error { return r.Extend(t.Context(), time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			store := &ratelimit.MemoryStore{MaxKeys: 1, RefuseNew: true}
			limit := ratelimit.FixedWindow{Limit: 5, Window: time.Second}
			l, clk := fakes.At(t, limit, ratelimit.WithStore(store), ratelimit.WithName("test"))
			_, _, err := l.Hold(t.Context(), "held", 1, ratelimit.HoldFor(time.Minute))
			require.NoError(t, err)
			r, _, err := l.Hold(t.Context(), "held", 1, ratelimit.HoldFor(time.Hour))
			require.NoError(t, err)
			require.NoError(t, end(r))
			clk.Advance(time.Minute - 1)
			assert.False(t, l.Allow("new"), "a hold is open")
			clk.Advance(time.Minute)
			assert.True(t, l.Allow("new"))
		})
	}
}
