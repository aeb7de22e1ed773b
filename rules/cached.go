package rules

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

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
type CacheOption func(*Cache)

// WithSize sets how many keys are remembered. The default is 10,000; the one that
// was not asked for for the longest time goes first.
func WithSize(n int) CacheOption { return func(c *Cache) { c.size = n } }

// WithTTL sets for how long a limit is remembered before it is looked up again, also
// that a key has none. The default is a minute.
func WithTTL(d time.Duration) CacheOption { return func(c *Cache) { c.ttl = d } }

// WithLookupTimeout sets how long a lookup may take. The default is a second.
func WithLookupTimeout(d time.Duration) CacheOption { return func(c *Cache) { c.timeout = d } }

// WithCacheClock makes the cache tell the time by clk.
func WithCacheClock(clk clock.Clock) CacheOption { return func(c *Cache) { c.clk = clk } }

// A Cache remembers what a [Lookup] has found.
type Cache struct {
	lookup  Lookup
	size    int
	ttl     time.Duration
	timeout time.Duration
	clk     clock.Clock

	known   *lru.Cache[string, found]
	flights singleflight.Group

	hits, misses, stale, failures, forgets atomic.Uint64
}

// found is what a lookup has found for a key.
type found struct {
	alg   ratelimit.Algorithm
	err   error     // if there never was an answer
	at    time.Time // when it was
	until time.Time // when to look it up again
}

// retryAfter is how long a lookup that has failed is not tried again.
const retryAfter = time.Second

// Cached returns a cache before lookup. Its method Limit is for
// [ratelimit.WithLimits].
//
// For each key, there is one lookup at a time. Only a key that is not known, or was
// not asked for for twice the TTL, waits for it; otherwise the limit that was known
// is told, and the lookup goes on behind. While lookups fail, what was known stays in
// force, and a key that is not known gets their error; they are tried again after a
// second.
func Cached(lookup Lookup, opts ...CacheOption) (*Cache, error) {
	c := &Cache{lookup: lookup, size: 10_000, ttl: time.Minute, timeout: time.Second, clk: clock.New()}
	for _, opt := range opts {
		if opt != nil {
			opt(c)
		}
	}
	switch {
	case lookup == nil:
		return nil, errors.New("rules: Cached(nil): give a Lookup, such as SQLLimits(db, query, nil)")
	case c.size < 1:
		return nil, fmt.Errorf("rules: WithSize(%d): must be at least 1", c.size)
	case c.ttl <= 0:
		return nil, fmt.Errorf("rules: WithTTL(%v): must be longer than 0", c.ttl)
	case c.timeout <= 0:
		return nil, fmt.Errorf("rules: WithLookupTimeout(%v): must be longer than 0", c.timeout)
	case c.clk == nil:
		return nil, errors.New("rules: WithCacheClock(nil): give a clock.Clock, such as clock.New()")
	}
	var err error
	c.known, err = lru.New[string, found](c.size)
	return c, err
}

// Limit returns the limit of key, or nil if it has none of its own.
func (c *Cache) Limit(ctx context.Context, key string) (ratelimit.Algorithm, error) {
	old, known := c.known.Get(key)
	now := c.clk.Now()
	if known && now.Before(old.until) {
		c.hits.Add(1)
		return old.alg, old.err
	}
	c.misses.Add(1)
	known = known && old.err == nil
	flight := c.flights.DoChan(key, func() (any, error) { return c.ask(context.WithoutCancel(ctx), key) })
	if known && now.Before(old.at.Add(2*c.ttl)) {
		c.stale.Add(1)
		return old.alg, nil
	}
	timer := c.clk.Timer(c.timeout) // for a lookup that does not heed its context
	defer timer.Stop()
	var err error
	select {
	case res := <-flight:
		if err = res.Err; err == nil {
			alg, _ := res.Val.(ratelimit.Algorithm)
			return alg, nil
		}
	case <-timer.C:
		err = fmt.Errorf("rules: the limit of key %q: no answer in %v: %w", key, c.timeout, context.DeadlineExceeded)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if known {
		c.stale.Add(1)
		return old.alg, nil
	}
	return nil, err
}

// ask looks the limit of key up, and remembers it, or that it failed.
func (c *Cache) ask(ctx context.Context, key string) (alg ratelimit.Algorithm, err error) {
	forgets := c.forgets.Load()
	defer func() {
		if p := recover(); p != nil { // in a goroutine that nobody else could save
			err = fmt.Errorf("rules: the lookup of key %q panicked: %v", key, p)
		}
		now := c.clk.Now()
		next := found{alg: alg, at: now, until: now.Add(c.ttl)}
		if err != nil {
			c.failures.Add(1)
			old, ok := c.known.Peek(key)
			if next = old; !ok || old.err != nil {
				next = found{err: err, at: now}
			}
			next.until = now.Add(min(retryAfter, c.ttl))
		}
		if c.forgets.Load() == forgets {
			c.known.Add(key, next)
		}
	}()
	within, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.lookup.Limit(within, key)
}

// Forget makes the limit of key be looked up again when it is needed next.
func (c *Cache) Forget(key string) {
	c.forgets.Add(1) // and so lookups under way are not remembered
	c.flights.Forget(key)
	c.known.Remove(key)
}

// CacheStats are the counts of a [Cache].
type CacheStats struct {
	Hits     uint64 // answered from memory
	Misses   uint64 // not, or not any more
	Stale    uint64 // of these, answered with what was known before
	Failures uint64 // lookups that failed
	Keys     int    // remembered
}

// Stats returns the counts.
func (c *Cache) Stats() CacheStats {
	return CacheStats{c.hits.Load(), c.misses.Load(), c.stale.Load(), c.failures.Load(), c.known.Len()}
}
