package kernel

import (
	"iter"
	"time"
)

// An Op is the kind of a Request.
type Op uint8

// The operations, in the order of the public ones.
const (
	OpTake Op = iota
	OpPeek
	OpReserve
	OpCancel
	OpReturn
	OpHold
	OpTakeUpTo
	OpCharge
	OpSettle
)

// decides reports whether op spends events only if they are granted now.
func (op Op) decides() bool {
	switch op {
	case OpTake, OpPeek, OpHold, OpTakeUpTo:
		return true
	}
	return false
}

// A Request is an operation on one key.
type Request struct {
	Op      Op
	N       int           // events; at least 0 for OpTake and OpSettle, at least 1 for OpReserve
	MaxWait time.Duration // for OpReserve: the longest acceptable wait
	Grant   any           // for OpCancel: a *Cancellation, or a *Grant; for OpSettle: a *Grant
	Taken   Instant       // for OpReturn, and if Dated: when the events were granted, in nanoseconds
	Into    *Hold         // for OpHold: where the Grant is to be; nil if nowhere in particular
	Clock   *Timeline
	Fixed   *Reading // if not nil, used instead of reading Clock
	AtOnce  bool     // for OpReserve: whether no Grant is needed if there is no wait
	Lost    bool     // for OpSettle: whether the key was reset since the grant
	Doubt   bool     // for OpSettle: whether it may have been evicted or reset since

	// Untouched, for an OpSettle by a kernel that is Blind, says that nothing was granted on the
	// key since the grant.
	Untouched bool

	// Dated says, of an OpHold, that no Grant is needed, and of an OpSettle, that there is none:
	// instead, Taken, Held and Epoch say how many events were held, and the Due and the Epoch of
	// the answer to the OpHold. The kernel must be Dated.
	Dated bool
	Held  int
	Epoch uint32
}

// Entries returns the most words that req adds to a state that grows with use.
func (r *Request) Entries() int {
	if r.Op == OpSettle {
		return 2 // the events are those of the grant, or fewer, or more
	}
	return min(r.N, 2)
}

// Traces reports whether op makes a Grant that an OpSettle takes back, or is an OpSettle.
func (op Op) Traces() bool { return op == OpHold || op == OpReserve || op == OpSettle }

// TakesBack reports whether op may take events back.
func (op Op) TakesBack() bool { return op == OpCancel || op == OpReturn || op == OpSettle }

// Mark returns the state of one word that the Grant of an OpSettle has left, and the number that
// Stamp has given it. ok is false if there is none.
func (r *Request) Mark() (after uint64, number uint32, ok bool) {
	g, ok := r.Grant.(*Grant)
	if !ok || r.Op != OpSettle || len(g.traces) == 0 && len(g.ends) == 0 {
		return 0, 0, false
	}
	return g.endsOf(0).post[0], g.number, true
}

// Numbers iterates over the numbers that Stamp has given to the Grants of an OpCancel, and to those
// in the same line.
func (r *Request) Numbers() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		switch g := r.Grant.(type) {
		case *Grant:
			yield(g.number)
		case *Cancellation:
			for _, w := range g.line {
				if !yield(w.number) {
					return
				}
			}
		}
	}
}

// Made returns the epoch in which the grant of an OpSettle was made, by Stamp. ok is false if there is
// none.
func (r *Request) Made() (epoch uint32, ok bool) {
	if r.Op != OpSettle || r.Dated {
		return r.Epoch, r.Op == OpSettle
	}
	g, ok := r.Grant.(*Grant)
	if !ok {
		return 0, false
	}
	return g.epoch, true
}

// Granting returns r without Dated, for a state that the hold is not in: an OpHold that makes a
// Grant, or an OpSettle that only counts what was not held.
func (r *Request) Granting() Request {
	granting := *r
	if granting.Dated = false; r.Dated && r.Op == OpSettle {
		granting.N, granting.Grant = max(0, r.N-r.Held), Nothing
	}
	return granting
}

// A Reading is a reading of a clock, as instants in nanoseconds.
type Reading struct {
	Now  Instant
	Lag  uint64    // by how much the clock is behind Now
	Wall time.Time // the time that the clock showed
	Own  bool      // whether the clock is the limiter's
}

// Now returns the present instant, in nanoseconds, and by how much the clock is behind
// it.
func (r *Request) Now() (now Instant, lag uint64) {
	if r.Fixed != nil {
		return r.Fixed.Now, r.Fixed.Lag
	}
	return r.Clock.Now()
}

// Fix returns the request with its time fixed to the present reading of the clock, for
// callers that need the time more than once.
func (r *Request) Fix() Request {
	fixed := *r
	if r.Fixed == nil {
		r.renew() // because a denial cannot be decided on twice
		now, lag := r.Clock.Now()
		fixed.Fixed = &Reading{Now: now, Lag: lag, Own: true}
	}
	return fixed
}

// renew calls Timeline.Renew, unless the reading is fixed.
func (r *Request) renew() bool { return r.Fixed == nil && r.Clock.Renew() }

// An Answer is the answer to a Request.
type Answer struct {
	Allowed    bool
	Limit      int
	Remaining  int
	RetryAfter time.Duration
	ResetAfter time.Duration
	Delay      time.Duration
	Part       int

	Wait      time.Duration // for OpReserve: until the events may happen; Never if they never may
	QueueFull bool          // for OpReserve: whether the queue had no room
	Full      bool          // whether the store had no room for a new key
	Due       Instant       // for OpReserve and OpHold: when the events may happen, in nanoseconds, by the limiter's clock
	Grant     any           // for OpReserve and OpHold: a *Grant; for OpCancel: an *Undone
	Granted   int           // for OpTakeUpTo: how many events
	Excess    bool          // for OpCharge and OpSettle: whether the state cannot hold as many events
	Most      uint64        // with Excess: how many it can hold in addition to those in it
	Epoch     uint32        // for a Dated OpHold; see Stamp
}

// Stamp says in which epoch of a part of a store the grant of an answer was made (see Made), and a
// number by which the store knows what it took back after that (see Mark).
func (a *Answer) Stamp(epoch, number uint32) {
	if g, ok := a.Grant.(*Grant); ok {
		g.epoch, g.number = epoch, number
	}
	a.Epoch = epoch
}
