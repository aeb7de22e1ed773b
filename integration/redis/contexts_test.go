package redis_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A thousand callers at once, some of which leave, do not open the breaker, and those that
// stay are answered.
func TestMixedContexts(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(patient))
		l := limiter(t, store, hourly(1_000_000), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		for round := range 3 {
			var left, stayed atomic.Int64
			var wg sync.WaitGroup
			for i := range 1000 {
				wg.Go(func() {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					switch i % 3 {
					case 0:
						ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
					case 1:
						ctx, cancel = context.WithCancel(ctx)
						time.AfterFunc(time.Duration(i)*time.Microsecond, cancel)
					}
					defer cancel()
					_, err := l.Take(ctx, fmt.Sprint(i%50), 1)
					if i%3 == 2 {
						assert.NoError(t, err, "it waits for the answer")
						stayed.Add(1)
					} else if err != nil {
						assert.ErrorIs(t, err, ctx.Err())
						left.Add(1)
					}
				})
			}
			wg.Wait()
			assert.Positive(t, left.Load(), "round %d", round)
			assert.Positive(t, stayed.Load(), "round %d", round)
		}
		assert.Zero(t, store.Stats().BreakerOpen)
		exact(t, store, "after")
	})
}

// A connection that is reset behind eight callers is one failure, and does not open the
// breaker.
func TestReset(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		p := startProxy(t, s.addr())
		store := create(t, p.addr(), redisstore.WithTimeout(patient))
		l := limiter(t, store, hourly(1_000_000), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		require.True(t, l.Allow("k"))
		p.hold()
		sent := store.Stats().Calls
		var failed atomic.Int64
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				if _, err := l.Take(t.Context(), fmt.Sprint(i), 1); err != nil {
					failed.Add(1)
				}
			})
		}
		eventually(t, "all callers wait", func() bool { return store.Stats().Calls == sent+callers && p.holding() > 0 })
		p.reset()
		p.release()
		wg.Wait()
		assert.Positive(t, failed.Load())
		t.Logf("%d of %d failed", failed.Load(), callers)
		for i := range callers {
			_ = l.Allow(fmt.Sprint(i)) // may find another connection that was reset
		}
		assert.Zero(t, store.Stats().BreakerOpen)
		exact(t, store, "after")
	})
}
