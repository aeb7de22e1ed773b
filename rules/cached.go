package rules

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// A Lookup finds the limit of a key, in a database or another store.
type Lookup interface {
	// Limit returns the limit of key, or nil if the limiter's own limit applies.
	Limit(ctx context.Context, key string) (ratelimit.Algorithm, error)
}

// LookupFunc makes a [Lookup] of a function.
type LookupFunc func(ctx context.Context, key string) (ratelimit.Algorithm, error)

// Limit calls f.
func (f LookupFunc) Limit(ctx context.Context, key string) (ratelimit.Algorithm, error) {
	return f(ctx, key)
}

// A CacheOption configures a [Cache].
type CacheOption func(*cacheConfig)

// cacheConfig is the configuration that options make. newCacheConfig validates it.
type cacheConfig struct {
	size    int
	ttl     time.Duration
	maxAge  time.Duration
	timeout time.Duration
	most    int // lookups at once
	clk     clock.Clock
}

// WithSize sets how many keys with a limit the cache holds, and how many without one. The default
// is 10,000 of each. A further key replaces the least recently used one of its kind, so that keys
// that somebody makes up replace no key that has a limit.
func WithSize(n int) CacheOption { return func(c *cacheConfig) { c.size = n } }

// WithTTL sets how long a limit, or the result that a key has none, is used before it
// is looked up again. The default is a minute.
func WithTTL(d time.Duration) CacheOption { return func(c *cacheConfig) { c.ttl = d } }

// WithMaxAge sets how long after the last lookup of a key its cached limit is returned at
// once. The default is ten minutes. If the last lookup was longer ago and the TTL is over, as
// when the key was not used meanwhile, a call waits for a new lookup, and gets the cached limit
// only if that fails.
func WithMaxAge(d time.Duration) CacheOption { return func(c *cacheConfig) { c.maxAge = d } }

// WithLookupTimeout sets how long a lookup may take, including the time it waits for
// other lookups. The default is a second.
func WithLookupTimeout(d time.Duration) CacheOption {
	return func(c *cacheConfig) { c.timeout = d }
}

// WithMaxLookups sets how many lookups may run at once; further ones wait. The default
// is 8. If [SQLLimits] uses a database whose number of connections is limited, the
// default is at most one less than that limit, and at least 1.
func WithMaxLookups(n int) CacheOption { return func(c *cacheConfig) { c.most = n } }

// WithCacheClock sets the clock of the cache. The default is the system's.
func WithCacheClock(clk clock.Clock) CacheOption { return func(c *cacheConfig) { c.clk = clk } }

const defaultLookups = 8

func newCacheConfig(lookup Lookup, opts []CacheOption) (*cacheConfig, error) {
	c := &cacheConfig{
		size:    10_000,
		ttl:     time.Minute,
		maxAge:  10 * time.Minute,
		timeout: time.Second,
		most:    defaultLookups,
		clk:     clock.New(),
	}
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
		return nil, invalid("Cached(nil): give a Lookup, such as SQLLimits(db, query, nil)")
	case c.size < 1:
		return nil, invalid("WithSize(%d): must be at least 1", c.size)
	case c.ttl <= 0:
		return nil, invalid("WithTTL(%v): must be longer than 0", c.ttl)
	case c.maxAge < 0:
		return nil, invalid("WithMaxAge(%v): must be at least 0", c.maxAge)
	case c.timeout <= 0:
		return nil, invalid("WithLookupTimeout(%v): must be longer than 0", c.timeout)
	case c.most < 1:
		return nil, invalid("WithMaxLookups(%d): must be at least 1", c.most)
	case isNil(c.clk):
		return nil, invalid("WithCacheClock(nil): give a clock.Clock, such as clock.New()")
	}
	return c, nil
}

// A Cache holds the limits that a [Lookup] has found. It is safe for concurrent use by
// multiple goroutines.
type Cache struct {
	cacheConfig
	lookup Lookup

	mu    sync.Mutex // protects the fields below
	stats CacheStats // without Keys

	// A key is in one of these at most, so that keys of one kind do not evict those of another.
	known   recent[found] // have a limit
	unknown recent[found] // have none
	failed  recent[failure]

	// By key: the ones that wait for a slot, and the latest running one.
	flights   map[string]*flight
	customers share     // the lookups of known keys
	strangers share     // those of all other keys
	turn      *share    // the one that got a slot last
	logged    time.Time // when an invalid limit was last logged
}

// found is the result of a lookup.
type found struct {
	alg   ratelimit.Algorithm
	known bool      // whether the key has a limit, even an invalid one
	at    time.Time // of the last lookup, even if it failed
	until time.Time // when to look it up again
}

// failure is the error of a lookup.
type failure struct {
	err   error
	until time.Time // when to look it up again
}

// retryAfter is the time between a failed lookup and the next one of the same key.
const retryAfter = time.Second

// Cached returns a cache of the results of lookup. Its method Limit is for
// [ratelimit.WithLimits].
//
// A call waits for a lookup only if its key is not in the cache, and gets the error if that lookup
// fails. The limiter's own limit, the one of [ratelimit.New], then decides, and the decision is
// Degraded, with that error. For a key in the cache, Limit returns the cached limit at once. If it
// is older than the TTL, the key is looked up again in the background; while that fails, the cached
// limit stays in force. [WithMaxAge] is for keys that nobody has used for long. After a failed
// lookup, a key is not looked up again for a second.
//
// There is at most one lookup at a time for each key, and [WithMaxLookups] for all
// keys. A lookup that ignores its context counts until it returns. While that many lookups have
// exceeded their time, calls that need another one fail at once.
//
// A client may make up keys without end. So a key whose limit the cache knows is neither replaced
// by keys that have none, for which lookup returns nil, nor does its lookup wait behind theirs:
// keys that are not known to have a limit leave it one of the lookups at once, if there are two or
// more, and every second one while both wait. A customer's first call cannot be told from one with
// a key that is made up, and waits with these.
//
// An invalid limit, such as one of 0 events, is not used: the last valid limit of the
// key stays in force, or the limiter's own if there was none. The error is logged, and
// [Cache.Stats] has it.
func Cached(lookup Lookup, opts ...CacheOption) (*Cache, error) {
	config, err := newCacheConfig(lookup, opts)
	if err != nil {
		return nil, err
	}
	return &Cache{
		cacheConfig: *config, lookup: lookup,
		flights: make(map[string]*flight),
		known:   newRecent[found](config.size), unknown: newRecent[found](config.size),
		failed:    newRecent[failure](config.size),
		customers: share{most: config.most}, strangers: share{most: max(1, config.most-1)},
	}, nil
}

// Limit returns the limit of key, or nil if the limiter's own limit applies.
func (c *Cache) Limit(ctx context.Context, key string) (ratelimit.Algorithm, error) {
	if ctx == nil {
		return nil, invalid("Limit(nil): give a context, such as context.Background()")
	}
	now := c.clk.Now()
	f, old, err := c.begin(ctx, key, now)
	if f == nil {
		return old.alg, err
	}
	defer c.leave(f)
	late := func() (ratelimit.Algorithm, error) {
		if old.at.IsZero() {
			return nil, f.late()
		}
		return old.alg, nil
	}
	left := f.deadline.Sub(now)
	if left <= 0 {
		return late()
	}
	timer := c.clk.Timer(left) // in case the lookup ignores its context
	defer timer.Stop()
	select {
	case <-f.done:
		return f.alg, f.err
	case <-timer.C:
		return late()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Forget removes key from the cache, so that the next call looks up its limit again.
func (c *Cache) Forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[key]; f != nil && f.started {
		delete(c.flights, key) // so that its result is not cached
	}
	c.known.remove(key)
	c.unknown.remove(key)
	c.failed.remove(key)
}

// CacheStats are the counters of a [Cache].
type CacheStats struct {
	Hits     uint64 // calls answered from the cache
	Misses   uint64 // calls whose key was not in the cache, or older than the TTL
	Stale    uint64 // misses answered at once with a limit older than the TTL
	Failures uint64 // lookups that failed, or were not made because others hang
	Invalid  uint64 // lookups that found an invalid limit
	Keys     int    // in the cache, with a limit or without
	Err      error  // of the latest failed lookup or invalid limit, or nil
}

// Stats returns the counters.
func (c *Cache) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := c.stats
	stats.Keys = len(c.known.byKey) + len(c.unknown.byKey)
	return stats
}

// recent holds the most recently used values by key.
type recent[V any] struct {
	size  int
	byKey map[string]*list.Element
	order list.List // of entries, the most recently used one first
}

type entry[V any] struct {
	key   string
	value V
}

func newRecent[V any](size int) recent[V] {
	return recent[V]{size: size, byKey: make(map[string]*list.Element)}
}

func (r *recent[V]) get(key string) (v V, ok bool) {
	e, ok := r.byKey[key]
	if ok {
		r.order.MoveToFront(e)
		v = e.Value.(entry[V]).value
	}
	return v, ok
}

func (r *recent[V]) put(key string, v V) {
	r.remove(key)
	r.byKey[key] = r.order.PushFront(entry[V]{key, v})
	if len(r.byKey) > r.size {
		r.remove(r.order.Back().Value.(entry[V]).key)
	}
}

func (r *recent[V]) remove(key string) {
	if e, ok := r.byKey[key]; ok {
		r.order.Remove(e)
		delete(r.byKey, key)
	}
}
