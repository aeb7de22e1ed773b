package servers

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A value that another program wrote is reported once, and the limit holds from then on,
// even with FailOpen.
func TestUnreadableValue(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		addr := startServer(t).addr()
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		s := create(t, addr, redisstore.WithTimeout(patient), redisstore.WithPrefix(prefixes()))
		l := limiter(t, s, hourly(2))
		require.True(t, l.Allow("k"))
		for _, value := range []string{"damaged", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"} {
			keys, err := c.Keys(t.Context(), "*").Result()
			require.NoError(t, err)
			for _, key := range keys {
				require.NoError(t, c.Set(t.Context(), key, value, 0).Err())
			}
			failures := 0
			granted := 0
			for range 10 {
				d, err := l.Take(t.Context(), "k", 1)
				if err != nil {
					require.ErrorIs(t, err, ratelimit.ErrState)
					failures++
				}
				if d.Allowed {
					granted++
				}
			}
			assert.LessOrEqual(t, failures, 1, "%q", value)
			assert.LessOrEqual(t, granted, 2, "%q", value)
		}
		assert.Positive(t, s.Stats().Unreadable)
	})
}
