package ratelimit

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// The tests in this file look at the cache of a limiter for the limits of keys, and at a coarse
// clock without its goroutine. The laws of decisions are in internal/laws.

// cached returns the number of limits in the cache.
func (cache *limitCache) cached() (n int) {
	for _, m := range []*sync.Map{cache.young.Load(), cache.old.Load()} {
		if m != nil {
			m.Range(func(any, any) bool { n++; return true })
		}
	}
	return n
}

// TestManyLimits asks for more limits than the cache keeps.
func TestManyLimits(t *testing.T) {
	limit, s := FixedWindow{Window: time.Hour}, new(MemoryStore)
	l := Must(New(Blocked{}, WithStore(s), WithName("test"), WithClock(stepclock.New()),
		WithLimits(func(context.Context, string) (Algorithm, error) { return limit, nil })))
	for limit.Limit = range maxCachedLimits + 10 {
		limit.Limit++
		require.True(t, l.Allow("key"), "one more each time")
		require.False(t, l.Allow("key"))
	}
	assert.LessOrEqual(t, l.(*limiter).ownLimits.cached(), 2*maxCachedLimits)
	assert.Equal(t, 1, s.Len())
	assert.Equal(t, 1, s.Stats().Keys)
}

// TestKnownLimits: equal parameters are compiled once, and different ones are kept
// apart.
func TestKnownLimits(t *testing.T) {
	var asked Algorithm
	l := Must(New(TokenBucket{Rate: PerHour(2)}, WithLimits(func(context.Context, string) (Algorithm, error) { return asked, nil })))
	one, two := TokenBucket{Rate: PerHour(1), Burst: 1}, FixedWindow{Limit: 2, Window: time.Hour}
	compiled := func(alg Algorithm) *limit.Limit {
		asked = alg
		tr, err := l.(*limiter).limitOf(t.Context(), "key")
		require.NoError(t, err)
		return tr
	}
	assert.Same(t, compiled(one), compiled(TokenBucket{Rate: PerHour(1), Burst: 1}))
	both := compiled(All{one, two})
	assert.Same(t, both, compiled(All{one, two}))
	assert.NotSame(t, compiled(All{one, two}), compiled(All{two, one}))
	assert.NotSame(t, compiled(All{one}), compiled(one))
	assert.NotSame(t, compiled(All{one}), compiled(All{one, one}))
	assert.Equal(t, All{one, one, one, one, two}, compiled(All{one, one, one, one, two}).Known, "too many to be remembered")
	assert.Equal(t, All{one, two}, compiled(All{one, All{two}}).Known, "nor is one in another")
	asked = All{}
	_, err := l.(*limiter).limitOf(t.Context(), "key")
	require.ErrorIs(t, err, ErrInvalid)
	asked = All{one, nil}
	_, err = l.(*limiter).limitOf(t.Context(), "key")
	require.ErrorIs(t, err, ErrInvalid)
}

// TestLimitsInUseAreKept: a limit that is in use is compiled once, however many other limits
// follow. The cache forgets limits that are not used.
func TestLimitsInUseAreKept(t *testing.T) {
	budget.Alone(t)
	cache := &limitCache{}
	compiled := func(n int) *limit.Limit {
		tr, err := cache.compiled(FixedWindow{Limit: 1 + n, Window: time.Hour})
		require.NoError(t, err)
		return tr
	}
	used := compiled(0)
	for n := range 5 * maxCachedLimits {
		compiled(n)
		require.Same(t, used, compiled(0), "after %d others", n)
	}
	require.LessOrEqual(t, cache.cached(), 2*maxCachedLimits)
	for n := range 3 * maxCachedLimits / 4 {
		compiled(n)
	}
	var kept [3 * maxCachedLimits / 4]*limit.Limit
	for range 3 {
		for n := range kept {
			tr := compiled(n)
			require.True(t, kept[n] == nil || kept[n] == tr, "limit %d was compiled again", n)
			kept[n] = tr
		}
	}
}

// With a coarse clock, a key is denied only after the clock was read again.
func TestEachCoarseClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Must(New(TokenBucket{Rate: PerSecond(1000), Burst: 10}, WithClock(newCoarseClock())))
		granted := 0
		for begin := time.Now(); time.Since(begin) < time.Second; time.Sleep(500 * time.Microsecond) {
			out, err := l.TakeEach(t.Context(), []string{"a", "b"}, 1, nil)
			require.NoError(t, err)
			if out[1].Allowed {
				granted++
			}
		}
		assert.GreaterOrEqual(t, granted, 950)
		assert.LessOrEqual(t, granted, 1011)
	})
}
