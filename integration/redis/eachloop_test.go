package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestEachIsALoop: TakeEach decides as a loop of Take does, also on keys with limits of their own and
// on a key that occurs several times.
func TestEachIsALoop(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	own := func(_ context.Context, key string) (ratelimit.Algorithm, error) {
		if strings.HasSuffix(key, "7") {
			return ratelimit.FixedWindow{Limit: 3, Window: time.Minute}, nil
		}
		return nil, nil
	}
	for name, alg := range storetest.Algorithms() {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 20261122))
			clk := storetest.NewClock(time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC))
			var limiters [2]ratelimit.Limiter
			for i := range limiters {
				store, err := redisstore.New(conn, redisstore.WithLimiterClock(), redisstore.WithTimeout(patient),
					redisstore.WithPrefix(prefixes()))
				require.NoError(t, err)
				limiters[i] = limiter(t, store, alg, ratelimit.WithClock(clk), ratelimit.WithLimits(own))
			}
			each, loop := limiters[0], limiters[1]
			for range 8 {
				clk.Advance(time.Duration(rng.IntN(10_000)) * time.Millisecond)
				keys := make([]string, rng.IntN(100))
				for i := range keys {
					keys[i] = fmt.Sprint("key ", rng.IntN(1+rng.IntN(40)))
				}
				n := 1 + rng.IntN(3)
				got, err := each.TakeEach(t.Context(), keys, n, nil)
				require.NoError(t, err)
				require.Len(t, got, len(keys))
				for i, key := range keys {
					want, err := loop.Take(t.Context(), key, n)
					require.NoError(t, err)
					require.Equal(t, want, got[i], "keys[%d] of %q, %d events each", i, keys, n)
				}
			}
		})
	}
}
