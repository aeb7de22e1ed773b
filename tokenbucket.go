package ratelimit

import (
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A TokenBucket holds up to Burst tokens, starts full, and gains tokens at Rate. Each event takes a
// token. n events are granted if there are at least n tokens.
//
// An idle key may do Burst events at once, and then Rate. Any span of length t sees at most Burst +
// t·Rate events. Its state is one word; two with RefillInterval or in an All; and three if the time
// per event is not a multiple of a half or a third of a nanosecond (as for 7 a second), or if an
// empty bucket takes decades to fill.
//
// The bucket was described as a meter by J. Turner, "New directions in communications (or which way
// to the information age?)", IEEE Communications Magazine 24(10), 1986.
type TokenBucket struct {
	Rate   Rate   // how fast tokens arrive
	Burst  int    // the most tokens it holds; 0 means Rate.Events
	Refill Refill // whether tokens arrive evenly or once per Rate.Per
}

// Refill says how the tokens of a [TokenBucket] arrive.
type Refill int

const (
	// RefillContinuous adds tokens, and fractions of tokens, evenly: at 60 a minute, one each
	// second.
	RefillContinuous Refill = iota

	// RefillInterval adds Rate.Events tokens at a time, at whole multiples of Rate.Per after the
	// event that found the bucket full: at 60 a minute, 60 tokens one minute after that event, and
	// so on. A span of length t sees at most Burst + ⌈t/Per⌉·Events events.
	RefillInterval
)

// String returns the limit in words, such as "10/s, burst 20", or "10 every second, burst 20" with
// RefillInterval.
func (a TokenBucket) String() string { return inWords(a) }

func (a TokenBucket) normalized() Algorithm {
	if a.Burst == 0 {
		a.Burst = a.Rate.Events
	}
	return a
}

func (a TokenBucket) share(by divisor) Algorithm {
	a.Burst = by.events(a.Burst)
	if a.Refill == RefillInterval {
		a.Rate.Events = by.events(a.Rate.Events) // refills come as often
		return a
	}
	a.Rate = by.rate(a.Rate)
	return a
}

func (a TokenBucket) spec() limit.Spec {
	return limit.Spec{
		Kind: limit.TokenBucket,
		Numbers: [4]uint64{
			uint64(a.Rate.Events),
			uint64(a.Rate.Per),
			uint64(a.Burst),
			uint64(a.Refill),
		},
	}
}

func (TokenBucket) of(s *limit.Spec) Algorithm {
	return TokenBucket{Rate: Rate(s.Rate()), Burst: s.Int(2), Refill: Refill(s.Int(3))}
}
