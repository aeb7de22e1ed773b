package ratelimit

import "context"

// A Store keeps the states of keys, and applies one transition at a time to
// each. It knows nothing of how limits are computed; see [Transition] for what
// it does with one. Package storetest checks that a Store keeps every promise
// of this package.
type Store interface {
	// Open returns the states of the limiter called name, which runs t. It is
	// called once by [New]. Limiters of the same name share states, if their
	// algorithms are the same; names keep limiters in one store apart.
	Open(name string, t *Transition) (States, error)
}

// States is the part of a [Store] that belongs to one limiter.
type States interface {
	// Apply applies req to the state of key with t, atomically: what any
	// number of callers do at once equals what one would have done, call after
	// call. An error says that the store failed, never that a request was
	// denied, and leaves open whether the state changed.
	Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error)

	// Reset forgets key.
	Reset(ctx context.Context, key string) error
}
