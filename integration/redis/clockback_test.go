package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestClockBack: a process whose clock is behind that of another one is granted nothing more, by the
// script. The time of a key does not go back.
func TestClockBack(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	for name, alg := range storetest.Algorithms() {
		t.Run(name, func(t *testing.T) {
			prefix := prefixes()
			process := func() (ratelimit.Limiter, *storetest.Clock) {
				store, err := redisstore.New(conn, redisstore.WithLimiterClock(), redisstore.WithPrefix(prefix),
					redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
				require.NoError(t, err)
				clk := storetest.NewClock(began)
				l, err := ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk))
				require.NoError(t, err)
				return l, clk
			}
			l, _ := process()
			require.True(t, l.AllowN("key", fakes.Peek(t, l).Limit))
			before := fakes.Peek(t, l)
			for _, back := range []time.Duration{time.Microsecond, time.Second, 100 * 24 * time.Hour} {
				late, clk := process()
				clk.Advance(-back)
				assert.LessOrEqual(t, fakes.Peek(t, late).Remaining, before.Remaining, "%v back", back)
				assert.False(t, late.Allow("key"), "%v back", back)
			}
			if log, ok := alg.(ratelimit.SlidingLog); !ok || !log.CountDenied {
				assert.Equal(t, before, fakes.Peek(t, l))
			}
		})
	}
}
