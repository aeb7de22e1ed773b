package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A transportError is an error of Transport. It has the methods of net/http's errors, which
// look for them in the error itself, and not in those that it wraps.
type transportError struct{ error }

func (e transportError) Unwrap() error { return e.error }

// Timeout reports whether the error is that of a deadline.
func (e transportError) Timeout() bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](e.error)
	return ok && t.Timeout()
}

// Temporary reports whether a later request may succeed.
func (e transportError) Temporary() bool {
	t, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](e.error)
	return ok && t.Temporary() || errors.Is(e.error, ratelimit.ErrQueueFull) ||
		errors.Is(e.error, ratelimit.ErrFull)
}

// tooLong is the error of a wait that would exceed the deadline. Its value is the
// length of that wait. net/http and its callers see a timeout.
type tooLong time.Duration

func (e tooLong) Error() string {
	return fmt.Sprintf(
		"client: by what the server has said, the next request may go in %v, "+
			"which exceeds the deadline: %v",
		time.Duration(e),
		context.DeadlineExceeded,
	)
}

func (tooLong) Unwrap() error   { return context.DeadlineExceeded }
func (tooLong) Timeout() bool   { return true }
func (tooLong) Temporary() bool { return true }
