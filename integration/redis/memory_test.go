package redis_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A bucket in use takes little memory: Redis keeps its state as a number, in the object of
// the key. While a reservation is pending it does not, and the number comes back after it.
func TestMemoryOfBuckets(t *testing.T) {
	s := startServer(t)
	store := makers["rueidis"](t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
	encoding := func(key string) any {
		return s.do("OBJECT", "ENCODING", s.do("KEYS", "*:"+key).([]any)[0])
	}
	for name, alg := range map[string]ratelimit.Algorithm{
		"whole": ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)},
		"daily": ratelimit.TokenBucket{Rate: ratelimit.PerDay(1000), Burst: 3},
		"meter": ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(300), Capacity: 3},
	} {
		l := limiter(t, store, alg, ratelimit.WithName(name), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		for i := range 3 {
			require.True(t, l.Allow(name))
			assert.Equal(t, "int", encoding(name), "%s %d", name, i)
		}
		for l.Allow(name) {
		}
		r, _, err := l.Reserve(t.Context(), name, 1)
		require.NoError(t, err)
		if r == nil { // the queue is full
			continue
		}
		assert.NotEqual(t, "int", encoding(name))
		r.Cancel()
		assert.Equal(t, "int", encoding(name))
	}
	assert.Zero(t, store.Stats().Failures)

	used := func() int {
		info := s.do("INFO", "memory").(string)
		n, err := strconv.Atoi(regexp.MustCompile(`(?m)^used_memory:(\d+)`).FindStringSubmatch(info)[1])
		require.NoError(t, err)
		return n
	}
	const keys = 16_000 // nearly fill Redis's hash tables
	l := limiter(t, store, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, ratelimit.WithName("it"))
	require.True(t, l.Allow("the scripts, and the buffers of the connections"))
	before := used()
	for i := range keys {
		require.True(t, l.Allow(fmt.Sprintf("%016d", i)))
	}
	each := (used() - before) / keys
	t.Logf("%d bytes a key", each)
	assert.LessOrEqual(t, each, 140)
}

// An open hold of a bucket takes 40 bytes of the value, of a window or a log 32.
func TestMemoryOfHolds(t *testing.T) {
	s := startServer(t)
	store := makers["rueidis"](t, s.addr(), redisstore.WithTimeout(patient))
	for alg, each := range map[ratelimit.Algorithm]int{
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(10_000)}: 40,
		hourly(10_000): 32,
		ratelimit.SlidingWindow{Limit: 10_000, Window: time.Hour, Segments: 60}: 32,
	} {
		l := limiter(t, store, alg)
		size := func() int {
			return int(s.do("STRLEN", s.do("KEYS", "*").([]any)[0]).(int64))
		}
		hold := func() *ratelimit.Reservation {
			r, _, err := l.Hold(t.Context(), "k", 1)
			require.NoError(t, err)
			return r
		}
		first := hold()
		before := size()
		held := []*ratelimit.Reservation{}
		for range 1000 {
			held = append(held, hold())
		}
		assert.Equal(t, 1000*each, size()-before)
		for _, r := range held {
			require.NoError(t, r.Release(t.Context()))
		}
		assert.Equal(t, before, size())
		require.NoError(t, first.Release(t.Context()))
		assert.Less(t, size(), before-each)
		s.do("FLUSHALL")
	}
}
