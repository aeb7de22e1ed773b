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
)

// This file has the limits of keys' own: the lookup, what decides if a lookup fails, and the cache
// of compiled limits.

// WithLimits gives keys limits of their own, which may change at any time. lookup returns the
// algorithm for a key, or nil for the algorithm passed to [New], which may be [Blocked] if every
// key has a limit. Each call that decides on a key calls lookup before the store; Cancel, Reset,
// and Settle and Release of what the store holds do not: the Decision of Settle is that of the
// limit under which the key was last granted something. So lookup should answer from memory
// (package rules has a cache for lookups in a database).
//
// If lookup fails, or returns parameters that cannot be used, the limit that was passed to New
// decides, as if it were that of the key for this call: what is used stays used. The Decision is
// Degraded, with StandIn set, and comes with the lookup's error; a Wait waits by that limit, and
// returns nil when the events may happen. Observers see that it [Failed], and [WithFailureLog] has
// a line of it. Events that New's limit could never grant, because they are too many, or it is
// Blocked, are refused as by [FailClosed], because the limit of the key may grant them: RetryAfter
// is a second, and a Wait returns the lookup's error, and not [ErrNever]. If ctx ended before
// lookup returned its error, the call returns that of ctx, and spends nothing. The [FailurePolicy]
// is for stores, and decides if the store fails as well.
//
// A key whose limit changes keeps its usage: what it has been granted counts under the new limit as
// well, at the time at which it happened, as exactly as that is known. With another kind of
// algorithm, or another Refill, a key starts afresh; [Unlimited] and [Blocked] leave its state as
// it is. Two versions of a program may ask with different limits in turns. [docs/algorithms.md]
// says what that means for each algorithm, and what is not kept.
//
// In a [MemoryStore], a key whose state takes 8 bytes with its limit costs no more memory than
// without WithLimits, and decisions on it take no lock: for the first 1,023 distinct limits of the
// limiter, and with no reservations ahead and no more used than its limit. Other keys cost as much
// as with a [SlidingLog]. Each distinct limit costs about 500 bytes, which [MemoryStats] does not
// count. The limiter keeps between 8,192 and 16,384 of them compiled, those that were used last. If
// more are in use, a call whose limit is not among them compiles it again, which takes several
// microseconds. An All costs an allocation in each call. With more than four parts, or with an All
// among them, it costs a few microseconds, because it is compiled each time.
//
// [docs/algorithms.md]:
// https://github.com/ratelimit-go/ratelimit/blob/main/docs/algorithms.md#when-a-limit-changes
func WithLimits(lookup func(ctx context.Context, key string) (Algorithm, error)) Option {
	return func(c *config) { c.lookup, c.lookupSet = lookup, true }
}

// limits looks up the limits of keys, and caches them compiled.
//
// Decisions in memory seldom need the cache: a key's slot names the limit that it was last decided
// by, and that is compared with the result of lookup.
type limits struct {
	lookup func(ctx context.Context, key string) (Algorithm, error)
	base   *limit.Limit

	young, old atomic.Pointer[sync.Map] // limits by keyOf; nil until needed

	mu   sync.Mutex // protects against another change of young and old
	kept int        // the number of limits in young
}

// manyLimits is the most limits in each of young and old: WithLimits tells users of it. When young
// is full, it becomes old, and the previous old is dropped. A limit in old that is used moves to
// young.
const manyLimits = 8192

// of returns the limit for alg, which lookup returned for key, with err.
func (l *limits) of(key string, alg Algorithm, err error) (*limit.Limit, error) {
	t := l.base
	if err == nil && alg != nil {
		t, err = l.compiled(alg)
	}
	if err != nil {
		return nil, fmt.Errorf("ratelimit: the limit of key %q: %w", key, err)
	}
	return t, nil
}

// compiled returns alg, which a user passed, compiled.
func (l *limits) compiled(alg Algorithm) (*limit.Limit, error) {
	key, ok := keyOf(alg)
	if ok {
		if t := l.known(key); t != nil {
			return t, nil
		}
	}
	t, err := newLimit(alg, kernel.InMemory.Varying())
	if err != nil || !ok {
		return t, err
	}
	if isPlain(alg) {
		t.Asked = key
	}
	return l.keep(key, t), nil
}

// known returns the cached limit for key, or nil.
func (l *limits) known(key any) *limit.Limit {
	if t := find(&l.young, key); t != nil {
		return t
	}
	t := find(&l.old, key)
	if t != nil {
		t = l.keep(key, t)
	}
	return t
}

// find returns the limit for key in a part of the cache, or nil.
func find(in *atomic.Pointer[sync.Map], key any) *limit.Limit {
	m := in.Load()
	if m == nil {
		return nil
	}
	t, _ := m.Load(key)
	found, _ := t.(*limit.Limit)
	return found
}

// keep caches t, unless there is already a limit for key. It returns that or t.
func (l *limits) keep(key any, t *limit.Limit) *limit.Limit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := find(&l.young, key); known != nil {
		return known
	}
	if l.young.Load() == nil || l.kept >= manyLimits {
		l.old.Store(l.young.Load())
		l.young.Store(new(sync.Map))
		l.kept = 0
	}
	l.young.Load().Store(key, t)
	l.kept++
	return t
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
	if l.limits == nil {
		return l.t, nil
	}
	alg, err := l.limits.lookup(ctx, key)
	return l.limits.of(key, alg, err)
}

// limitFor returns the limit by which requests for key are decided. That is the limit of the key
// or, if that is not known, the one that New was given; unknown then says why. If ctx ended before
// the lookup succeeded, nothing decides: there is no limit, and ended is the error of ctx.
func (l *limiter) limitFor(ctx context.Context, key string) (t *limit.Limit, unknown, ended error) {
	if l.limits == nil {
		return l.t, nil, nil
	}
	alg, err := l.limits.lookup(ctx, key)
	return l.limitBy(ctx, key, alg, err)
}

// limitBy is limitFor if the lookup has returned alg and err.
func (l *limiter) limitBy(
	ctx context.Context,
	key string,
	alg Algorithm,
	err error,
) (t *limit.Limit, unknown, ended error) {
	t, err = l.limits.of(key, alg, err)
	switch {
	case err == nil:
		return t, nil, nil
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	}
	return l.t, l.lookupFailed(ctx, err), nil
}

// presentLimit returns the limit by which requests for the key of c are decided now, or nil if
// c.ctx ended before it was found.
func (l *limiter) presentLimit(c *call) *limit.Limit {
	if c.present != nil {
		return c.present
	}
	if c.Request.Op == step.OpSettle { // whose Limit is that of the hold
		t, unknown, _ := l.limitFor(c.ctx, c.Key)
		c.unknown = unknown
		return t
	}
	if c.Limit == nil {
		c.Limit, c.unknown, _ = l.limitFor(c.ctx, c.Key)
	}
	return c.Limit
}
