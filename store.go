package ratelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

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

// An Op is what a [Request] asks of a key.
type Op uint8

const (
	// OpTake spends N events if they are granted now.
	OpTake Op = iota

	// OpPeek answers what OpTake of one event would, and spends nothing.
	OpPeek

	// OpReserve spends N events at the first instant at which they are granted
	// unless the wait for it would exceed MaxWait.
	OpReserve

	// OpCancel takes back what can be taken back of Grant. It may stand for several
	// reservations of the key.
	OpCancel

	// OpReturn takes back N events that OpTake granted at the time Taken, and that
	// will not happen: those that a store took in advance and did not hand out. A
	// LeakyBucket, WarmingUp, and a SlidingLog with CountDenied keep them.
	OpReturn
)

// A Request is what a [Limiter] asks of its store: one transition of one key.
type Request struct {
	Op      Op
	N       int           // how many events; from 0 for OpTake, from 1 for OpReserve
	MaxWait time.Duration // the longest wait that OpReserve may answer
	Grant   any           // for OpCancel: the Grants of earlier Results, as Transition.Apply reads them
	Taken   time.Time     // for OpReturn

	timeline *kernel.Timeline
	fixed    *kernel.Reading
	atOnce   bool // whether OpReserve needs no Grant if there is no wait
}

// At returns the request with its time fixed to t, for stores that have a
// clock of their own. Without it, the request is decided at the time that the
// limiter's clock shows when the state is at hand, so that a decision is never
// made at an earlier time than the one that left the state.
func (r Request) At(t time.Time) Request {
	r.fixed = &kernel.Reading{Now: kernel.InstantOf(t), Wall: t}
	return r
}

// Read returns the request with its time fixed to what the limiter's clock shows
// now, unless it was fixed before, and that time.
func (r Request) Read() (Request, time.Time) {
	if r.fixed == nil {
		now, lag := r.timeline.Now()
		r.fixed = &kernel.Reading{Now: now, Lag: lag, Wall: r.timeline.Wall(now, lag), Own: true}
	}
	now := r.fixed.Now
	return r, time.Unix(int64(now/1e9), int64(now%1e9))
}

// check returns what is wrong with a request that did not come from a limiter.
func (r *Request) check() error {
	if r.N < 0 || r.Op > OpReturn || r.timeline == nil && r.fixed == nil {
		return param.Invalid("Request", fmt.Sprintf("{Op: %d, N: %d}", r.Op, r.N), "must have an Op, no negative N, and a time: that of a Limiter or of At")
	}
	return nil
}

// A Result is a store's answer to a [Request].
type Result struct {
	// Decision is the answer to OpTake and OpPeek. For OpReserve, its Allowed
	// says whether the events were reserved, and RetryAfter is the wait until
	// the same request succeeds if they were not; the rest describes the key
	// afterwards, as it does for OpCancel and OpReturn.
	Decision Decision

	// Wait is, for OpReserve, the time until the events may happen: Never if
	// that never comes. It is told if it exceeds MaxWait, too.
	Wait time.Duration

	// QueueFull says that OpReserve found no room in a LeakyBucket.
	QueueFull bool

	// Full says that the store had no room for a new key, see [RefuseUnseen].
	Full bool

	// Grant is, for OpReserve, what OpCancel needs to take events back, and for
	// OpCancel what came of it. A store passes both on as Transition.Apply returns
	// them; without the latter, the limiter assumes that cancelling has failed. A
	// store that does not use Transition.Apply may return a Grant of its own for
	// OpReserve, and gets it back as the Grant of the Request.
	Grant any

	// due is, for OpReserve, the instant at which the events may happen by the
	// limiter's clock, or 0 if the store decided by a clock of its own.
	due kernel.Instant
}

// expiry returns the time at which the key of a decision is as good as new, by the
// limiter's clock, and the zero Time if that is never. Its time is fixed.
func (r *Request) expiry(d Decision) time.Time {
	if d.ResetAfter == Never {
		return time.Time{}
	}
	return r.fixed.Wall.Add(d.ResetAfter)
}

// StateErr returns an error that matches [ErrState] if the state that
// [Transition.Apply] was given could not be read, and the key has begun afresh. The
// limiter reports it as it does an error of the store; a store need not look at it,
// but must return this Result.
func (r *Result) StateErr() error {
	if err, ok := r.Grant.(*stateError); ok {
		return err
	}
	return nil
}
