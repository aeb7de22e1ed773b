package ratelimit

import (
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A SlidingWindow estimates the events of the last Window from the counts of
// Segments equal parts, and grants n if estimate + n ≤ Limit. The estimate is
// the current segment and the Segments−1 before it, plus the oldest one
// weighted by the share of it that the window still covers. It is compared
// exactly, not after rounding.
//
// With one segment this is the classic pair of windows: a quarter into the
// current one, with 9 events in the previous and 5 in this, the estimate is
// 9·0.75 + 5 = 11.75. It has no burst at a border as [FixedWindow] has, for
// little more memory, but takes the events of the oldest segment for evenly
// spread. So it bounds every span of Window·(1 − 1/Segments) to Limit exactly;
// a span of Window itself sees, at the very worst, 2·Limit − 1. Its state is
// two words with one segment, and half a word for each further one (a word if
// Limit is above 2³²−1); the time of a decision grows with Segments.
//
// The weighted pair is described in "How we built rate limiting capable of
// scaling to millions of domains", Cloudflare, 2017.
type SlidingWindow struct {
	Limit    int           // the most events in Window, estimated
	Window   time.Duration // the length of the window
	Segments int           // how many parts it is counted in; must divide Window; 0 means 1
}

func (a SlidingWindow) normalized() Algorithm {
	if a.Segments == 0 {
		a.Segments = 1
	}
	return a
}

func (a SlidingWindow) share(by divisor) Algorithm {
	a.Limit = by.events(a.Limit)
	return a
}

func (SlidingWindow) kind() uint64 { return 4 }

func (a SlidingWindow) fields(visit func(...any)) Algorithm {
	visit(&a.Limit, &a.Window, &a.Segments)
	return a
}

func (a SlidingWindow) compile(f kernel.Form) (kernel.Kernel, error) {
	switch {
	case a.Limit < 1:
		return nil, param.Invalid("SlidingWindow.Limit", a.Limit, "must be at least 1")
	case a.Window < 1:
		return nil, param.Invalid("SlidingWindow.Window", a.Window, "must be at least 1ns")
	case a.Segments < 0:
		return nil, param.Invalid("SlidingWindow.Segments", a.Segments, "must be at least 1, or 0 for 1")
	case a.Segments > kernel.MaxSlots:
		return nil, param.Invalid("SlidingWindow.Segments", a.Segments, fmt.Sprintf("must be at most %d, for each takes memory", kernel.MaxSlots))
	}
	segments := uint64(a.Segments)
	if uint64(a.Window)%segments != 0 {
		return nil, param.Invalid("SlidingWindow.Segments", a.Segments, fmt.Sprintf("must divide Window, %v, into whole nanoseconds", a.Window))
	}
	length, err := f.Ticks(a.Window/time.Duration(segments), "SlidingWindow.Window / Segments")
	if err == nil {
		err = f.Count(a.Limit, "SlidingWindow.Limit")
	}
	if err == nil {
		err = f.Slots(segments, "SlidingWindow.Segments")
	}
	if err != nil {
		return nil, err
	}
	return kernel.NewSlidingWindow(a.Limit, segments, length), nil
}
