package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Store keeps the states of keys, and applies transitions to each key one at a
// time. It does not compute limits: [Transition.Apply] takes a state as bytes and
// returns the next one. For a database that can compare and swap, or a map,
// [NewStore] makes a Store of a [Database]. Package storetest checks that a
// Store keeps every promise of this package.
//
// # How to write one
//
// Apply of [States] reads the state of a key and calls [Transition.Apply] with it. If
// that reports a change, Apply replaces the state that it read by the next state.
// Nobody may store another state in between: use a lock, a transaction, or a
// compare-and-swap, and start over if it fails. It may compare versions or the states
// themselves, because equal bytes mean the same. But a key that Reset has deleted
// meanwhile must not come back.
//
// Time: pass the request on unchanged. [Transition.Apply] reads the limiter's clock
// after the store has read the state. A store that reads the clock first may decide
// at an earlier time than that of the state it finds, and deny a request although no
// limit was hit. A store that decides by its own clock uses [Request.At], and reads
// that clock after the state as well.
//
// Keys: a key is any string: empty, with any byte, invalid UTF-8, a megabyte long. So is a
// limiter's name, except that it is not empty. Different pairs must have different states: "a" and "b:c"
// must differ from "a:b" and "c", and "A" from "a". Hash keys that are too long for
// the database, with a cryptographic hash if users choose keys.
//
// States: most take 10 to 60 bytes. A [SlidingWindow] takes 4 bytes more for each of
// its Segments, and a [RollingWindow] for each period in Window (8 if the limit is
// above 2³²−1); a [SlidingLog] takes 8 to 16 for each event in Window, and an [All]
// the sum of its parts. A store that cannot keep a state must return an error. It must
// return the same bytes later: they contain no checksum.
//
// Forgetting: a state may be deleted once the IdleAfter of the last Result has
// passed by the limiter's clock: at the time that [Request.Read] returns, called after
// the state was read, plus IdleAfter. Deleting it later, or never, only costs space;
// deleting it earlier hands out a fresh limit. So a database that deletes by its own
// clock needs a margin.
//
// Contexts: a method should return when its context ends, with any error. The limiter
// does not rely on that: it abandons calls that take longer than the context or
// [WithStoreTimeout] allows. Events that an abandoned call grants are spent, except
// those of an [InFlight] whose caller has left, if the call returns within that timeout. A
// context belongs to its call, and must not be used afterwards.
//
// Errors: return those of the database, wrapped or not. The limiter adds its name, and
// its [FailurePolicy] decides. A store does not decide by itself, and need not retry:
// a call that failed may have had its effect.
//
// Memory: [Transition.Apply] keeps neither the state that it is given nor the one that
// it returns. Their buffers may be reused once the state is stored. If there was no
// change, both are the same slice.
//
// Grants: a Result's Grant is a value in the memory of its process. The limiter passes
// it back in the OpCancel of the same reservation. A store of bytes neither reads nor
// stores it.
//
// Failures: [FailurePolicy] says what a limiter does when its store fails. With the
// default, FailOpen, Reserve and Wait succeed at once, with no sign of the failure.
//
// # Stores with scripts
//
// [Transition.Portable], [Transition.Algorithm], [Transition.Tag], [Transition.Varies],
// [Transition.AppendCancellation], [Request.AsOf], [Request.Refused]
// and [OpReturn] are for stores that decide elsewhere, such as in a script in a database, or that
// take events in advance. [Request.PolicyDecides] is for
// stores that count failures. Package redisstore is such a store. Other stores need none of
// them.
type Store interface {
	// Open returns the states of the limiter called name, which uses t. [New]
	// calls it once. Limiters with the same name share states if their algorithms
	// are the same. Limiters with different names have separate states.
	//
	// If this Store already has an open limiter of that name with another
	// algorithm, Open returns an error that matches [ErrInvalid], such as that of
	// [Transition.CheckSame], or keeps the two apart. It need not consider states of
	// earlier processes: each state names its algorithm and parameters, and
	// [Transition.Apply] adopts states of other parameters.
	Open(name string, t *Transition) (States, error)
}

// States is the part of a [Store] that belongs to one limiter. Any number of
// goroutines may call its methods at once, together with those of other States of the
// Store.
type States interface {
	// Apply applies req to the state of key with t, atomically: concurrent calls
	// have the same results as if they were made one after another. If the limiter
	// has [WithLimits], t may differ from the one passed to Open; for an OpCancel, it
	// is the one that made the reservations, or one of them. An error means
	// that the store failed, never that a request was denied. After an error, the
	// state may or may not have changed. t is never [Transition.Stateless].
	Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error)

	// Reset forgets key of this limiter.
	Reset(ctx context.Context, key string) error
}

// An Op is what a [Request] asks of a key.
type Op uint8

const (
	// OpTake spends N events if they are granted now.
	OpTake Op = iota

	// OpPeek returns what OpTake of one event would, but spends nothing.
	OpPeek

	// OpReserve spends N events at the earliest time at which they are granted,
	// unless the wait for them exceeds MaxWait.
	OpReserve

	// OpCancel takes back as many events of Grant as possible. Grant may cover
	// several reservations of the key.
	OpCancel

	// OpReturn takes back N events that OpTake granted at the time Taken and that
	// will not happen, because a store took them in advance and did not hand them
	// out. Decision.Allowed says whether none of them counts any more. A LeakyBucket,
	// WarmingUp, and a SlidingLog with CountDenied keep them.
	OpReturn

	// OpHold is OpTake, and opens Hold: until it ends, the state remembers that the events are
	// held. The Result says whether it did so, which it does not for 0 events.
	OpHold

	// OpCharge spends N events whether or not they are granted.
	OpCharge

	// OpSettle ends Hold, of whose events N have happened. The key is then as if N had been spent
	// in the first place, and those beyond the events held are spent as by OpCharge. If the hold
	// is not open, only N−Of events are spent, if that is positive. Those of an InFlight are over,
	// whatever N is.
	OpSettle

	// OpExtend makes Hold end by itself at another time, if it is open.
	OpExtend
)

// A Request asks a store for one transition of one key.
type Request struct {
	Op      Op
	N       int           // the number of events; at least 0 for OpTake, 1 for OpReserve
	MaxWait time.Duration // for OpReserve: the longest wait allowed
	Grant   any           // for OpCancel: the Grants of earlier Results, in a form that Transition.Apply reads; for OpSettle and OpExtend: the Grant of the Result that opened the hold
	Taken   time.Time     // for OpReturn
	Hold    Handle        // for OpHold, and OpReserve unless it is zero: the hold to open; for OpSettle and OpExtend: the one that was opened
	Of      int           // for OpSettle: the number of events held

	timeline *kernel.Timeline
	fixed    *kernel.Reading
	atOnce   bool          // whether OpReserve needs no Grant if there is no wait
	yields   bool          // whether OpReserve is denied if it has to wait while holds are open
	near     time.Duration // likewise, only within this time, if it is not 0
	within   bool          // whether OpReserve is that of ReserveWithin
	refused  bool          // whether another key refuses it
	notes    bool          // whether that is a denial that a SlidingLog with CountDenied counts
}

// PolicyDecides reports whether the limiter's [FailurePolicy] decides r if Apply returns an
// error now, for stores that count failures. It does not if ctx, the context of Apply, was
// cancelled; for Reserve and Wait, if the deadline of ctx has passed, because these return the
// error of ctx; and for OpCancel, OpReturn and OpExtend, which are not decided.
func (r *Request) PolicyDecides(ctx context.Context) bool {
	switch r.Op {
	case OpCancel, OpReturn, OpExtend:
		return false
	case OpReserve:
		if !r.within {
			return ctx.Err() == nil
		}
	}
	return !errors.Is(ctx.Err(), context.Canceled)
}

// Yields reports whether an OpReserve is to be denied if it would have to wait while holds are open,
// for stores with scripts. A settlement may make its turn an earlier one.
func (r *Request) Yields() bool { return r.yields }

// At returns the request with its time fixed to t, for stores with their own clock.
// Without At, Transition.Apply reads the limiter's clock when it has the state, so
// that no decision is made at an earlier time than the one that left the state.
func (r Request) At(t time.Time) Request {
	r.fixed = &kernel.Reading{Now: kernel.InstantOf(t), Wall: t}
	return r
}

// AsOf returns the request with its time fixed as that of other is, for stores that apply
// several requests at one time.
func (r Request) AsOf(other Request) Request {
	r.fixed = other.fixed
	return r
}

// Read returns the request with its time fixed to the present reading of the limiter's
// clock, unless it was fixed before. It also returns the fixed time.
func (r Request) Read() (Request, time.Time) {
	if r.fixed == nil {
		now, lag := r.timeline.Now()
		r.fixed = &kernel.Reading{Now: now, Lag: lag, Wall: r.timeline.Wall(now, lag), Own: true}
	}
	now := r.fixed.Now
	return r, time.Unix(int64(now/1e9), int64(now%1e9))
}

// check returns an error for a request that no limiter makes.
func (r *Request) check() error {
	if r.N < 0 || r.Op > OpExtend || r.timeline == nil && r.fixed == nil {
		return param.Invalid("Request", fmt.Sprintf("{Op: %d, N: %d}", r.Op, r.N), "must have an Op, no negative N, and a time: that of a Limiter or of At")
	}
	return nil
}

// A Result is a store's answer to a [Request].
type Result struct {
	// Decision is the answer to OpTake and OpPeek. For OpReserve, Allowed says
	// whether the events were reserved; if not, RetryAfter is the wait until the
	// same request succeeds. For OpReturn, Allowed says whether none of the events
	// counts any more; if not, at least one part of the algorithm keeps them. For
	// OpReserve, OpCancel and OpReturn, the other fields describe the key afterwards. For
	// OpCharge, OpSettle and OpExtend, it is the answer to an OpPeek afterwards.
	Decision Decision

	// IdleAfter is the time after which the state is equal to none, so that a store may delete it:
	// the ResetAfter of the Decision or, while the key keeps a former limit, or holds are open, a later
	// time.
	IdleAfter time.Duration

	// Wait is, for OpReserve, the time until the events may happen, or Never. It
	// is set even when it exceeds MaxWait.
	Wait time.Duration

	// QueueFull says that OpReserve found no room in a LeakyBucket.
	QueueFull bool

	// Full says that the store had no room for a new key; see [MemoryStore].
	Full bool

	// Held says whether the hold of the request was opened, or found open.
	Held bool

	// Grant is, for OpReserve, the value that OpCancel needs to take the events back, and for
	// OpCancel, its outcome. A store returns both as Transition.Apply returned them; without the outcome, the limiter assumes that cancelling has
	// failed. A store that does not use Transition.Apply may return a Grant of its
	// own for OpReserve, and gets it back as the Grant of the OpCancel.
	Grant any

	// due is, for OpReserve, the instant at which the events may happen by the
	// limiter's clock, or 0 if the store decided by a clock of its own.
	due kernel.Instant

	ends   time.Duration // until the first of the open holds ends by itself; 0 if none is open
	excess bool          // for OpCharge and OpSettle: whether the state cannot hold as many events, but
	most   uint64        // only as many
}

// expiry returns the time, by the limiter's clock, from which a state that r has left is like none, or
// the zero Time for never. The time of r must be fixed.
func (r *Request) expiry(res *Result) time.Time {
	if res.IdleAfter == Never {
		return time.Time{}
	}
	return r.fixed.Wall.Add(res.IdleAfter)
}

// StateErr returns an error that matches [ErrState] if [Transition.Apply] could not
// read the state and the key has started afresh. The limiter reports it like an error
// of the store. A store need not call StateErr, but must return this Result.
func (r *Result) StateErr() error {
	if err, ok := r.Grant.(*stateError); ok {
		return err
	}
	return nil
}
