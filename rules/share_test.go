package rules

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A register knows the limits of customers, and of nobody else. Each lookup takes a while.
type register struct {
	takes time.Duration

	mu    sync.Mutex
	order []string // the keys that were looked up
}

func (r *register) Limit(_ context.Context, key string) (ratelimit.Algorithm, error) {
	r.mu.Lock()
	r.order = append(r.order, key)
	r.mu.Unlock()
	time.Sleep(r.takes)
	if strings.HasPrefix(key, "customer") {
		return perMinute(5), nil
	}
	return nil, nil //nolint:nilnil // means the limiter's own limit
}

// limitAfter returns how long a call waits for the limit of a customer.
func limitAfter(t *testing.T, c *Cache, key string) time.Duration {
	t.Helper()
	start := time.Now()
	alg, err := c.Limit(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, perMinute(5), alg)
	return time.Since(start)
}

// flood calls c with n keys that nobody has, at once. end lets the callers leave, and waits for the
// lookups that run.
func flood(t *testing.T, c *Cache, n int) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	for i := range n {
		go func() { _, _ = c.Limit(ctx, fmt.Sprint("made up ", i)) }()
	}
	synctest.Wait()
	return func() {
		cancel()
		time.Sleep(time.Second)
	}
}

// TestMadeUpKeysReplaceNoCustomer calls a cache with more keys that nobody has than it holds.
func TestMadeUpKeysReplaceNoCustomer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := Cached(&register{takes: time.Millisecond}, WithSize(10))
		require.NoError(t, err)
		for i := range 10 {
			limitAfter(t, c, fmt.Sprint("customer ", i))
		}
		for i := range 1000 {
			_, err := c.Limit(t.Context(), fmt.Sprint("made up ", i))
			require.NoError(t, err)
			require.Zero(t, limitAfter(t, c, fmt.Sprint("customer ", i%10)))
		}
		assert.Equal(t, 20, c.Stats().Keys)
		limitAfter(t, c, "customer 10")
		assert.Equal(t, 20, c.Stats().Keys, "it replaces another customer")
		assert.NotZero(t, limitAfter(t, c, "customer 0"), "which has waited for longest")
	})
}

// TestKeysChangeKind checks that a key is held once, whatever was found for it lately.
func TestKeysChangeKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := make(map[string]ratelimit.Algorithm)
		c, err := Cached(LookupFunc(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			return limits[key], nil
		}))
		require.NoError(t, err)
		for _, want := range []ratelimit.Algorithm{nil, perMinute(5), nil, perMinute(6)} {
			limits["ann"] = want
			time.Sleep(time.Hour)
			alg, err := c.Limit(t.Context(), "ann")
			require.NoError(t, err)
			assert.Equal(t, want, alg)
			assert.Equal(t, 1, c.Stats().Keys)
		}
		c.Forget("ann")
		assert.Zero(t, c.Stats().Keys)
	})
}

// TestCustomersWaitForNoMadeUpKey has a customer return whose cached limit is too old to be
// used without a lookup, while keys that nobody has need more lookups than there may be.
func TestCustomersWaitForNoMadeUpKey(t *testing.T) {
	for most, longest := range map[int]time.Duration{
		1: 2 * 300 * time.Millisecond, // the lookup that runs, and the customer's
		2: 300 * time.Millisecond,
		8: 300 * time.Millisecond,
	} {
		synctest.Test(t, func(t *testing.T) {
			c, err := Cached(&register{takes: 300 * time.Millisecond}, WithMaxLookups(most))
			require.NoError(t, err)
			limitAfter(t, c, "customer")
			time.Sleep(time.Hour)
			defer flood(t, c, 100)()
			assert.LessOrEqual(t, limitAfter(t, c, "customer"), longest)
		})
	}
}

// TestCustomersAreRefreshedInAFlood checks that a customer's limit that changes is found while keys
// that nobody has hang in the store.
func TestCustomersAreRefreshedInAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := perMinute(5)
		released := make(chan struct{})
		c, err := Cached(LookupFunc(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			if key != "customer" {
				<-released
				return nil, nil
			}
			return limit, nil
		}), WithMaxLookups(3))
		require.NoError(t, err)
		limitAfter(t, c, "customer")
		limit = perMinute(6)
		flood(t, c, 100)
		time.Sleep(time.Minute)
		for _, want := range []ratelimit.Algorithm{perMinute(5), perMinute(6)} {
			alg, err := c.Limit(t.Context(), "customer")
			require.NoError(t, err)
			assert.Equal(t, want, alg)
			synctest.Wait() // for the lookup in the background
		}
		start := time.Now()
		_, err = c.Limit(t.Context(), "another")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Zero(t, time.Since(start), "the lookups that such a key may have all hang")
		close(released)
	})
}

// TestNewKeysWaitForFewRefreshes checks the other direction: if there is one lookup at a time, a
// customer's first call waits for one of the many refreshes of others that wait.
func TestNewKeysWaitForFewRefreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &register{takes: 10 * time.Millisecond}
		c, err := Cached(store, WithMaxLookups(1))
		require.NoError(t, err)
		ask := func() {
			for i := range refreshesPerSlot {
				limitAfter(t, c, fmt.Sprint("customer ", i))
			}
		}
		ask()
		time.Sleep(2 * time.Minute)
		ask()
		assert.Equal(t, 20*time.Millisecond, limitAfter(t, c, "customer new"))
		time.Sleep(time.Second)
		synctest.Wait() // for the refreshes
		assert.Equal(t, "customer new", store.order[refreshesPerSlot+1])
	})
}
