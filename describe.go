package ratelimit

import (
	"context"

	"github.com/benbjohnson/clock"
)

// This file tells what a limiter is.

// An Info says what a limiter is; see [Describe].
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

// Describe returns what l is. If l was not made by [New], Describe returns the result of its method
// Describe() Info, or of the limiter that its method Unwrap() Limiter returns. If it has neither,
// the Info is empty.
func Describe(l Limiter) Info {
	if l, ok := unwrapTo[interface{ Describe() Info }](l); ok {
		return l.Describe()
	}
	return Info{}
}

// For returns the algorithm that the limiter applies to key now, or nil if it is not known. For a
// limiter made with [WithLimits], it calls the lookup, and returns its error, or one that matches
// [ErrInvalid] if the parameters cannot be used. If ctx has ended, it may return the error of ctx.
func (i Info) For(ctx context.Context, key string) (Algorithm, error) {
	if i.Lookup == nil {
		return i.Algorithm, nil
	}
	return i.Lookup(ctx, key)
}

// unwrapTo returns l or, if that has not the methods of T, the first of those that it wraps that
// has.
func unwrapTo[T any](l Limiter) (_ T, ok bool) {
	for {
		if t, ok := l.(T); ok {
			return t, true
		}
		wrapper, ok := l.(interface{ Unwrap() Limiter })
		if !ok {
			var none T
			return none, false
		}
		l = wrapper.Unwrap()
	}
}

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
