package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors that [New] and [ParseRate] return.
var (
	// ErrInvalid says that a parameter or an option cannot be used. The
	// message names the field, its value and what it should be.
	ErrInvalid = errors.New("ratelimit: invalid parameter")
)

// Errors that the methods of a [Limiter] return. A denial is not among them:
// it is a [Decision] that is not Allowed.
var (
	// ErrNever says that the request can never be granted: n exceeds the limit,
	// or its turn would come later than a clock can tell.
	ErrNever = errors.New("ratelimit: can never be granted")

	// ErrNegative says that a request asked for fewer than zero events.
	ErrNegative = errors.New("ratelimit: negative number of events")

	// ErrQueueFull says that a LeakyBucket has no room for the events that
	// Wait or Reserve would have queued.
	ErrQueueFull = errors.New("ratelimit: queue full")
)

// ErrState says that a key's state, as a store of bytes returned it, cannot be
// read: it was damaged, or stored by a later version of this package or by
// something else. The [FailurePolicy] has decided, as for a store that fails. It
// is reported once: the key has begun afresh.
var ErrState = errors.New("ratelimit: unreadable state")

// A TurnError says that the turn of a [Limiter.Wait] comes after its context
// ends. It matches [context.DeadlineExceeded].
type TurnError struct {
	N    int           // how many events were asked for
	Wait time.Duration // how long it is until their turn
	Left time.Duration // how long the context has left
}

func (e *TurnError) Error() string {
	return fmt.Sprintf("ratelimit: the turn of %d comes in %v, the context ends in %v: %v", e.N, e.Wait, e.Left, context.DeadlineExceeded)
}

// Unwrap returns [context.DeadlineExceeded].
func (e *TurnError) Unwrap() error { return context.DeadlineExceeded }

// Timeout is true, so that callers that ask as package net does see a timeout.
func (*TurnError) Timeout() bool { return true }

// Temporary is true: the turn may come in time if it is asked for later.
func (*TurnError) Temporary() bool { return true }

// A paramError is an ErrInvalid with its particulars.
type paramError struct {
	field string
	value any
	want  string
}

// invalid returns the error for a parameter that cannot be used.
func invalid(field string, value any, want string) error {
	return &paramError{field, value, want}
}

func (e *paramError) Error() string {
	return fmt.Sprintf("ratelimit: %s is %v: it %s", e.field, e.value, e.want)
}

func (e *paramError) Is(target error) bool { return target == ErrInvalid }

// within returns err with its field named as a part of another.
func within(field string, err error) error {
	if e, ok := errors.AsType[*paramError](err); ok {
		return &paramError{field + "." + e.field, e.value, e.want}
	}
	return err
}
