package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// WithLimits gives keys limits of their own, which may change at any time. lookup
// returns the algorithm for a key, or nil for the algorithm passed to [New], which may be
// [Blocked] if every key has a limit. Each call that decides on a key calls lookup before the
// store; Cancel, Reset, and Settle and Release of what the store holds do not. So it should
// answer from memory (package rules has a cache for lookups in a database). If lookup fails, or
// returns parameters that cannot be used, the limiter's [FailurePolicy] decides, as if the store
// had failed: by default, it allows everything.
//
// Because Settle does not call lookup, its Decision is that of the present limit: the one under which the key
// was last granted something.
//
// A key whose limit changes keeps its usage: what it has been granted counts under the new limit as
// well, at the time at which it happened, as exactly as that is known:
//
//   - [TokenBucket] and [LeakyBucket]: spent tokens (the level) stay spent, even if
//     they exceed the new Burst or Capacity, and return at the new rate. If a key
//     has spent 8 of 10 a second, and the limit becomes 5 a second, the next event is
//     granted 0.8 s later. The new rate, or with RefillInterval the new interval, begins with the
//     first request under the new limit, other than a Peek.
//   - [FixedWindow], [SlidingWindow] and [RollingWindow] keep their counts, even
//     above a new, lower limit. If the length of the window, Segments or Period
//     changes, the events of a window, segment or period count as late as they can have happened.
//   - [SlidingLog] keeps its events and their times; with CountDenied, an event that
//     a lower Limit denies replaces the oldest one.
//   - [WarmingUp] keeps the next free time, and its warmth in proportion.
//   - [All] does this for each part, if the new All has the same number of parts, of
//     the same kinds in the same order. Unlimited parts do not count.
//   - [Unlimited] and [Blocked] leave the state of the key as it is, and so does an All of
//     only Unlimited parts, or with a Blocked one. When the key has a limit again, it is as if
//     nothing had been requested of it in the meantime.
//   - With another kind of algorithm, or another Refill, a key starts afresh. So does one whose All
//     gets an Unlimited part in the place of a limit; to lift one limit of several for a while,
//     use a limiter for each.
//
// An edit does this and nothing else: the new limit begins with what the one before it has counted, and
// decides alone. The former limit is not forgotten at once. What is granted is charged in both, so a change that
// is taken back has changed nothing of what counts under it, and two versions of a program, which learn of
// a change at different times, may ask in turns. Each then grants what its own limit permits after what
// both have granted: none grants more, and what one grants leaves the other room as its own definition says.
// (Windows of 10 a second and of 20 in two seconds, asked in turns, may grant 30 in two seconds.) But a former
// bucket owes at most its burst: it does not count what the other limit grants beyond that. So while a bucket
// of 100 a second is used up all the time, one of 10 a second grants nothing. Once only that one is asked, it
// grants an event after 1.1 s at the latest, the time of its burst of 10 and one more. (Give two versions
// of a program the same rate, or another name.) The next free time of a WarmingUp becomes no later than its
// limit, requested twice when idle, would make it. The former limit
// goes when it was not asked for as long as either remembers, or half as long again. A key keeps no third
// limit: one that returns begins with what the present one has counted. If it differs from the former one only in
// how much it grants, it begins with what that one has counted, and a bucket with the more of the two.
//
// Not kept are the missing tokens that would take more than 70 years to return at a lower rate; in
// a SlidingWindow or RollingWindow, the part of a count above 2³²−1 under a limit up to that
// number; and in a SlidingLog, what the other limit has granted beyond twice its own. Open holds are kept, and
// settled in both limits of the key, but give nothing back in a former bucket that has owed its burst since;
// a reservation that is no hold gives nothing back after a change.
//
// In a [MemoryStore], a key whose state takes 8 bytes with its limit costs no more memory
// than without WithLimits, and decisions on it take no lock. That holds for the first
// 1,023 distinct limits of the limiter, and while the key has no pending reservations and
// has not used more than its limit (and in a [TokenBucket], after a reservation or a hold, once
// it has been granted events again). Other keys, such as those with a [SlidingWindow] of
// several segments, cost as much as with a [SlidingLog], and their decisions take a lock.
// Each distinct limit costs about 500 bytes, which [MemoryStats] does not count. A lookup
// that returns pointers to algorithms makes decisions slower than one that returns the
// algorithms themselves. An All costs an allocation in each call. With more than four parts,
// or with an All among them, it costs a few microseconds, because it is compiled each time.
//
// [Describe] returns no Algorithm for the limiter; [Info.For] returns that of a key.
func WithLimits(lookup func(ctx context.Context, key string) (Algorithm, error)) Option {
	return func(c *config) { c.lookup, c.lookupSet = lookup, true }
}

// limits looks up the limits of keys, and caches their transitions.
//
// Decisions in memory seldom need the cache: a key's slot names the limit that it was last
// decided by, and that is compared with the result of lookup.
type limits struct {
	lookup func(ctx context.Context, key string) (Algorithm, error)
	base   *limit.Limit

	young, old atomic.Pointer[sync.Map] // transitions by keyOf; nil until needed

	mu   sync.Mutex // protects against another change of young and old
	kept int        // the number of transitions in young
}

// manyLimits is the most transitions in each of young and old. When young is full, it
// becomes old, and the previous old is dropped. A transition in old that is used moves
// to young.
const manyLimits = 8192

// forKey returns the transition for key.
func (l *limits) forKey(ctx context.Context, key string) (*limit.Limit, error) {
	alg, err := l.lookup(ctx, key)
	if err != nil {
		return nil, limitError(key, err)
	}
	return l.transition(key, alg)
}

// limitError is the error of a lookup, or of what it returned.
func limitError(key string, err error) error {
	return fmt.Errorf("ratelimit: the limit of key %q: %w", key, err)
}

// transition returns the transition for alg, which lookup returned for key.
func (l *limits) transition(key string, alg Algorithm) (*limit.Limit, error) {
	if alg == nil {
		return l.base, nil
	}
	t, err := l.compiled(alg)
	if err != nil {
		return nil, limitError(key, err)
	}
	return t, nil
}

// compiled returns the transition for alg, which a user passed.
func (l *limits) compiled(alg Algorithm) (*limit.Limit, error) {
	if isPlain(alg) {
		if t := find(&l.young, alg); t != nil { // faster than what follows, which all others need
			return t, nil
		}
	}
	alg, err := value(alg)
	if err != nil {
		return nil, err
	}
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
	if key == any(alg) {
		t.Asked = key
	}
	return l.keep(key, t), nil
}

// known returns the cached transition for key, or nil.
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

// find returns the transition for key in a part of the cache, or nil.
func find(in *atomic.Pointer[sync.Map], key any) *limit.Limit {
	m := in.Load()
	if m == nil {
		return nil
	}
	t, _ := m.Load(key)
	found, _ := t.(*limit.Limit)
	return found
}

// keep caches t, unless there is already a transition for key. It returns that or t.
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

// keyOf returns a key for the cache: keys of two algorithms are equal if their
// parameters are. An All with more than four parts, or with a nested All, has none.
func keyOf(alg Algorithm) (key any, ok bool) {
	all, isAll := alg.(All)
	if !isAll {
		return alg, true
	}
	var parts [4]Algorithm
	if len(all) > len(parts) {
		return nil, false
	}
	for i, part := range all {
		part, err := value(part)
		if _, nested := part.(All); nested || err != nil {
			return nil, false
		}
		parts[i] = part
	}
	return parts, true
}
