package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/keyhint"
)

// This file has the limits of keys' own: the lookup, what decides if a lookup fails, and the cache
// of compiled limits.

// WithLimits gives keys limits of their own, which may change at any time. lookup returns the
// algorithm for a key, or nil for the algorithm passed to [New], which may be [Blocked] if every
// key has a limit. Each call that decides on a key calls lookup, which should therefore answer from
// memory (package rules has a cache for lookups in a database). If lookup fails, the limit that was
// passed to New decides, and the call returns the lookup's error. A key whose limit changes keeps
// its usage. [docs/algorithms.md] says exactly what is kept, what a call does whose lookup fails,
// and what limits of keys' own cost.
//
// [docs/algorithms.md]:
// https://github.com/ratelimit-go/ratelimit/blob/main/docs/algorithms.md#limits-of-keys-own
func WithLimits(lookup func(ctx context.Context, key string) (Algorithm, error)) Option {
	return func(c *config) { c.lookup, c.lookupSet = lookup, true }
}

// limitCache looks up the limits of keys, and caches them compiled.
//
// Decisions in memory seldom need the cache: a key's slot names the limit that it was last decided
// by, and that is compared with the result of lookup.
type limitCache struct {
	lookup func(ctx context.Context, key string) (Algorithm, error)
	base   *limit.Limit

	young, old atomic.Pointer[sync.Map] // limits by keyOf; nil until needed

	mu      sync.Mutex // protects against another change of young and old
	inYoung int        // the number of limits in young
}

// maxCachedLimits is the most limits in each of young and old: docs/algorithms.md tells users of
// it. When young is full, it becomes old, and the previous old is dropped. A limit in old that is
// used moves to young.
const maxCachedLimits = 8192

// limitFrom returns the limit for alg, which lookup returned for key, with err.
func (cache *limitCache) limitFrom(key string, alg Algorithm, err error) (*limit.Limit, error) {
	lim := cache.base
	if err == nil && alg != nil {
		lim, err = cache.compiled(alg)
	}
	if err != nil {
		return nil, fmt.Errorf("ratelimit: the limit of key %s: %w",
			keyhint.Of(key), keyhint.In(err, key))
	}
	return lim, nil
}

// compiled returns alg, which a user passed, compiled.
func (cache *limitCache) compiled(alg Algorithm) (*limit.Limit, error) {
	key, ok := keyOf(alg)
	if ok {
		if lim := cache.known(key); lim != nil {
			return lim, nil
		}
	}
	lim, err := newLimit(alg, kernel.InMemory.Varying())
	if err != nil || !ok {
		return lim, err
	}
	if isPlain(alg) {
		lim.Asked = key
	}
	return cache.keep(key, lim), nil
}

// known returns the cached limit for key, or nil.
func (cache *limitCache) known(key any) *limit.Limit {
	if lim := limitIn(&cache.young, key); lim != nil {
		return lim
	}
	lim := limitIn(&cache.old, key)
	if lim != nil {
		lim = cache.keep(key, lim)
	}
	return lim
}

// limitIn returns the limit for key in a part of the cache, or nil.
func limitIn(in *atomic.Pointer[sync.Map], key any) *limit.Limit {
	m := in.Load()
	if m == nil {
		return nil
	}
	t, _ := m.Load(key)
	found, _ := t.(*limit.Limit)
	return found
}

// keep caches t, unless there is already a limit for key. It returns that or t.
func (cache *limitCache) keep(key any, lim *limit.Limit) *limit.Limit {
	cache.mu.Lock()
	defer cache.mu.Unlock()
	if known := limitIn(&cache.young, key); known != nil {
		return known
	}
	if cache.young.Load() == nil || cache.inYoung >= maxCachedLimits {
		cache.old.Store(cache.young.Load())
		cache.young.Store(new(sync.Map))
		cache.inYoung = 0
	}
	cache.young.Load().Store(key, lim)
	cache.inYoung++
	return lim
}

// keyOf returns a key for the cache: keys of two algorithms are equal if their parameters are. An
// All with more than four parts, or with a nested All, has none.
func keyOf(alg Algorithm) (key any, ok bool) {
	if isPlain(alg) {
		return alg, true
	}
	all, isAll := alg.(All)
	var parts [4]Algorithm
	if !isAll || copy(parts[:], all) < len(all) ||
		slices.ContainsFunc(all, func(part Algorithm) bool { return !isPlain(part) }) {
		return nil, false
	}
	return parts, true
}

// limitOf returns the limit of key, or an error if it is not known.
func (l *limiter) limitOf(ctx context.Context, key string) (*limit.Limit, error) {
	if l.ownLimits == nil {
		return l.limit, nil
	}
	alg, err := l.ownLimits.lookup(ctx, key)
	return l.ownLimits.limitFrom(key, alg, err)
}

// limitFor returns the limit by which requests for key are decided. That is the limit of the key
// or, if that is not known, the one that New was given; unknown then says why. If ctx ended before
// the lookup succeeded, nothing decides: there is no limit, and ended is the error of ctx.
func (l *limiter) limitFor(
	ctx context.Context,
	key string,
) (lim *limit.Limit, unknown, ended error) {
	if l.ownLimits == nil {
		return l.limit, nil, nil
	}
	alg, err := l.ownLimits.lookup(ctx, key)
	return l.limitBy(ctx, key, alg, err)
}

// limitBy is limitFor if the lookup has returned alg and err.
func (l *limiter) limitBy(
	ctx context.Context,
	key string,
	alg Algorithm,
	err error,
) (lim *limit.Limit, unknown, ended error) {
	lim, err = l.ownLimits.limitFrom(key, alg, err)
	switch {
	case err == nil:
		l.logAnswer(ctx, l.lookupFailures)
		return lim, nil, nil
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	}
	return l.limit, l.logLookupFailure(ctx, err), nil
}

// presentLimit returns the limit by which requests for the key of c are decided now, or nil if
// c.ctx ended before it was found.
func (l *limiter) presentLimit(c *call) *limit.Limit {
	if c.presentLimit != nil {
		return c.presentLimit
	}
	if c.Request.Op == step.OpSettle { // whose Limit is that of the hold
		lim, unknown, _ := l.limitFor(c.ctx, c.Key)
		c.unknown = unknown
		return lim
	}
	if c.Limit == nil {
		c.Limit, c.unknown, _ = l.limitFor(c.ctx, c.Key)
	}
	return c.Limit
}
