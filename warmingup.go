package ratelimit

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A WarmingUp limiter grants Rate once it is warm, and less while it is cold:
// a permit takes ColdFactor times as long then, and ever less over Warmup of
// use at full speed. It cools down again when it idles. It protects what needs
// to warm up itself: caches, pools, a peer that just started.
//
// A request is granted if the next free time has come, whatever n is (up to
// Limit), and the next one pays for it: it has to wait for as long as the
// permits before it took. Limit is the permits that warming up takes, at least
// 1; Remaining is Limit or 0.
//
// This is Guava's SmoothWarmingUp RateLimiter (com.google.common.util.concurrent,
// where the integral is drawn), and as there the arithmetic is in floating
// point, with instants rounded to the nearest nanosecond. Its state is two
// words.
type WarmingUp struct {
	Rate       Rate          // the rate once warm
	Warmup     time.Duration // how long warming up takes at full speed
	ColdFactor float64       // how many times longer a permit takes when cold; at least 1, 0 means 3
}

// portableWarmup bounds Warmup in a portable form.
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

func (a WarmingUp) compile(f kernel.Form) (kernel.Kernel, error) {
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
	if f.Portable && max(float64(a.Warmup), cold) > float64(portableWarmup) {
		return nil, param.Invalid("WarmingUp", fmt.Sprintf("%+v", a), fmt.Sprintf("must warm up within %v in this store, and a cold permit must not take longer", portableWarmup))
	}
	return kernel.NewWarmingUp(a.Rate.Events, a.Rate.Per, a.Warmup, a.ColdFactor, f), nil
}
