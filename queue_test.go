package ratelimit

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Waiters of many keys, however they leave, leave nothing in the queues.
func TestQueuesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Must(New(InFlight{Limit: 1, Timeout: time.Minute})).(*limiter)
		for i := range 300 {
			key := fmt.Sprint(i)
			r, _, err := l.Hold(t.Context(), key, 1)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for range 3 {
				go func() { _ = l.Wait(ctx, key) }()
			}
			if i%2 == 0 {
				synctest.Wait()
				require.NoError(t, r.Release(t.Context()))
			}
		}
		synctest.Wait()
		assert.Equal(t, int64(750), l.waiters.Count())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Zero(t, l.waiters.Count())
	})
}
