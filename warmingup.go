package ratelimit

import (
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A WarmingUp limiter grants events at Rate when it is warm, and more slowly when it is cold: an
// event then takes ColdFactor times as long. That time decreases while the limiter is used at full
// speed, for Warmup, and increases again when it is idle. Use it to protect a service that needs to
// warm up itself: one that fills caches or pools, or has just started. For a limit that rises with
// the calendar, see the example Ramp of [WithLimits].
//
// A request is granted if the next free time has come, whatever n is (up to Limit). The next
// request pays for it: it waits for the time that these n events take. Limit is the number of
// events that warming up takes, at least 1. Remaining is Limit or 0.
//
// This is Guava's SmoothWarmingUp RateLimiter (com.google.common.util.concurrent, which has a
// drawing of the integral). As there, the arithmetic is in floating point; times are rounded to the
// nearest nanosecond. The state is two words.
type WarmingUp struct {
	Rate   Rate          // the rate once warm
	Warmup time.Duration // how long warming up takes at full speed
	// How many times as long an event takes when cold; at least 1, 0 means 3.
	ColdFactor float64
}

// String returns the limit in words, such as "100/s, warm-up 3s".
func (a WarmingUp) String() string { return inWords(a) }

func (a WarmingUp) normalized() Algorithm {
	if a.ColdFactor == 0 {
		a.ColdFactor = limit.UsualColdFactor
	}
	return a
}

func (a WarmingUp) share(by divisor) Algorithm {
	a.Rate = by.rate(a.Rate)
	return a
}

func (a WarmingUp) spec() limit.Spec {
	return limit.Spec{
		Kind: limit.WarmingUp,
		Numbers: [4]uint64{
			uint64(a.Rate.Events),
			uint64(a.Rate.Per),
			uint64(a.Warmup),
			math.Float64bits(a.ColdFactor),
		},
	}
}

func (WarmingUp) of(s *limit.Spec) Algorithm {
	return WarmingUp{Rate: Rate(s.Rate()), Warmup: s.Duration(2), ColdFactor: s.Float(3)}
}
