package ratelimit

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/benbjohnson/clock"
)

// This file tells what a limiter is, and what limiters and keys print as. Keys may be secrets, so
// nothing prints one.

// An Info says what a limiter is; see [Limiter.Describe].
type Info struct {
	Name  string      // that of [WithName], which observers are told
	Clock clock.Clock // that of [WithClock], or the system's
	Store Store       // that of [WithStore], or the [MemoryStore] that the limiter has for itself

	// StoreTimeout is how long a call of the Store takes at most; see [WithStoreTimeout]. It is 0
	// for a MemoryStore, which never waits.
	StoreTimeout time.Duration

	// Algorithm is the one that was passed to [New], with defaults filled in, such as a Capacity of
	// 1 for 0. Nested Alls are flattened. It is nil if keys have limits of their own.
	Algorithm Algorithm

	// Lookup returns the algorithm of a key, as it is now. It is nil if keys have no limits of
	// their own.
	Lookup func(ctx context.Context, key string) (Algorithm, error)
}

// AlgorithmOf returns the algorithm that the limiter applies to key now, or nil if it is not known.
// For a limiter made with [WithLimits], it calls the lookup, and returns its error, or one that
// matches [ErrInvalid] if the parameters cannot be used. If ctx has ended, it may return the error
// of ctx.
func (i Info) AlgorithmOf(ctx context.Context, key string) (Algorithm, error) {
	if i.Lookup == nil {
		return i.Algorithm, nil
	}
	return i.Lookup(ctx, key)
}

// Describe implements [Limiter].
func (l *limiter) Describe() Info {
	i := Info{
		Name: l.name, Clock: l.timeline.Clock(),
		Store: l.store, StoreTimeout: l.states.Timeout(),
	}
	if l.ownLimits == nil {
		i.Algorithm = known(l.limit)
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
		return known(lim), nil
	}
	return i
}

// String says what the limiter is: its name, the limit in words, and where its states are.
func (l *limiter) String() string {
	words := known(l.limit).String()
	if l.ownLimits != nil {
		words += ", or the limit of the key"
	}
	return l.title() + ": " + words + ", in " + storeInWords(l.store)
}

// title returns the name of the limiter, if it has one, and what it is.
func (l *limiter) title() string {
	if l.name == "" {
		return "ratelimit.Limiter"
	}
	return "ratelimit.Limiter " + strconv.Quote(l.name)
}

// storeInWords says where a store keeps states.
func storeInWords(s Store) string {
	if named, ok := s.(fmt.Stringer); ok {
		return named.String()
	}
	return fmt.Sprintf("a store of type %T", s)
}

// String returns "memory".
func (*MemoryStore) String() string { return "memory" }

// String says whose events r is, and how many. It does not have the key, which may be a secret.
func (r *Reservation) String() string {
	switch {
	case r == nil:
		return "no ratelimit.Reservation"
	case r.joint != nil:
		return fmt.Sprintf("ratelimit.Reservation of %d keys", len(r.joint.parts))
	case r.l == nil:
		return "ratelimit.Reservation of nothing"
	}
	return fmt.Sprintf("ratelimit.Reservation of %s of a key of %s", eventsInWords(r.n), r.l.title())
}

// String says whose key b is, and its own number of events, if it has one. It does not have the
// key, which may be a secret.
func (b Bound) String() string {
	text := "ratelimit.Bound: "
	if b.hasOwnN {
		text += eventsInWords(b.n) + " of "
	}
	switch l := b.limiter.(type) {
	case nil:
		return "ratelimit.Bound without a limiter"
	case *limiter:
		return text + "a key of " + l.title()
	default:
		return text + fmt.Sprintf("a key of a limiter of type %T", l)
	}
}

// eventsInWords returns "1 event" or "2 events".
func eventsInWords(n int) string {
	if n == 1 {
		return "1 event"
	}
	return strconv.Itoa(n) + " events"
}
