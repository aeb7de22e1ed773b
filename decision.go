package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// Never is the RetryAfter of a request that is never granted, however long the caller waits.
const Never time.Duration = math.MaxInt64

// Where the numbers come from: internal/kernel/step.go computes them. RetryAfter is the instant that the
// algorithm's kernel answers to "when would n events be granted?", less now. It is another one where no kernel can
// know that instant: if the store fails (degraded in take.go), if it is full and the key is new (refuse in
// internal/memory/full.go), and if others stand in line (overtakes in reserve.go).

// A Decision is the answer to one request. Its durations start at the reading of the clock by which the decision
// was made.
type Decision struct {
	// Allowed says whether the events may happen now, or, with a [LeakyBucket] that smooths a flow, after Delay.
	Allowed bool

	// Limit is the most events that an unused key is granted at once.
	Limit int

	// Remaining is the most events that would be granted right now, after this decision: AllowN(Remaining)
	// succeeds, AllowN(Remaining+1) does not.
	Remaining int

	// RetryAfter is 0 if Allowed. Otherwise it is the wait until the same request is granted, provided that nobody
	// else uses the key. It is exact to the nanosecond, or to the tick of a store with a coarser clock. It is
	// Never if that time never comes or is more than 292 years away.
	RetryAfter time.Duration

	// ResetAfter is the time until nothing granted so far counts any more. The key is then like an unused one. It
	// is at most 292 years.
	ResetAfter time.Duration

	// Delay is how long to hold the events that a [LeakyBucket] allowed, so that they leave at the leak rate. It
	// is 0 for all other algorithms.
	Delay time.Duration

	// Part is the index of the part of an [All] that decided: if parts refuse, the one of them with the greatest
	// RetryAfter, otherwise the one with the least Remaining; among equals, the first. It is 0 for all other
	// algorithms. Of [TakeAll] and [HoldAll], it is the index of the Bound that decided.
	Part int

	// Degraded says that this decision is not by the key's own limit and state: the store failed, so that the
	// limiter's [FailurePolicy] made it, or the lookup of [WithLimits] failed, so that the limit of [New] decided.
	Degraded bool

	// StandIn says that a limit made a Degraded decision in place of that of the key: the one of a [Fallback], or that of
	// [New]. See [Decision.Checked].
	StandIn bool
}

// Checked reports whether a limit was checked. If it was, a denial means that the client has exceeded one, even if the
// decision is Degraded. Otherwise [FailOpen] or [FailClosed] has decided, or nobody could say more than FailClosed does.
// Of a [TakeAll] that is granted, it reports whether that of each key was checked, and of one that is refused, that of
// Part.
func (d Decision) Checked() bool { return !d.Degraded || d.StandIn }

// set sets d to a decision. It is not one assignment, because the compiler would copy that in larger pieces than
// it was written in, for which a core must wait until all of it is in its cache.
func (d *Decision) set(a *kernel.Decision) {
	d.Allowed = a.Allowed
	d.Limit = a.Limit
	d.Remaining = a.Remaining
	d.RetryAfter = a.RetryAfter
	d.ResetAfter = a.ResetAfter
	d.Delay = a.Delay
	d.Part = a.Part
	d.Degraded = false
	d.StandIn = false
}

// String returns the fields of d, as fmt's %+v writes those of a struct, and "never" for [Never].
func (d Decision) String() string {
	type fields Decision
	return strings.ReplaceAll(fmt.Sprintf("%+v", fields(d)), Never.String(), "never")
}

// ErrInvalid says that a parameter, an option or an argument cannot be used, such as a nil context or a negative
// number of events. The message names it, its value, and the values it may have.
var ErrInvalid = param.ErrInvalid

// Errors that the methods of a [Limiter] return. A denial is not among them: it is a [Decision] that is not
// Allowed.
var (
	// ErrNever says that the request can never be granted: n exceeds the limit, or its turn would come later than
	// a clock can represent.
	ErrNever = errors.New("ratelimit: can never be granted")

	// ErrQueueFull says that a LeakyBucket has no room for the events that a Wait would have queued, or that the
	// line is as long as [WithMaxWaiters] says.
	ErrQueueFull = errors.New("ratelimit: queue full")

	// ErrFull says that a [MemoryStore] with MaxKeys has no room: with RefuseNew, for the key of a Wait, a Hold
	// that waits, a Charge or a Settle (Allow, Take, Hold and Reserve deny instead).
	ErrFull = errors.New("ratelimit: the store is full")

	// ErrEnded says that a [Reservation] was settled or cancelled before, or that a hold cannot be extended
	// because it is not open any more: it has ended by itself, or its key was evicted or reset, or has got another
	// kind of limit.
	ErrEnded = errors.New("ratelimit: the hold has ended")

	// ErrDebt says that the state of a key cannot hold as many events beyond the limit as Charge or Settle would
	// have counted. None of them was counted.
	ErrDebt = errors.New("ratelimit: the debt is too great")
)

// ErrState says that the state of a key that a store of bytes returned cannot be read: it is damaged, or was
// written by a later version of this package or by another program. The [FailurePolicy] decides, as if the store
// had failed. The error is reported once, because the key then starts afresh.
var ErrState = limit.ErrState

// Errors that other files of this package compare with, or that carry no details.
var (
	// errNoContext is what a method of a Limiter returns if its context is nil.
	errNoContext = param.Invalid("ctx", nil, "must not be nil; context.Background() is one")

	// errSettled is what a second Settle returns.
	errSettled = fmt.Errorf("%w: it was settled or cancelled before", ErrEnded)
)

// A TurnError says that the turn of a [Limiter.Wait] comes after its context ends. It matches
// [context.DeadlineExceeded].
type TurnError struct {
	N    int           // the number of events requested
	Wait time.Duration // the time until their turn or, behind a line in a store that is not in memory, until the last one that is known
	Left time.Duration // the time until the context's deadline
}

func (e *TurnError) Error() string {
	return fmt.Sprintf("ratelimit: the turn of %d comes in %v, the context ends in %v: %v", e.N, e.Wait, e.Left, context.DeadlineExceeded)
}

// Unwrap returns [context.DeadlineExceeded].
func (e *TurnError) Unwrap() error { return context.DeadlineExceeded }

// Timeout returns true, as for the timeouts of package net.
func (*TurnError) Timeout() bool { return true }

// Temporary returns true: a later call may get its turn in time.
func (*TurnError) Temporary() bool { return true }
