package ratelimit

import (
	"context"

	"github.com/benbjohnson/clock"
)

// This file tells what a limiter is.

// An Info says what a limiter is; see [Limiter.Describe].
type Info struct {
	Name  string      // that of [WithName], which observers are told
	Clock clock.Clock // that of [WithClock], or the system's
	Store Store       // that of [WithStore], or the [MemoryStore] that the limiter has for itself

	// Algorithm is the one that was passed to [New], with defaults filled in, such as a Capacity of
	// 1 for 0. Nested Alls are flattened. It is nil if keys have limits of their own.
	Algorithm Algorithm

	// Lookup returns the algorithm of a key, as it is now. It is nil if keys have no limits of
	// their own.
	Lookup func(ctx context.Context, key string) (Algorithm, error)
}

// AlgorithmOf returns the algorithm that the limiter applies to key now, or nil if it is not known. For a
// limiter made with [WithLimits], it calls the lookup, and returns its error, or one that matches
// [ErrInvalid] if the parameters cannot be used. If ctx has ended, it may return the error of ctx.
func (i Info) AlgorithmOf(ctx context.Context, key string) (Algorithm, error) {
	if i.Lookup == nil {
		return i.Algorithm, nil
	}
	return i.Lookup(ctx, key)
}

// Describe implements [Limiter].
func (l *limiter) Describe() Info {
	i := Info{Name: l.name, Clock: l.timeline.Clock(), Store: l.store}
	if l.ownLimits == nil {
		i.Algorithm = algorithmOf(l.limit)
		return i
	}
	i.Lookup = func(ctx context.Context, key string) (Algorithm, error) {
		if err := l.check(ctx, 0); err != nil {
			return nil, err
		}
		lim, err := l.limitOf(ctx, key)
		if err != nil {
			return nil, err
		}
		return algorithmOf(lim), nil
	}
	return i
}
