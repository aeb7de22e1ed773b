package otellimit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// TestMemory compares the metrics of two stores with what was done to them.
func TestMemory(t *testing.T) {
	provider, reader := newProvider()
	open, full := new(ratelimit.MemoryStore), &ratelimit.MemoryStore{MaxKeys: 2, RefuseNew: true}
	registration, err := ObserveMemory(provider, "open", open)
	require.NoError(t, err)
	_, err = ObserveMemory(provider, "full", full)
	require.NoError(t, err)
	alg := ratelimit.FixedWindow{Limit: 2, Window: 70 * 365 * 24 * time.Hour}
	for _, store := range []*ratelimit.MemoryStore{open, full} {
		l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test")))
		for i := range 5 {
			l.Allow(fmt.Sprint(i))
		}
	}
	got := counts(t, reader)
	for name, store := range map[string]*ratelimit.MemoryStore{"open": open, "full": full} {
		assert.Equal(t, int64(store.Stats().Bytes), got["memory.usage store="+name])
		assert.Positive(t, got["memory.usage store="+name])
		delete(got, "memory.usage store="+name)
	}
	assert.Equal(t, map[string]int64{
		"memory.keys store=open": 5, "memory.inserts store=open": 5, "memory.evictions store=open": 0, "memory.rejections store=open": 0,
		"memory.holds.ended store=open": 0, "memory.holds.ended store=full": 0,
		"memory.keys store=full": 2, "memory.inserts store=full": 2, "memory.evictions store=full": 0, "memory.rejections store=full": 3,
	}, got)

	require.NoError(t, registration.Unregister())
	got = counts(t, reader)
	assert.Len(t, got, 6)
	assert.Contains(t, got, "memory.keys store=full")
}

// TestMemoryCounts gives each field of the statistics a number of its own.
func TestMemoryCounts(t *testing.T) {
	provider, reader := newProvider()
	_, err := observeMemory(provider, "m", func() ratelimit.MemoryStats {
		return ratelimit.MemoryStats{Keys: 1, Inserts: 2, Evictions: 3, Rejected: 4, Bytes: 5, Ended: 6}
	})
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{
		"memory.keys store=m": 1, "memory.inserts store=m": 2, "memory.evictions store=m": 3,
		"memory.rejections store=m": 4, "memory.usage store=m": 5, "memory.holds.ended store=m": 6,
	}, counts(t, reader))
}

// redisStats has a number of its own in each field.
func redisStats() redisstore.Stats {
	return redisstore.Stats{
		Calls: 1, Coalesced: 2, Cached: 3, Leased: 4, Lost: 5,
		Failures: 30, Timeouts: 6, BreakerOpen: 7, ErrorReplies: 8, OtherErrors: 9, Unreadable: 10, Ended: 11,
		Breakers: map[string]string{"a:1": "closed", "b:2": "open", "c:3": "tripped"},
	}
}

func TestRedisCounts(t *testing.T) {
	provider, reader := newProvider()
	_, err := observeRedis(provider, "r", redisStats)
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{
		"redis.calls store=r": 1, "redis.coalesced store=r": 2, "redis.cache.denials store=r": 3,
		"redis.lease.events store=r": 4, "redis.lost.events store=r": 5, "redis.unreadable store=r": 10, "redis.holds.ended store=r": 11,
		"redis.failures type=timeout store=r": 6, "redis.failures type=breaker_open store=r": 7,
		"redis.failures type=error_reply store=r": 8, "redis.failures type=_OTHER store=r": 9,
		"redis.breakers state=closed server=a:1 store=r":    1,
		"redis.breakers state=half-open server=a:1 store=r": 0,
		"redis.breakers state=open server=a:1 store=r":      0,
		"redis.breakers state=closed server=b:2 store=r":    0,
		"redis.breakers state=half-open server=b:2 store=r": 0,
		"redis.breakers state=open server=b:2 store=r":      1,
		"redis.breakers state=closed server=c:3 store=r":    0,
		"redis.breakers state=half-open server=c:3 store=r": 0,
		"redis.breakers state=open server=c:3 store=r":      0,
		"redis.breakers state=tripped server=c:3 store=r":   1,
	}, counts(t, reader))
}

// A brokenConn answers everything with an error.
type brokenConn struct{}

func (brokenConn) Do(_ context.Context, commands []redisstore.Command) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	for i := range replies {
		replies[i].Err = errors.New("LOADING Redis is loading the dataset in memory")
	}
	return replies
}

func (brokenConn) Server(string) (name string, known bool) { return "", true }
func (brokenConn) OneServer() bool                         { return true }
func (brokenConn) NoAnswer(string) error                   { return nil }
func (brokenConn) Redial(context.Context, string)          {}

// TestRedis observes a store whose server fails.
func TestRedis(t *testing.T) {
	store, err := redisstore.New(brokenConn{}, redisstore.WithBreaker(3, time.Hour))
	require.NoError(t, err)
	defer func() { assert.NoError(t, store.Close(context.Background())) }()
	provider, reader := newProvider()
	registration, err := ObserveRedis(provider, "r", store)
	require.NoError(t, err)
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour},
		ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithFailureLog(nil)))
	for range 5 {
		l.Allow(key)
	}
	assert.Equal(t, map[string]int64{
		"redis.calls store=r": 3, "redis.coalesced store=r": 0, "redis.cache.denials store=r": 0,
		"redis.lease.events store=r": 0, "redis.lost.events store=r": 0, "redis.unreadable store=r": 0, "redis.holds.ended store=r": 0,
		"redis.failures type=timeout store=r": 0, "redis.failures type=breaker_open store=r": 2,
		"redis.failures type=error_reply store=r": 3, "redis.failures type=_OTHER store=r": 0,
		"redis.breakers state=closed server= store=r":    0,
		"redis.breakers state=half-open server= store=r": 0,
		"redis.breakers state=open server= store=r":      1,
	}, counts(t, reader))
	require.NoError(t, registration.Unregister())
	assert.Empty(t, counts(t, reader))
}
