package ratelimit

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A SlidingLog stores the time of every event, and grants n at time t if no span of length Window
// then holds more than Limit events: that is, if the events in (t − Window, t], plus n, are at most
// Limit. An event exactly one Window old no longer counts.
//
// It is the only algorithm that bounds every span of length Window exactly, wherever the span
// begins. It needs more memory in return: three words for a key, and one for each event in the
// window (two for several at once). A decision on a known key allocates memory only if its log must
// grow: in a steady flow, never. The time of a decision grows with the number of events that have
// left the window since the last grant, and with n if it is a denial. Stores of bytes read the
// whole state, and write it on each grant.
//
// With CountDenied, refused events enter the log as well, so that a caller is not admitted again
// until it backs off. Many servlet filters keep such an access list. A request for more events than
// Limit can never be granted, and enters no log. A log counts at most 2⁶² events (in Redis, 2⁵¹).
// With a Limit above a sixteenth of that, refused events may leave room for only some of the events
// that are reserved for later.
type SlidingLog struct {
	Limit       int           // the most events in any span of length Window
	Window      time.Duration // the length of that span
	CountDenied bool          // whether refused events are logged too
}

// String returns the limit in words, such as "100 in any minute".
func (a SlidingLog) String() string { return inWords(a) }

func (a SlidingLog) normalized() Algorithm { return a }

func (a SlidingLog) share(by divisor) Algorithm {
	a.Limit = by.events(a.Limit)
	return a
}

func (a SlidingLog) spec() limit.Spec {
	var counted uint64
	if a.CountDenied {
		counted = 1
	}
	return limit.Spec{
		Kind:    limit.SlidingLog,
		Numbers: [4]uint64{uint64(a.Limit), uint64(a.Window), counted},
	}
}

func (SlidingLog) of(s *limit.Spec) Algorithm {
	return SlidingLog{Limit: s.Int(0), Window: s.Duration(1), CountDenied: s.Numbers[2] == 1}
}
