package servers

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// Goroutines that take from an exhausted key in a loop are denied all the time, by Redis or
// by the denial cache.
func TestSpinning(t *testing.T) {
	for client, create := range makers {
		t.Run(client, func(t *testing.T) {
			store := create(t, startServer(t).addr(), redisstore.WithTimeout(time.Second))
			l := limiter(t, store, hourly(100))
			ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
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
			wg.Wait()
			t.Logf("%d made, %+v", made.Load(), store.Stats())
			assert.EqualValues(t, 100, allowed.Load())
			assert.Zero(t, degraded.Load())
		})
	}
}
