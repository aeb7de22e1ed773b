package ratelimit

import "context"

// A Store keeps the states of keys, and applies one transition at a time to each. It
// knows nothing of how limits are computed: [Transition.Apply] takes a state as
// bytes and returns the next. For a database that can compare and swap, or a map,
// [NewCASStore] makes a Store of three functions. Package storetest checks that a
// Store keeps every promise of this package.
//
// # How to write one
//
// Apply of [States] reads the state of a key, calls [Transition.Apply] with it, and if
// that reports a change, stores the next state in the place of the one it read. Nobody
// may store another in between: do so under a lock, in a transaction, or with a
// compare-and-swap, and start over if that fails. Whether it compares versions or the
// states themselves does not matter: equal bytes mean the same. But if the key was
// deleted meanwhile, by Reset, it must not come back.
//
// Time: pass the request on unchanged. [Transition.Apply] reads the limiter's clock,
// after the store has read the state. A store that reads the clock first may decide
// at an earlier time than the state it finds, and deny a request although no limit
// was hit. A store that decides by a clock of its own uses [Request.At], and also reads
// that clock after the state.
//
// Keys: a limiter's name and a key are any strings: empty, with any byte, invalid
// UTF-8, a megabyte long. Different pairs must never meet: neither "a" and "b:c" with
// "a:b" and "c", nor "A" with "a". Hash what is too long for the database, with a
// cryptographic hash if users choose keys.
//
// States: all but a few kinds are some 10 to 60 bytes. A [SlidingWindow] takes 4 bytes
// more for each of its Segments and a [RollingWindow] for each period in Window (8 if the
// limit is above 2³²−1), a [SlidingLog] 8 to 16 for each event in Window, and an
// [All] the sum of its parts. A store that cannot keep a state must return an error. What
// it returns later must be those bytes: there is no checksum in them.
//
// Forgetting: a state may be deleted once the ResetAfter of the last Decision has
// passed, by the limiter's clock: at the time that [Request.Read] tells, called when the
// state has been read, plus ResetAfter. Deleting it later, or never, only costs room;
// deleting it earlier hands out a fresh limit. So a database that deletes by its own
// clock needs a margin.
//
// Contexts: a method should return when its context ends, with any error. A limiter
// does not rely on that: it leaves behind what takes longer than the context or than
// [WithStoreTimeout] allows, and events that are granted after that are spent. A context
// belongs to its call, and must not be used after it.
//
// Errors: return those of the database as they are, wrapped or not. The limiter adds its
// name, and its [FailurePolicy] decides. A store does not decide by itself, and need not
// try again: whatever it could not do may have been done.
//
// Memory: Apply keeps neither the state it is given nor the one it returns. The buffer of
// either may be used again when the state is stored. If there was no change, they are one.
//
// Grants: a Result's Grant is a value in the memory of its process. The limiter passes it
// back in the OpCancel of the same reservation. A store of bytes never looks at it, and
// does not store it.
//
// Failures: for what a limiter answers when its store fails, see [FailurePolicy]. With
// the default, FailOpen, Reserve and Wait succeed at once, and nothing marks that.
//
// # Stores with scripts
//
// [Transition.Portable], [Transition.Algorithm] and [OpReturn] are for stores that decide
// elsewhere, in a script in a database, or that take events in advance, and so are
// [Transition.Tag] and [Transition.Varies], except in Open. Package redisstore is such a
// store. Others need none of them.
type Store interface {
	// Open returns the states of the limiter called name, which runs t. It is
	// called once by [New]. Limiters of the same name share states if their
	// algorithms are the same; names keep limiters in one store apart.
	//
	// If a limiter of that name is open already, in this Store, with another
	// algorithm (another [Transition.Tag], or another answer of
	// [Transition.Varies]), Open returns an error that matches [ErrInvalid], as
	// [MemoryStore] does, or keeps the two apart. It need not look at what earlier
	// processes left: states say by which algorithm they are, and
	// [Transition.Apply] adopts what parameters before have left.
	Open(name string, t *Transition) (States, error)
}

// States is the part of a [Store] that belongs to one limiter. Its methods may be
// called by any number of goroutines at once, and those of other States of the Store.
type States interface {
	// Apply applies req to the state of key with t, atomically: what any
	// number of callers do at once equals what one would have done, call after
	// call. t is not the one of Open if the limiter has [WithLimits]. An error
	// says that the store failed, never that a request was denied, and leaves
	// open whether the state changed.
	Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error)

	// Reset forgets key, of this limiter only.
	Reset(ctx context.Context, key string) error
}
