package servers

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A limit that changes while many callers use it stays exact.
func TestLimitChange(t *testing.T) {
	for name, w := range wires {
		for client, create := range makers {
			t.Run(client+"/"+name, func(t *testing.T) {
				t.Parallel()
				addr := startWire(t, startServer(t).addr(), w).addr()
				store := create(t, addr, redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
				var of atomic.Value
				of.Store(hourly(100))
				l := limiter(t, store, hourly(1), ratelimit.WithFailurePolicy(ratelimit.FailClosed),
					ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
						return of.Load().(ratelimit.Algorithm), nil
					}))
				var allowed atomic.Int64
				ask := func() {
					var wg sync.WaitGroup
					for range 60 {
						wg.Go(func() {
							for range 3 {
								d, err := l.Take(t.Context(), "k", 1)
								require.NoError(t, err)
								if d.Allowed {
									allowed.Add(1)
								}
							}
						})
					}
					wg.Wait()
				}
				ask()
				assert.EqualValues(t, 100, allowed.Load())
				of.Store(hourly(150))
				ask()
				assert.EqualValues(t, 150, allowed.Load())
				of.Store(hourly(120))
				ask()
				assert.EqualValues(t, 150, allowed.Load())
				assert.Zero(t, store.Stats().Failures)
			})
		}
	}
}
