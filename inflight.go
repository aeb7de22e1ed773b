package ratelimit

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// An InFlight bounds how many requests of a key run at once. It grants n if the events that have
// been granted, have not been released, and are younger than Timeout, plus n, are at most Limit.
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 2, Timeout: time.Minute}))
//
// [Limiter.Hold] returns a [Reservation], whose methods Release, Cancel and Settle release all its
// events, whatever number Settle is told; so do those of a Reservation of Reserve. Events that are
// not released, because their holder has crashed, stop counting after Timeout: choose one that is
// longer than any request takes, and shorter than fifty years. With a longer one, RetryAfter and
// ResetAfter do not tell when shorter holds end. The events of Allow, Take, Wait and Charge cannot
// be released. What a store grants to a Hold, Reserve or Wait without an answer in time, or after
// its context has ended, is released once the store answers: see [docs/redis.md].
//
// RetryAfter is the time until enough events time out. They may be released before, so a Wait does
// not fail at once if ctx ends before that time. A blocked Wait asks the store again when events
// are released through the same limiter, or through another one of the same name and [MemoryStore];
// when a request for the key is made; and after RetryAfter. It does not notice at once that another
// process has released events, or that its limit was raised ([WithLimits]). If nobody stands in
// line, Reserve reserves the time at which earlier events time out, even if they are released
// before, and until then the key grants nothing else: use Hold with [Waiting] instead.
//
// In an [All], the other parts keep the events that are released: InFlight{Limit: 5} and
// FixedWindow{Limit: 100, Window: time.Minute} together allow 5 requests at once and 100 a minute.
// A Wait then waits for room in a [LeakyBucket], too, and then for its Delay. Each time that a
// blocked Wait asks the store, a [SlidingLog] with CountDenied counts a denial.
//
// Memory and time are those of a [SlidingLog], whose log has the events that have not been
// released. A Hold and a release take time in proportion to their number.
//
// [docs/redis.md]:
// https://github.com/ratelimit-go/ratelimit/blob/main/docs/redis.md#holds-and-reservations
type InFlight struct {
	Limit   int           // the most events at once
	Timeout time.Duration // after which events are released if their holder has not done so
}

// String returns the limit in words, such as "5 at once, each for at most 1m".
func (a InFlight) String() string { return inWords(a) }

func (a InFlight) normalized() Algorithm { return a }

func (a InFlight) share(by divisor) Algorithm {
	a.Limit = by.events(a.Limit)
	return a
}

func (a InFlight) spec() limit.Spec {
	return limit.Spec{Kind: limit.InFlight, Numbers: [4]uint64{uint64(a.Limit), uint64(a.Timeout)}}
}

func (InFlight) of(s *limit.Spec) Algorithm {
	return InFlight{Limit: s.Int(0), Timeout: s.Duration(1)}
}
