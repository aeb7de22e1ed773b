package ratelimit

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A SlidingLog remembers the instant of every event, and grants n if no span
// of length Window then holds more than Limit: the events after t − Window and
// not after t, and n, are at most Limit. An event exactly one Window old no
// longer counts.
//
// It is the only one that bounds every span of length Window exactly, wherever
// it begins. The price is memory: three words for a key, and one for each event
// in the window (two for several at once), at most about Limit of them. A
// decision takes time for each event that has left the window since the last
// grant, for n if it is denied, and for each reservation that is pending.
//
// With CountDenied, refused events enter the log too, so that a caller who
// does not back off is not let in again until it does. That is the access
// list which many servlet filters keep.
type SlidingLog struct {
	Limit       int           // the most events in any span of length Window
	Window      time.Duration // the length of that span
	CountDenied bool          // whether refused events are logged too
}

func (a SlidingLog) normalized() Algorithm { return a }

func (a SlidingLog) share(by divisor) Algorithm {
	a.Limit = by.events(a.Limit)
	return a
}

func (SlidingLog) kind() uint64 { return 5 }

func (a SlidingLog) fields(visit func(...any)) Algorithm {
	visit(&a.Limit, &a.Window, &a.CountDenied)
	return a
}

func (a SlidingLog) compile(f kernel.Form) (kernel.Kernel, error) {
	switch {
	case a.Limit < 1:
		return nil, param.Invalid("SlidingLog.Limit", a.Limit, "must be at least 1")
	case a.Window < 1:
		return nil, param.Invalid("SlidingLog.Window", a.Window, "must be at least 1ns")
	}
	window, err := f.Ticks(a.Window, "SlidingLog.Window")
	if err == nil {
		err = f.Count(a.Limit, "SlidingLog.Limit")
	}
	return kernel.NewSlidingLog(a.Limit, window, a.CountDenied, f), err
}
