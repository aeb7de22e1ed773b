package kernel

import "time"

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
	Taken   Instant       // for OpReturn: when the events were granted, in nanoseconds
	Clock   *Timeline
	Fixed   *Reading // if not nil, used instead of reading Clock
	AtOnce  bool     // for OpReserve: whether no Grant is needed if there is no wait
	Lost    bool     // for OpSettle: whether the key was reset since the grant
	Doubt   bool     // for OpSettle: whether it may have been evicted or reset since
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

// Made returns the epoch in which the grant of an OpSettle was made, by Stamp. ok is false if there is
// none.
func (r *Request) Made() (epoch uint32, ok bool) {
	g, ok := r.Grant.(*Grant)
	if !ok || r.Op != OpSettle {
		return 0, false
	}
	return g.epoch, true
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
	Idle      time.Duration // of a state of several limits: until all of them are idle; else 0
}

// Stamp says in which epoch of a part of a store the grant of an answer was made; see Made.
func (a *Answer) Stamp(epoch uint32) {
	if g, ok := a.Grant.(*Grant); ok {
		g.epoch = epoch
	}
}
