package redis_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// Goroutines that take from an exhausted key in a loop are denied all the time, by Redis or
// by the denial cache.
func TestSpinning(t *testing.T) {
	long(t)
	for client, create := range clients(t) {
		t.Run(client, func(t *testing.T) {
			store := create(t, startServer(t).addr(), redisstore.WithTimeout(patient))
			l := limiter(t, store, hourly(100))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var allowed, degraded, made atomic.Int64
			var wg sync.WaitGroup
			for range 500 {
				wg.Go(func() {
					for ctx.Err() == nil {
						d, err := l.Take(context.Background(), "k", 1)
						if err != nil {
							degraded.Add(1)
						} else if d.Allowed {
							allowed.Add(1)
						}
						made.Add(1)
					}
				})
			}
			eventually(t, "the limit is reached", func() bool { return allowed.Load() == 100 })
			asked := store.Stats().Calls
			eventually(t, "Redis is asked again, at most once a second", func() bool { return store.Stats().Calls >= asked+2 })
			cancel()
			wg.Wait()
			t.Logf("%d made, %+v", made.Load(), store.Stats())
			assert.EqualValues(t, 100, allowed.Load())
			assert.Zero(t, degraded.Load())
		})
	}
}
