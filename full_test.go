package ratelimit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// However new keys flood a full store, a known key that has used more than they is granted
// its limit exactly: one by one or in batches, while its limit changes, and while tables are
// replaced.
func TestFullStoreIsExact(t *testing.T) {
	const known, limit = 7, 100
	limits := func(limit int) map[string]Algorithm {
		return map[string]Algorithm{
			"FixedWindow":      FixedWindow{Limit: limit, Window: time.Hour},
			"SlidingWindow":    SlidingWindow{Limit: limit, Window: time.Hour},
			"TokenBucket":      TokenBucket{Rate: PerHour(1), Burst: limit},
			"TokenBucket/wide": TokenBucket{Rate: Rate{7, 24 * time.Hour}, Burst: limit},
			"SlidingLog":       SlidingLog{Limit: limit, Window: time.Hour},
		}
	}
	low := limits(60)
	for name, alg := range limits(limit) {
		for _, policy := range []FullPolicy{EvictLeast, RefuseUnseen, ShareUnseen} {
			for _, maxKeys := range []int{30, 700} { // with a scan of all keys, and with samples
				for _, own := range []bool{false, true} {
					store := NewMemoryStore(WithMaxKeys(maxKeys), WithFullPolicy(policy))
					opts := []Option{WithStore(store), WithName("test"), WithClock(stepclock.New())}
					var changes atomic.Int64
					if own {
						opts = append(opts, WithLimits(func(_ context.Context, key string) (Algorithm, error) {
							if strings.HasPrefix(key, "known") && changes.Load()%2 == 1 {
								return low[name], nil
							}
							return nil, nil
						}))
					}
					l := Must(New(alg, opts...))
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
									out, err := TakeEach(t.Context(), l, keys, 1, nil)
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
						assert.Equal(t, int64(limit), granted[k].Load(), "%s, policy %d, %d keys, own=%v", name, policy, maxKeys, own)
					}
				}
			}
		}
	}
}
