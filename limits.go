package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// WithLimits gives keys limits of their own, which may change at any time. lookup
// returns the algorithm for a key, or nil for the algorithm passed to [New]. Each
// Take, Wait, Reserve and Peek calls it before the store, so it should answer from
// memory (package rules has a cache for lookups in a database). If lookup fails, or
// returns parameters that cannot be used, the limiter's [FailurePolicy] decides, as
// if the store had failed.
//
// A key whose limit changes keeps its usage. At its next request:
//
//   - [TokenBucket] and [LeakyBucket]: spent tokens (the level) stay spent, even if
//     they exceed the new Burst or Capacity, and return at the new rate. If a key
//     has spent 8 of 10 a second, and the limit becomes 5 a second, the next event is
//     granted 0.8 s later. With RefillInterval, refills arrive at multiples of Per after
//     the change if Per changes. While reservations of a TokenBucket are pending, the
//     tokens missing at the time of the last one stay spent, and no caller overtakes
//     it. While reservations of a LeakyBucket are pending, new turns come after theirs.
//   - [FixedWindow], [SlidingWindow] and [RollingWindow] keep their counts, even
//     above a new, lower limit. If the length of the window, Segments or Period
//     changes, all events that the old window holds count as used now.
//   - [SlidingLog] keeps its events and their times; with CountDenied, an event that
//     a lower Limit denies replaces the oldest one.
//   - [WarmingUp] keeps the next free time, and its warmth in proportion.
//   - [All] does this for each part, if the new All has the same number of parts, of
//     the same kinds in the same order.
//
// So changing a limit never grants more at once than the new limit would have granted
// had it applied all along. Reverting a change before it has affected a request has no
// effect. However, some usage is lost: events that leave a window while it is shorter
// do not return when it is made longer again; nor do missing tokens that would take
// more than 70 years to return at a lower rate, or, in a SlidingWindow or
// RollingWindow, the part of a count above 2³²−1 under a limit up to that number. With
// another kind of algorithm, or another Refill, a key starts afresh. A [Reservation]
// that was made under other parameters gives nothing back.
//
// In a [MemoryStore], a key of such a limiter costs about 75 bytes plus its state.
// Each distinct limit costs about 250 bytes more, which [MemoryStats] does not count.
// [AlgorithmOf] returns nil for the limiter. An All of more than four parts costs a few
// microseconds in each call, because it is compiled each time.
func WithLimits(lookup func(ctx context.Context, key string) (Algorithm, error)) Option {
	return func(c *config) { c.lookup, c.lookupSet = lookup, true }
}

// limits looks up the limits of keys, and caches their transitions.
type limits struct {
	lookup func(ctx context.Context, key string) (Algorithm, error)
	base   *Transition

	recent atomic.Pointer[recentLimits] // nil until the first lookup

	mu         sync.RWMutex        // protects young and old
	young, old map[any]*Transition // by keyOf
}

// recentLimits are limits by indexOf. Most services have a few plans.
type recentLimits [32]atomic.Pointer[recentLimit]

// A recentLimit is a limit that was looked up lately. The parameters are not a pointer, so
// they cannot have changed.
type recentLimit struct {
	alg Algorithm
	t   *Transition
}

// indexOf returns the index in recentLimits for the parameters of an algorithm. ok is false if
// they are not kept there.
func indexOf(alg Algorithm) (i uint64, ok bool) {
	mix := func(r Rate, n int, d time.Duration) (uint64, bool) {
		h := uint64(r.Events)*0x9E3779B97F4A7C15 + uint64(r.Per)*0xC2B2AE3D27D4EB4F + uint64(n)*0xD6E8FEB86659FD93 + uint64(d)*0xA0761D6478BD642F
		return h >> 59, true
	}
	switch a := alg.(type) {
	case TokenBucket:
		return mix(a.Rate, a.Burst, 0)
	case LeakyBucket:
		return mix(a.Rate, a.Capacity, 0)
	case FixedWindow:
		return mix(Rate{}, a.Limit, a.Window)
	case SlidingWindow:
		return mix(Rate{}, a.Limit, a.Window)
	case SlidingLog:
		return mix(Rate{}, a.Limit, a.Window)
	case RollingWindow:
		return mix(Rate{}, a.Quota, a.Window)
	}
	return 0, false
}

// manyLimits is the most transitions in each of young and old. When young is full, it
// becomes old, and the previous old is dropped. A transition in old that is used moves
// to young.
const manyLimits = 8192

// forKey returns the transition for key.
func (l *limits) forKey(ctx context.Context, key string) (*Transition, error) {
	alg, err := l.lookup(ctx, key)
	if err == nil && alg == nil {
		return l.base, nil
	}
	var t *Transition
	if err == nil {
		t, err = l.transition(alg)
	}
	if err != nil {
		return nil, fmt.Errorf("ratelimit: the limit of key %q: %w", key, err)
	}
	return t, nil
}

// transition returns the transition for alg, which a user passed.
func (l *limits) transition(alg Algorithm) (*Transition, error) {
	i, ok := indexOf(alg)
	if !ok {
		return l.search(alg)
	}
	recent := l.recent.Load()
	if recent == nil {
		l.recent.CompareAndSwap(nil, new(recentLimits))
		recent = l.recent.Load()
	}
	if r := recent[i].Load(); r != nil && r.alg == alg {
		return r.t, nil
	}
	t, err := l.search(alg)
	if err == nil {
		recent[i].Store(&recentLimit{alg, t})
	}
	return t, err
}

// search is transition for a limit that is not among the recent ones.
func (l *limits) search(alg Algorithm) (*Transition, error) {
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
	t, err := newTransition(alg, kernel.InMemory.Varying())
	if err == nil && ok {
		l.keep(key, t)
	}
	return t, err
}

// known returns the cached transition for key, or nil.
func (l *limits) known(key any) *Transition {
	t, young := l.find(key)
	if t != nil && !young {
		l.keep(key, t)
	}
	return t
}

func (l *limits) find(key any) (t *Transition, young bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if t = l.young[key]; t != nil {
		return t, true
	}
	return l.old[key], false
}

func (l *limits) keep(key any, t *Transition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.young == nil || len(l.young) >= manyLimits {
		l.young, l.old = make(map[any]*Transition), l.young
	}
	l.young[key] = t
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
