package ratelimit

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A WarmingUp limiter grants events at Rate when it is warm, and more slowly when it
// is cold: an event then takes ColdFactor times as long. That time decreases while
// the limiter is used at full speed, for Warmup, and increases again when it is idle.
// Use it to protect a service that needs to warm up itself: one that fills caches or
// pools, or has just started. It forgets its warmth when it is idle, so it is not for a limit
// that rises with the calendar, as for the mail that a new address sends: the example Ramp of
// [WithLimits] shows that.
//
// A request is granted if the next free time has come, whatever n is (up to Limit).
// The next request pays for it: it waits for the time that these n events take. Limit
// is the number of events that warming up takes, at least 1. Remaining is Limit or 0.
//
// This is Guava's SmoothWarmingUp RateLimiter (com.google.common.util.concurrent,
// which has a drawing of the integral). As in Guava, the arithmetic is in floating
// point; times are rounded to the nearest nanosecond. The state is two words.
type WarmingUp struct {
	Rate       Rate          // the rate once warm
	Warmup     time.Duration // how long warming up takes at full speed
	ColdFactor float64       // how many times as long an event takes when cold; at least 1, 0 means 3
}

// portableWarmup bounds Warmup in the portable encoding.
const portableWarmup = 30 * day

func (a WarmingUp) normalized() Algorithm {
	if a.ColdFactor == 0 {
		a.ColdFactor = 3
	}
	return a
}

func (a WarmingUp) share(by divisor) Algorithm {
	a.Rate = by.rate(a.Rate)
	return a
}

func (WarmingUp) kind() uint64 { return 7 }

func (a WarmingUp) fields(visit func(...any)) Algorithm {
	visit(&a.Rate.Events, &a.Rate.Per, &a.Warmup, &a.ColdFactor)
	return a
}

func (a WarmingUp) compile(enc kernel.Encoding) (kernel.Kernel, error) {
	if err := a.Rate.check("WarmingUp.Rate"); err != nil {
		return nil, err
	}
	if a.Warmup < 1 {
		return nil, param.Invalid("WarmingUp.Warmup", a.Warmup, "must be at least 1ns")
	}
	if !(a.ColdFactor >= 1 && a.ColdFactor <= math.MaxInt32) { // false for NaN, too
		return nil, param.Invalid("WarmingUp.ColdFactor", a.ColdFactor, fmt.Sprintf("must be from 1 to %d, or 0 for 3", math.MaxInt32))
	}
	// A request costs less than three times the longer of these, and that in
	// nanoseconds is to be a whole number that a double holds.
	cold := float64(a.Rate.Per) / float64(a.Rate.Events) * a.ColdFactor
	if enc.Portable && max(float64(a.Warmup), cold) > float64(portableWarmup) {
		return nil, param.Invalid("WarmingUp", fmt.Sprintf("%+v", a), fmt.Sprintf("must warm up within %v in this store, and a cold permit must not take longer", portableWarmup))
	}
	return kernel.NewWarmingUp(a.Rate.Events, a.Rate.Per, a.Warmup, a.ColdFactor, enc), nil
}
