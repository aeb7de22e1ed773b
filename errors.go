package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// This file has the errors that callers match.

// ErrInvalid says that a parameter, an option or an argument cannot be used, such as a nil context
// or a negative number of events. The message names it, its value, and the values it may have.
var ErrInvalid = param.ErrInvalid

// Errors that the methods of a [Limiter] return. A denial is not among them: it is a [Decision]
// that is not Allowed.
var (
	// ErrNever says that the request can never be granted: n exceeds the limit, or its turn would
	// come later than a clock can represent.
	ErrNever = errors.New("ratelimit: can never be granted")

	// ErrQueueFull says that a LeakyBucket has no room for the events that a Wait would have
	// queued, or that the line is as long as [WithMaxWaiters] says.
	ErrQueueFull = errors.New("ratelimit: queue full")

	// ErrFull says that a [MemoryStore] with MaxKeys has no room: with RefuseNew, for the key of a
	// Wait, a Hold that waits, a Charge or a Settle (Allow, Take, Hold and Reserve deny instead).
	ErrFull = errors.New("ratelimit: the store is full")

	// ErrEnded says that a [Reservation] was settled or cancelled before, or that a hold cannot be
	// extended because it is not open any more: it has ended by itself, or its key was evicted or
	// reset, or has got another kind of limit.
	ErrEnded = errors.New("ratelimit: the hold has ended")

	// ErrDebt says that the state of a key cannot hold as many events beyond the limit as Charge or
	// Settle would have counted. None of them was counted.
	ErrDebt = errors.New("ratelimit: the debt is too great")
)

// ErrState says that the state of a key that a store of bytes returned cannot be read: it is
// damaged, or was written by a later version of this package or by another program. The
// [FailurePolicy] decides, as if the store had failed. The error is reported once, because the key
// then starts afresh.
var ErrState = limit.ErrState

// Errors that other files of this package compare with, or that carry no details.
var (
	// errNoContext is what a method of a Limiter returns if its context is nil.
	errNoContext = param.Invalid("ctx", nil, "must not be nil; context.Background() is one")

	// errNoRoom is what a Wait, a Charge or a Settle returns if a full store has no room for the
	// key.
	errNoRoom = fmt.Errorf("%w: no room for a new key", ErrFull)

	// errSettled is what a second Settle returns.
	errSettled = fmt.Errorf("%w: it was settled or cancelled before", ErrEnded)
)

// A TurnError says that the turn of a [Limiter.Wait] comes after its context ends. It matches
// [context.DeadlineExceeded]. Its text has rounded durations, the fields have the exact ones.
type TurnError struct {
	N int // the number of events requested
	// The time until the turn of the events. Behind a line in a store that is not in memory, it is
	// the time until the last turn that is known.
	Wait time.Duration
	Left time.Duration // the time until the context's deadline
}

func (e *TurnError) Error() string {
	return fmt.Sprintf(
		"ratelimit: %s would have to wait %v, and the context ends in %v: %v",
		eventsInWords(e.N),
		roundForReaders(e.Wait),
		roundForReaders(e.Left),
		context.DeadlineExceeded,
	)
}

// roundForReaders rounds d to three digits or less: 998.97ms becomes 999ms.
func roundForReaders(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// Unwrap returns [context.DeadlineExceeded].
func (e *TurnError) Unwrap() error { return context.DeadlineExceeded }

// Timeout returns true, as for the timeouts of package net.
func (*TurnError) Timeout() bool { return true }

// Temporary returns true: a later call may get its turn in time.
func (*TurnError) Temporary() bool { return true }
