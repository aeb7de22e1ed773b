package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestExpiry: Redis keeps a key until its state equals that of a new key, and no more than a
// millisecond or two longer, with every algorithm.
func TestExpiry(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const rounded = 2 * time.Millisecond
	kept := 0
	for name, alg := range storetest.Algorithms() {
		for what, n := range map[string]int{"one event": 1, "the limit": 0} {
			prefix := prefixes()
			store := makers["rueidis"](t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithPrefix(prefix))
			l := limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			if n == 0 {
				fresh, err := l.Peek(t.Context(), "k")
				require.NoError(t, err)
				n = fresh.Limit
			}
			taken, err := l.Take(t.Context(), "k", n)
			require.NoError(t, err)
			require.True(t, taken.Allowed)
			keys := s.client().Keys(t.Context(), prefix+"*").Val()
			if len(keys) == 0 { // of a window of microseconds, which is over
				continue
			}
			ttl := s.client().PTTL(t.Context(), keys[0]).Val()
			assert.LessOrEqual(t, ttl, taken.ResetAfter+rounded, "%s, %s", name, what)
			later, err := l.Peek(t.Context(), "k")
			require.NoError(t, err)
			reset := later.ResetAfter
			if log, isLog := alg.(ratelimit.SlidingLog); isLog && log.CountDenied && !later.Allowed {
				// Peek answers as a denied Take would, whose event would count from now on. The
				// events that are stored were taken at one instant, so all end with the wait.
				reset = later.RetryAfter
			}
			assert.LessOrEqual(t, reset, max(0, ttl)+rounded, "%s, %s", name, what)
			kept++
		}
	}
	assert.Greater(t, kept, len(storetest.Algorithms()), "most keys are there after the call")
}
