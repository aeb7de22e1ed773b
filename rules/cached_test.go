package rules

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

func perMinute(n int) ratelimit.Algorithm { return ratelimit.TokenBucket{Rate: ratelimit.PerMinute(n)} }

func TestCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, fails, lookups := 5, error(nil), 0
		c, err := Cached(LookupFunc(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			lookups++
			if fails != nil || key == "nobody" {
				return nil, fails
			}
			return perMinute(limit), nil
		}), WithTTL(time.Minute), WithSize(2))
		require.NoError(t, err)
		get := func(key string) ratelimit.Algorithm {
			t.Helper()
			alg, err := c.Limit(t.Context(), key)
			require.NoError(t, err)
			synctest.Wait() // for the lookup behind it
			return alg
		}
		for range 3 {
			assert.Equal(t, perMinute(5), get("ann"))
			assert.Nil(t, get("nobody"), "the result that there is none is cached as well")
		}
		assert.Equal(t, 2, lookups)
		assert.Equal(t, CacheStats{Hits: 4, Misses: 2, Keys: 2}, c.Stats())

		limit = 6
		time.Sleep(time.Minute - 1)
		assert.Equal(t, perMinute(5), get("ann"))
		require.Equal(t, 2, lookups)
		time.Sleep(1 * time.Nanosecond)
		assert.Equal(t, perMinute(5), get("ann"), "a known limit is returned at once")
		assert.Equal(t, perMinute(6), get("ann"))
		limit = 7
		time.Sleep(2 * time.Minute)
		assert.Equal(t, perMinute(6), get("ann"), "within the greatest age")
		assert.Equal(t, perMinute(7), get("ann"))
		assert.Equal(t, 4, lookups)

		// While the store is down, the known limit is returned, and the store is not
		// asked for each call.
		fails = errors.New("down")
		time.Sleep(10 * time.Minute)
		for range 3 {
			assert.Equal(t, perMinute(7), get("ann"))
		}
		assert.Equal(t, 5, lookups)
		for range 3 {
			_, err = c.Limit(t.Context(), "new")
			require.ErrorIs(t, err, fails)
		}
		assert.Equal(t, 6, lookups, "nor for a key that is not known")
		fails, limit = nil, 8
		time.Sleep(time.Second)
		assert.Equal(t, perMinute(7), get("ann"))
		assert.Equal(t, perMinute(8), get("ann"))
		assert.Equal(t, perMinute(8), get("new"))
		assert.Equal(t, 3, c.Stats().Keys, "two with a limit, and one without")
		assert.EqualValues(t, 2, c.Stats().Failures)
		limit = 9
		c.Forget("new")
		assert.Equal(t, perMinute(9), get("new"))
	})
}

// TestForgetDuringALookup checks that the lookup's result is returned but not cached.
func TestForgetDuringALookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := Cached(LookupFunc(func(context.Context, string) (ratelimit.Algorithm, error) {
			time.Sleep(100 * time.Millisecond)
			return perMinute(5), nil
		}))
		require.NoError(t, err)
		go func() { _, _ = c.Limit(t.Context(), "key") }()
		synctest.Wait()
		c.Forget("key")
		time.Sleep(time.Second)
		assert.Zero(t, c.Stats().Keys)
	})
}

// TestLookupThatPanics checks that a panic becomes an error, because the caller cannot
// recover from it.
func TestLookupThatPanics(t *testing.T) {
	c, err := Cached(LookupFunc(func(context.Context, string) (ratelimit.Algorithm, error) { panic("oh no") }))
	require.NoError(t, err)
	_, err = c.Limit(t.Context(), "key")
	assert.ErrorContains(t, err, "oh no")
}

// TestOneLookupAtATime has many callers ask for a key at once, and the first one give
// up.
func TestOneLookupAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lookups atomic.Int32
		c, err := Cached(LookupFunc(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
			lookups.Add(1)
			select {
			case <-time.After(500 * time.Millisecond):
				return perMinute(5), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
		require.NoError(t, err)
		leaving, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := c.Limit(leaving, "key")
			assert.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		for range 10 {
			wg.Go(func() {
				alg, err := c.Limit(t.Context(), "key")
				assert.NoError(t, err)
				assert.Equal(t, perMinute(5), alg)
			})
		}
		synctest.Wait()
		leave()
		wg.Wait()
		assert.EqualValues(t, 1, lookups.Load())
	})
}

// TestSlowLookup checks that a store that does not answer delays no caller for long,
// whether or not it honours the context.
func TestSlowLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := Cached(LookupFunc(func(context.Context, string) (ratelimit.Algorithm, error) {
			time.Sleep(time.Hour)
			return perMinute(1), nil
		}), WithLookupTimeout(2*time.Second))
		require.NoError(t, err)
		start := time.Now()
		_, err = c.Limit(t.Context(), "key")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 2*time.Second, time.Since(start))
		time.Sleep(time.Hour)
	})
}

func TestCacheOptions(t *testing.T) {
	none := LookupFunc(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil })
	for want, opt := range map[string]CacheOption{
		"WithSize(0)":           WithSize(0),
		"WithTTL(0s)":           WithTTL(0),
		"WithMaxAge(-1ns)":      WithMaxAge(-1),
		"WithLookupTimeout(0s)": WithLookupTimeout(0),
		"WithMaxLookups(0)":     WithMaxLookups(0),
		"WithCacheClock(nil)":   WithCacheClock(nil),
		"option 0 of Cached":    nil,
	} {
		_, err := Cached(none, opt)
		assert.ErrorContains(t, err, want)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
	_, err := Cached(none, WithSize(1), WithTTL(1), WithMaxAge(0), WithLookupTimeout(1), WithMaxLookups(1))
	require.NoError(t, err, "they are the least that is valid")
	_, err = Cached(nil)
	assert.ErrorContains(t, err, "Cached(nil)")
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}

// TestCacheHoldsManyKeys checks that a cache without options holds 10,000 keys with a limit, and as
// many without one.
func TestCacheHoldsManyKeys(t *testing.T) {
	c, err := Cached(LookupFunc(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
		if strings.HasPrefix(key, "customer") {
			return perMinute(1), nil
		}
		return nil, nil
	}))
	require.NoError(t, err)
	for kind, want := range []int{10_000, 20_000} {
		for i := range 10_001 {
			_, err := c.Limit(t.Context(), fmt.Sprint([]string{"customer ", "made up "}[kind], i))
			require.NoError(t, err)
		}
		assert.Equal(t, want, c.Stats().Keys)
	}
}

// TestCachedLimiter uses a cache with a limiter whose customers have limits of their own,
// which change.
func TestCachedLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := map[string]int{"gold": 100}
		c, err := Cached(LookupFunc(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			if n, ok := limits[key]; ok {
				return ratelimit.FixedWindow{Limit: n, Window: time.Hour}, nil
			}
			return nil, nil
		}))
		require.NoError(t, err)
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.WithLimits(c.Limit)))
		count := func(key string) (n int) {
			for l.Allow(key) {
				n++
			}
			return n
		}
		assert.Equal(t, 100, count("gold"))
		assert.Equal(t, 10, count("free"))
		limits["free"] = 50
		assert.Zero(t, count("free"), "not looked up yet")
		time.Sleep(time.Minute)
		assert.Zero(t, count("free"), "being looked up")
		synctest.Wait()
		assert.Equal(t, 40, count("free"))
		delete(limits, "gold")
		time.Sleep(time.Minute)
		assert.Zero(t, count("gold"))
		assert.Zero(t, count("free"))
		synctest.Wait()
	})
}

func ExampleCached() {
	plans := LookupFunc(func(_ context.Context, customer string) (ratelimit.Algorithm, error) {
		if customer == "gold" {
			return ratelimit.FixedWindow{Limit: 3, Window: time.Hour}, nil
		}
		return nil, nil // the limiter's own limit
	})
	cache, err := Cached(plans)
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithLimits(cache.Limit)))
	for range 4 {
		fmt.Println(limiter.Allow("gold"), limiter.Allow("free"))
	}
	// Output:
	// true true
	// true false
	// true false
	// false false
}
