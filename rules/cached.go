package rules

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/ratelimit-go/ratelimit"
)

// A Lookup finds the limit of a key, in a database or another store.
type Lookup interface {
	// Limit returns the limit of key, or nil if it has none of its own.
	Limit(ctx context.Context, key string) (ratelimit.Algorithm, error)
}

// A LookupFunc is a [Lookup] that is a function.
type LookupFunc func(ctx context.Context, key string) (ratelimit.Algorithm, error)

// Limit calls f.
func (f LookupFunc) Limit(ctx context.Context, key string) (ratelimit.Algorithm, error) {
	return f(ctx, key)
}

// A CacheOption changes how [Cached] makes a cache.
type CacheOption func(*cacheConfig)

// cacheConfig is what options choose. Every check of it is in newCacheConfig.
type cacheConfig struct {
	size    int
	ttl     time.Duration
	timeout time.Duration
	most    int
	clk     clock.Clock
}

// WithSize sets how many keys are remembered. The default is 10,000. When there are
// more, the least recently used one is forgotten.
func WithSize(n int) CacheOption { return func(c *cacheConfig) { c.size = n } }

// WithTTL sets for how long a limit is remembered before it is looked up again, also
// that a key has none. The default is a minute.
func WithTTL(d time.Duration) CacheOption { return func(c *cacheConfig) { c.ttl = d } }

// WithLookupTimeout sets how long a lookup may take, with the time that it waits for
// others. The default is a second.
func WithLookupTimeout(d time.Duration) CacheOption { return func(c *cacheConfig) { c.timeout = d } }

// WithMaxLookups sets how many lookups run at once; others wait. The default is 8, or, if
// [SQLLimits] asks a database whose connections are limited, one less than these if
// that is less.
func WithMaxLookups(n int) CacheOption { return func(c *cacheConfig) { c.most = n } }

// WithCacheClock makes the cache tell the time by clk.
func WithCacheClock(clk clock.Clock) CacheOption { return func(c *cacheConfig) { c.clk = clk } }

const defaultLookups = 8

func newCacheConfig(lookup Lookup, opts []CacheOption) (*cacheConfig, error) {
	c := &cacheConfig{size: 10_000, ttl: time.Minute, timeout: time.Second, most: defaultLookups, clk: clock.New()}
	if pool, ok := lookup.(interface{ most() (int, bool) }); ok {
		if n, bounded := pool.most(); bounded {
			c.most = min(c.most, n)
		}
	}
	for i, opt := range opts {
		if opt == nil {
			return nil, nilOption(i, "Cached")
		}
		opt(c)
	}
	switch {
	case isNil(lookup):
		return nil, errors.New("rules: Cached(nil): give a Lookup, such as SQLLimits(db, query, nil)")
	case c.size < 1:
		return nil, fmt.Errorf("rules: WithSize(%d): must be at least 1", c.size)
	case c.ttl <= 0:
		return nil, fmt.Errorf("rules: WithTTL(%v): must be longer than 0", c.ttl)
	case c.timeout <= 0:
		return nil, fmt.Errorf("rules: WithLookupTimeout(%v): must be longer than 0", c.timeout)
	case c.most < 1:
		return nil, fmt.Errorf("rules: WithMaxLookups(%d): must be at least 1", c.most)
	case isNil(c.clk):
		return nil, errors.New("rules: WithCacheClock(nil): give a clock.Clock, such as clock.New()")
	}
	return c, nil
}

// A Cache remembers what a [Lookup] has found.
type Cache struct {
	cacheConfig
	lookup Lookup
	known  *lru.Cache[string, found]
	failed *lru.Cache[string, failure] // keys that are not known; they take no room from those that are

	hits, misses, stale, failures, invalid atomic.Uint64

	mu      sync.Mutex         // protects what follows
	flights map[string]*flight // by key: those that are queued, and the latest that runs
	queue   list.List          // of flights
	running int                // lookups, those that are late included
	err     error              // of the latest lookup that failed or found what cannot be used
	logged  time.Time          // when an error was
}

// found is what a lookup has found for a key.
type found struct {
	alg   ratelimit.Algorithm
	until time.Time // when to look it up again
}

// failure is the error of a lookup.
type failure struct {
	err   error
	until time.Time // when to look it up again
}

// retryAfter is how long a lookup that has failed is not tried again.
const retryAfter = time.Second

// Cached returns a cache before lookup. Its method Limit is for
// [ratelimit.WithLimits].
//
// Only a key that is not known waits for its lookup. A key that is known, however long
// ago it was looked up, gets the limit that was found then at once; after the TTL, it is
// looked up again in the background. While that fails, the limit stays in force. A key
// that is not known gets the error of its lookup. After an error, a key is not looked up
// for a second.
//
// A key has one lookup at a time, and all keys have [WithMaxLookups] together. A lookup
// that does not heed its context counts until it returns.
//
// A limit that cannot be used, such as one of 0 events, is not put in force: the last
// good one of the key stays, or the limiter's own if there was none. [Cache.Stats] has
// the error, and it is logged.
func Cached(lookup Lookup, opts ...CacheOption) (*Cache, error) {
	config, err := newCacheConfig(lookup, opts)
	if err != nil {
		return nil, err
	}
	c := &Cache{cacheConfig: *config, lookup: lookup, flights: make(map[string]*flight)}
	if c.known, err = lru.New[string, found](c.size); err != nil {
		return nil, err
	}
	c.failed, err = lru.New[string, failure](c.size)
	return c, err
}

// Limit returns the limit of key, or nil if it has none of its own.
func (c *Cache) Limit(ctx context.Context, key string) (ratelimit.Algorithm, error) {
	if ctx == nil {
		return nil, errors.New("rules: Limit(nil): give a context, such as context.Background()")
	}
	old, known := c.known.Get(key)
	now := c.clk.Now()
	if known && now.Before(old.until) {
		c.hits.Add(1)
		return old.alg, nil
	}
	if known {
		c.misses.Add(1)
		c.stale.Add(1)
		c.refresh(ctx, key, now)
		return old.alg, nil
	}
	if f, failed := c.failed.Get(key); failed && now.Before(f.until) {
		c.hits.Add(1)
		return nil, f.err
	}
	c.misses.Add(1)
	f := c.join(ctx, key, now)
	defer c.leave(f)
	left := f.deadline.Sub(now)
	if left <= 0 {
		return nil, f.late()
	}
	timer := c.clk.Timer(left) // for a lookup that does not heed its context
	defer timer.Stop()
	select {
	case <-f.done:
		return f.alg, f.err
	case <-timer.C:
		return nil, f.late()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Forget makes the limit of key be looked up again when it is needed next.
func (c *Cache) Forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[key]; f != nil && f.queued == nil {
		delete(c.flights, key) // and so what it finds is not remembered
	}
	c.known.Remove(key)
	c.failed.Remove(key)
}

// CacheStats are the counts of a [Cache].
type CacheStats struct {
	Hits     uint64 // answered from memory
	Misses   uint64 // not, or not any more
	Stale    uint64 // of these, answered with what was known before
	Failures uint64 // lookups that failed
	Invalid  uint64 // lookups that found a limit that cannot be used
	Keys     int    // known
	Err      error  // of the latest of Failures and Invalid; nil if there was none
}

// Stats returns the counts.
func (c *Cache) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CacheStats{c.hits.Load(), c.misses.Load(), c.stale.Load(), c.failures.Load(), c.invalid.Load(), c.known.Len(), c.err}
}
