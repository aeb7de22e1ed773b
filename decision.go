package ratelimit

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// Never is the RetryAfter of a request that is never granted, however long the caller waits.
const Never time.Duration = math.MaxInt64

// A Decision is the answer to one request. Its durations start at the reading of the clock by which
// the decision was made.
type Decision struct {
	// Allowed says whether the events may happen now, or, with a [LeakyBucket] that smooths a flow,
	// after Delay.
	Allowed bool

	// Limit is the most events that an unused key is granted at once.
	Limit int

	// Remaining is the most events that would be granted right now, after this decision:
	// AllowN(Remaining) succeeds, AllowN(Remaining+1) does not.
	Remaining int

	// RetryAfter is 0 if Allowed. Otherwise it is the wait until the same request is granted,
	// provided that nobody else uses the key. It is exact to the nanosecond, or to the tick of a
	// store with a coarser clock. It is Never if that time never comes or is more than 292 years
	// away.
	RetryAfter time.Duration

	// ResetAfter is the time until nothing granted so far counts any more. The key is then like an
	// unused one. It is at most 292 years.
	ResetAfter time.Duration

	// Delay is how long to hold the events that a [LeakyBucket] allowed, so that they leave at the
	// leak rate. It is 0 for all other algorithms.
	Delay time.Duration

	// Part is the index of the part of an [All] that decided: if parts refuse, the one of them with
	// the greatest RetryAfter, otherwise the one with the least Remaining; among equals, the first.
	// It is 0 for all other algorithms. Of [TakeAll] and [HoldAll], it is the index of the Bound
	// that decided.
	Part int

	// Degraded says that this decision is not by the key's own limit and state: the store failed,
	// so that the limiter's [FailurePolicy] made it, or the lookup of [WithLimits] failed, so that
	// the limit of [New] decided.
	Degraded bool

	// StandIn says that a limit made a Degraded decision in place of that of the key: the one of a
	// [Fallback], or that of [New]. See [Decision.Checked].
	StandIn bool
}

// Checked reports whether a limit was checked. If it was, a denial means that the client has
// exceeded one, even if the decision is Degraded. Otherwise [FailOpen] or [FailClosed] has decided,
// or nobody could say more than FailClosed does. Of a [TakeAll] that is granted, it reports whether
// that of each key was checked, and of one that is refused, that of Part.
func (d Decision) Checked() bool { return !d.Degraded || d.StandIn }

// set sets d to a decision. It is not one assignment, because the compiler would copy that in
// larger pieces than it was written in, for which a core must wait until all of it is in its cache.
func (d *Decision) set(a *step.Decision) {
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
