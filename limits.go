package ratelimit

import (
	"context"
	"fmt"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// WithLimits gives keys limits of their own, which may change at any time:
// lookup returns the algorithm for a key, or nil for the one given to [New]. It is
// called by each Take, Wait, Reserve and Peek, before the store is, so it should
// answer from memory (package rules has a cache for those that ask a database). If
// it fails, or returns parameters that cannot be used, the limiter's
// [FailurePolicy] decides, as if the store had failed.
//
// A key that is given another limit keeps what it has used. What that means,
// when its next request comes:
//
//   - [TokenBucket] and [LeakyBucket]: the tokens that are missing (the level)
//     stay so, also those beyond a new, smaller bucket, and come back at the new
//     rate. With RefillInterval, lumps are counted from the change if Per changes.
//     While reservations of a TokenBucket are pending, the tokens that are missing at
//     the instant of the last one stay so, and nobody goes before it. While those of a
//     LeakyBucket are, turns are told behind theirs.
//   - [FixedWindow], [SlidingWindow] and [RollingWindow] keep their counts, also
//     those above a new, lower limit. If the window's length changes, or its
//     Segments or Period, what the old window holds counts as used at once.
//   - [SlidingLog] keeps its events, and their instants; with CountDenied, no
//     more of them than the lowest Limit since.
//   - [WarmingUp] keeps the next free time, and how warm it is, in proportion.
//   - [All] does so for each part, if they are as many as before and of the same
//     kinds in the same order.
//
// So a change lets nobody do at once what the new limit would not have let it, had
// it been there before; and one that is taken back, before anything has come of it,
// has changed nothing. But what has left a window that was made shorter is
// forgotten, if it is made longer again; so are missing tokens that would take more
// than a century to come back at the lower rate, and the part of a count above 2³²−1
// under a limit of no more than that (in a SlidingWindow or RollingWindow). Another kind of algorithm, or another
// Refill, begins afresh. A [Reservation] that was made under other parameters gives
// nothing back.
//
// A key of such a limiter costs about 75 bytes in a [MemoryStore], besides its state,
// and each limit that differs from the others about 250, which [MemoryStats] does not count.
// AlgorithmOf returns nil for it. An All of more than
// four parts costs a few microseconds for each call, for it is put together each time.
func WithLimits(lookup func(ctx context.Context, key string) (Algorithm, error)) Option {
	return func(c *config) { c.lookup, c.lookupSet = lookup, true }
}

// limits is what a limiter knows of the limits of its keys.
type limits struct {
	lookup func(ctx context.Context, key string) (Algorithm, error)
	base   *Transition

	mu         sync.RWMutex        // protects what follows
	young, old map[any]*Transition // by keyOf
}

// manyLimits bounds the memory of a limits: it knows at most twice as many
// transitions. When young has reached that number it becomes old, and what was old
// is dropped, except for what was used meanwhile.
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

// transition returns the one for alg, which a user gave.
func (l *limits) transition(alg Algorithm) (*Transition, error) {
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

// known returns the transition that was kept for key, if it still is.
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

// keyOf returns what equals that of another algorithm if that has the same
// parameters, unless alg is an All of many parts, or of another All.
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
