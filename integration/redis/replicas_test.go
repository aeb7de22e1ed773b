package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
)

// TestReplicas runs the code of README: five replicas share 100 requests a minute and, while Redis is
// away, each of them grants a fifth of that.
func TestReplicas(t *testing.T) {
	s := startServer(t)
	var replicas []ratelimit.Limiter
	for range 5 {
		store, err := goredis.New(s.client(), redisstore.WithTimeout(patient))
		require.NoError(t, err)
		limit := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(100)}
		alone := ratelimit.Must(ratelimit.New(ratelimit.Share(limit, 5)))
		limiter := ratelimit.Must(ratelimit.New(limit, ratelimit.WithStore(store), ratelimit.WithName("api"),
			ratelimit.WithFailurePolicy(ratelimit.Fallback(alone))))
		replicas = append(replicas, limiter)
	}
	// granted is how many of 50 requests to each replica are granted. Meanwhile, a token comes back in
	// each 0.6 s, or with the fifths of all replicas in the same time.
	granted := func(key string) (sum, back int) {
		begin := time.Now()
		for range 50 {
			for _, l := range replicas {
				if l.Allow(key) {
					sum++
				}
			}
		}
		return sum, len(replicas) * int(1+time.Since(begin)/(600*time.Millisecond))
	}

	sum, back := granted("ann")
	assert.GreaterOrEqual(t, sum, 100)
	assert.LessOrEqual(t, sum, 100+back)

	s.kill()
	sum, back = granted("bob") // denials of ann are cached for a second
	assert.GreaterOrEqual(t, sum, 5*20)
	assert.LessOrEqual(t, sum, 5*20+back)

	s.restart()
	eventually(t, "Redis decides again", func() bool {
		d, err := replicas[0].Take(t.Context(), "cho", 1)
		return err == nil && !d.Degraded
	})
}

// TestRegions runs the code of docs/redis.md: each of three regions has a server of its own, and a
// third of the limit. Together, the regions grant the limit, and one region alone grants a third.
func TestRegions(t *testing.T) {
	limit := ratelimit.FixedWindow{Limit: 99, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}
	var regions []ratelimit.Limiter
	for range 3 {
		store, err := goredis.New(startServer(t).client(), redisstore.WithTimeout(patient))
		require.NoError(t, err)
		limiter := ratelimit.Must(ratelimit.New(ratelimit.Share(limit, 3),
			ratelimit.WithStore(store), ratelimit.WithName("api")))
		regions = append(regions, limiter)
	}
	granted := func(key string, regions ...ratelimit.Limiter) (sum int) {
		for range limit.Limit {
			for _, l := range regions {
				d, err := l.Take(t.Context(), key, 1)
				require.NoError(t, err)
				if d.Allowed {
					sum++
				}
			}
		}
		return sum
	}
	assert.Equal(t, 99, granted("everywhere", regions...))
	assert.Equal(t, 33, granted("in one region", regions[0]))
	assert.Equal(t, 66, granted("without one region", regions[1:]...))
}
