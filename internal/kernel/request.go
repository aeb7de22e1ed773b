package kernel

import "time"

// An Op is what a Request asks of a key.
type Op uint8

// The operations, in the order of those that stores are told.
const (
	OpTake Op = iota
	OpPeek
	OpReserve
	OpCancel
	OpReturn
)

// A Request asks something of one key.
type Request struct {
	Op      Op
	N       int           // how many events; from 0 for OpTake, from 1 for OpReserve
	MaxWait time.Duration // the longest wait that OpReserve may answer
	Grant   any           // for OpCancel: a *Cancellation, or a *Grant
	Taken   Instant       // for OpReturn, in nanoseconds
	Clock   *Timeline
	Fixed   *Reading // what the clock showed, if it is not to be read any more
	AtOnce  bool     // whether OpReserve needs no Grant if there is no wait
}

// A Reading is what a clock showed, in nanoseconds.
type Reading struct {
	Now  Instant
	Lag  uint64    // by how much the clock is behind Now
	Wall time.Time // that the clock showed
	Own  bool      // whether the clock is the limiter's
}

// Now returns the present instant, in nanoseconds, and by how much the clock is behind it.
func (r *Request) Now() (now Instant, lag uint64) {
	if r.Fixed != nil {
		return r.Fixed.Now, r.Fixed.Lag
	}
	return r.Clock.Now()
}

// renew is the clock's, unless the time is fixed.
func (r *Request) renew() bool { return r.Fixed == nil && r.Clock.Renew() }

// An Answer is what came of a Request.
type Answer struct {
	Allowed    bool
	Limit      int
	Remaining  int
	RetryAfter time.Duration
	ResetAfter time.Duration
	Delay      time.Duration
	Part       int

	Wait      time.Duration // for OpReserve: until the events may happen; Never if that never comes
	QueueFull bool          // whether OpReserve found no room in a queue
	Full      bool          // whether the store had no room for a new key
	Due       Instant       // for OpReserve: when the events may happen, in nanoseconds, by the limiter's clock
	Grant     any           // for OpReserve a *Grant, and for OpCancel an *Undone
}
