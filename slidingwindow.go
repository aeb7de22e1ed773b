package ratelimit

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A SlidingWindow divides Window into Segments equal parts, counts the events in each, estimates
// from the counts how many events the last Window saw, and grants n if estimate + n ≤ Limit. The
// last Window overlaps Segments+1 segments: the estimate counts the newest Segments in full, and
// the oldest in proportion to its overlap. The estimate is not rounded.
//
// With one segment this is the classic pair of windows: a quarter into the current window, with 9
// events in the previous window and 5 in this one, the estimate is 9·0.75 + 5 = 11.75. Unlike
// [FixedWindow], it has no burst at a border. But it assumes that the events of the oldest segment
// are evenly spread. So every span of Window·(1 − 1/Segments) sees at most Limit events; a span of
// Window sees, in the worst case, 2·Limit − 1. And an event counts until Segments whole segments
// have passed after its own, so that RetryAfter may be up to Window + Window/Segments, plus the
// time for which reservations or a debt delay it. With one segment, the state is one word for most
// limits, and two otherwise; with more, two words, and half a word for each of Segments + 1 counts
// (a word if Limit is above 2³²−1).
//
// The weighted pair is described in "How we built rate limiting capable of scaling to millions of
// domains", Cloudflare, 2017.
type SlidingWindow struct {
	Limit    int           // the most events in Window, estimated
	Window   time.Duration // the length of the window
	Segments int           // how many parts it is counted in; must divide Window; 0 means 1
}

// String returns the limit in words, such as "100 in any minute, estimated from 6 segments".
func (a SlidingWindow) String() string { return inWords(a) }

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

func (a SlidingWindow) spec() limit.Spec {
	return limit.Spec{
		Kind:    limit.SlidingWindow,
		Numbers: [4]uint64{uint64(a.Limit), uint64(a.Window), uint64(a.Segments)},
	}
}

func (SlidingWindow) of(s *limit.Spec) Algorithm {
	return SlidingWindow{Limit: s.Int(0), Window: s.Duration(1), Segments: s.Int(2)}
}
