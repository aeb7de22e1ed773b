package step

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// An Op is the kind of a Request.
type Op uint8

const (
	// OpTake spends N events if they are granted now.
	OpTake Op = iota

	// OpPeek returns what OpTake of one event would, but spends nothing.
	OpPeek

	// OpReserve spends N events at the earliest time at which they are granted, their turn, unless
	// the wait for them exceeds MaxWait. It opens Hold, which lasts from their turn on: for no
	// time, if it is a reservation that is settled before. The Answer says whether there is
	// anything to settle.
	OpReserve

	// OpHold is OpTake, and opens Hold: until it ends, the state remembers that the events are
	// held. The Answer says whether it did so, which it does not for 0 events.
	OpHold

	// OpCharge spends N events whether or not they are granted.
	OpCharge

	// OpSettle ends Hold, of whose events N have happened. The key is then as if N had been spent
	// in the first place, and those beyond the events held are spent as by OpCharge. If the hold is
	// not open, only N−Of events are spent, if that is positive. Those of an InFlight are over,
	// whatever N is.
	OpSettle

	// OpExtend makes Hold end by itself at another time, if it is open.
	OpExtend
)

// decides reports whether op spends events only if they are granted now.
func (op Op) decides() bool {
	return op == OpTake || op == OpPeek || op == OpHold
}

// settles reports whether op is about events that were granted: the present limit applies it.
func (op Op) settles() bool { return op == OpSettle || op == OpExtend }

// A Request is an operation on one key.
type Request struct {
	Op      Op
	N       int           // events; at least 0 for OpTake and OpSettle, at least 1 for OpReserve
	MaxWait time.Duration // for OpReserve: the longest acceptable wait
	// For OpReserve: whether the caller asks again when the turn comes. Then a turn that is further
	// away than Near is denied.
	Again bool
	// With Again: 0 or, if the time is fixed to one that has passed, how long ago that was.
	Near  time.Duration
	Clock *timeline.Timeline
	Fixed *Reading // if not nil, used instead of reading Clock

	Hold Handle // for OpHold, OpReserve: the hold to open; for OpSettle, OpExtend: an open one
	Of   int    // for OpSettle: the events of the hold, if it is not open any more
	// Whether it is of a Wait: an OpReserve whose turn has not come is denied while holds are open,
	// since one that is settled may make it earlier.
	Yields bool

	// Of OpHold: how long the events are delayed by other keys that have granted them, at least:
	// the hold lasts from then on.
	Delay time.Duration
	// Of OpTake and OpHold: whether another key refuses it: nothing is spent, and Allowed is
	// whether this key would have granted it.
	Refused bool
	Notes   bool // whether that is a denial that a log with CountDenied counts

	// Of OpTake: whether only Allowed is asked for, so that RetryAfter need not count on what holds
	// give back.
	Brief bool

	// Of OpTake of at least one event: whether it takes as many of N events as remain. If none
	// remain, it is denied as one of a single event is.
	UpTo bool
}

// A Handle is an open hold of a key. The zero Handle is none.
type Handle struct {
	ID uint64 // chosen by the caller, below 2⁵³; even if For is 0, and else odd
	// Until it ends by itself: for OpHold and OpExtend from now on, for OpReserve from its turn.
	// For OpSettle at most, from now on, or 0 if that is not known; it changes nothing.
	For  time.Duration
	Back bool // whether its events are given back then, and do not count as held
}

// Adds returns the most events that r adds to a state.
func (r *Request) Adds() int {
	if r.Op == OpSettle {
		return max(0, r.N-r.Of)
	}
	return r.N
}

// Least returns the fewest events that r is granted if it is granted: a denial of r is one of so
// many events.
func (r *Request) Least() int {
	if r.UpTo || r.Op == OpPeek {
		return 1
	}
	return r.N
}

// Opens reports whether r opens a hold, if its events are granted.
func (r *Request) Opens() bool {
	return r.Op == OpHold || r.Op == OpReserve && r.Hold.ID != 0
}

// A Reading is a reading of a clock, as instants in nanoseconds.
type Reading struct {
	Now  kernel.Instant
	Lag  uint64    // by how much the clock is behind Now
	Wall time.Time // the time that the clock showed
	Own  bool      // whether the clock is the limiter's
}

// Now returns the present instant, in nanoseconds, and by how much the clock is behind
// it.
func (r *Request) Now() (now kernel.Instant, lag uint64) {
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

// Read is Fix, with the time that the clock shows, which it returns as well.
func (r *Request) Read() (fixed Request, now time.Time) {
	fixed = r.Fix()
	if at := fixed.Fixed; r.Fixed == nil {
		at.Wall = r.Clock.Wall(at.Now, at.Lag)
	}
	at := fixed.Fixed.Now
	return fixed, time.Unix(int64(at/1e9), int64(at%1e9))
}

// At returns the request with its time fixed to t, for stores with a clock of their own.
func (r Request) At(t time.Time) Request {
	r.Fixed = &Reading{Now: timeline.InstantOf(t), Wall: t}
	return r
}

// AsOf returns the request with its time fixed as that of other is, for several requests at one
// time.
func (r Request) AsOf(other *Request) Request {
	r.Fixed = other.Fixed
	return r
}

// renew calls Timeline.Renew, unless the reading is fixed.
func (r *Request) renew() bool { return r.Fixed == nil && r.Clock.Renew() }

// A Decision is the part of an Answer that users see, in the same layout.
type Decision struct {
	Allowed    bool
	Limit      int
	Remaining  int
	RetryAfter time.Duration
	ResetAfter time.Duration
	Delay      time.Duration
	Part       int
	Degraded   bool // not set here
	StandIn    bool // likewise
}

// An Answer is the answer to a Request.
type Answer struct {
	Decision

	Granted int // for UpTo: how many events are granted

	Wait      time.Duration // for OpReserve: until the events may happen; Never if they never may
	QueueFull bool          // for OpReserve: whether the queue had no room
	Full      bool          // whether the store had no room for a new key
	// For OpCharge and OpSettle: whether the state cannot hold as many events.
	Excess bool
	Most   uint64 // with Excess: how many it can hold in addition to those in it
	// For OpReserve and OpHold: when the events may happen, in nanoseconds, by the limiter's clock.
	Due kernel.Instant
	// Of a state that is not only the asked limit's: until the store may forget it; else 0.
	Idle  time.Duration
	Held  bool // whether the hold of the request was opened, or found open
	Ended int  // how many holds ended by themselves
	// Whether the store has answered from what it knew, without asking its server.
	Unasked bool
	// Until the first of the holds that are open ends by itself; 0 if none is open, and for OpPeek.
	Ends time.Duration
}

// IdleAfter returns the time after which the state is equal to none, so that a store may delete it.
func (a *Answer) IdleAfter() time.Duration { return max(a.ResetAfter, a.Idle) }
