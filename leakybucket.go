package ratelimit

import (
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A LeakyBucket fills by one with each event and leaks at Rate. n events are granted if they fit:
// level + n ≤ Capacity.
//
// The same bucket serves in three ways. As a meter, [Limiter.Allow] drops what does not fit. As a
// pacer, the caller of [Limiter.Take] holds each allowed event for [Decision].Delay, and events
// leave at Rate however unevenly they came. As a queue, [Limiter.Wait] does the holding, and fails
// at once with [ErrQueueFull] when Capacity events are in it or, in this process, wait for it.
//
// Any span of length t sees at most Capacity + t·Rate granted events. If events are held for their
// Delay and each request has n = 1, at most 1 + t·Rate leave in it. The state is as large as that
// of a [TokenBucket].
//
// The bucket as a queue was also described by J. Turner (see [TokenBucket]). nginx's limit_req uses
// it as a pacer.
type LeakyBucket struct {
	Rate     Rate // how fast it leaks
	Capacity int  // the most it holds; 0 means 1: one event per Rate.Per/Rate.Events
}

// String returns the limit in words, such as "10/s, queue of 5".
func (a LeakyBucket) String() string { return inWords(a) }

func (a LeakyBucket) normalized() Algorithm {
	if a.Capacity == 0 {
		a.Capacity = 1
	}
	return a
}

func (a LeakyBucket) share(by divisor) Algorithm {
	a.Rate, a.Capacity = by.rate(a.Rate), by.events(a.Capacity)
	return a
}

func (a LeakyBucket) spec() limit.Spec {
	return limit.Spec{
		Kind:    limit.LeakyBucket,
		Numbers: [4]uint64{uint64(a.Rate.Events), uint64(a.Rate.Per), uint64(a.Capacity)},
	}
}

func (LeakyBucket) of(s *limit.Spec) Algorithm {
	return LeakyBucket{Rate: Rate(s.Rate()), Capacity: s.Int(2)}
}
