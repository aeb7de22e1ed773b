package ratelimit

import (
	"math"
	"time"
)

// Never is the RetryAfter of a request that no wait will make possible.
const Never time.Duration = math.MaxInt64

// A Decision is the answer to one request. Its times are counted from the
// reading of the clock that the decision was made at.
type Decision struct {
	// Allowed says whether the events may happen now (for a [LeakyBucket],
	// after Delay, if an even flow is wanted).
	Allowed bool

	// Limit is the most events that a key which was never seen could be
	// granted at once.
	Limit int

	// Remaining is the most events that would be granted right now, after this
	// decision: AllowN(Remaining) succeeds, AllowN(Remaining+1) does not.
	Remaining int

	// RetryAfter is 0 if Allowed. Otherwise it is the wait until the first
	// instant at which the same request is granted if nobody else takes it,
	// true to the nanosecond (in a store with a coarser clock, to its tick).
	// It is Never if that instant never comes or is over 292 years away.
	RetryAfter time.Duration

	// ResetAfter is the time until nothing granted so far counts any more: the
	// key is then as good as new. It is at most 292 years.
	ResetAfter time.Duration

	// Delay is how long to hold the events that a [LeakyBucket] allowed, so
	// that they leave at the leak rate. It is 0 for every other algorithm.
	Delay time.Duration

	// Part is the index of the part of an [All] that decided: of those that
	// refuse, the one with the greatest RetryAfter; if none refuses, the one
	// with the least Remaining; the first of equals. It is 0 for every other
	// algorithm.
	Part int

	// Degraded says that the store failed and that the limiter's
	// [FailurePolicy] made this decision.
	Degraded bool
}
