package contenders

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// ModulePath is the path of this library's module.
const ModulePath = "github.com/ratelimit-go/ratelimit"

// library returns a contender that is this library with the given algorithm, the default
// store and clock, and a call of Allow for each decision.
func library(name string, role Role, setup string, alg func(Limit) ratelimit.Algorithm) Contender {
	return Contender{
		Name:   name,
		Role:   role,
		Quick:  true,
		Module: ModulePath,
		Setup:  setup,
		New: func(l Limit) (Allow, error) {
			limiter, err := ratelimit.New(alg(l))
			if err != nil {
				return nil, err
			}
			return func(key string) Answer { return answer(limiter.Allow(key)) }, nil
		},
	}
}

// OneLimit is the name of the contender with one limit for all keys.
const OneLimit = "ratelimit"

func tokenBucket() Contender {
	return library(OneLimit, Main, "`TokenBucket`", bucketOf)
}

func coarseClock() Contender {
	var clk *ratelimit.CoarseClock
	return Contender{
		Name:   CoarseClock,
		Role:   Variant,
		Module: ModulePath,
		Setup:  "`TokenBucket` with a `CoarseClock` of 1 ms",
		New: func(l Limit) (_ Allow, err error) {
			if clk, err = ratelimit.NewCoarseClock(time.Millisecond); err != nil {
				return nil, err
			}
			return bucket(l, ratelimit.WithClock(clk))
		},
		Stop: func() { clk.Stop() },
	}
}

// OwnLimits is the name of the contender with a limit for each key.
const OwnLimits = "ratelimit, limits of keys' own"

// ownLimits gives each key one of ten limits, as a service with plans does.
func ownLimits() Contender {
	return Contender{
		Name:   OwnLimits,
		Role:   Variant,
		Module: ModulePath,
		Setup:  "`TokenBucket`s of ten rates, `WithLimits` by the last digit of the key",
		Quick:  true,
		New: func(l Limit) (Allow, error) {
			var plans [10]ratelimit.Algorithm
			for i := range plans {
				plans[i] = ratelimit.TokenBucket{Rate: ratelimit.Every(l.Every + time.Duration(i)), Burst: l.Burst}
			}
			return bucket(l, ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
				return plans[key[len(key)-1]-'0'], nil
			}))
		},
	}
}

// CoarseClock is the name of the contender with a CoarseClock.
const CoarseClock = "ratelimit, coarse clock"

// Bounded returns a token bucket of this library whose store holds at most the given
// number of keys.
func Bounded(l Limit, keys int) (Allow, error) {
	return bucket(l, ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(keys))))
}

func bucketOf(l Limit) ratelimit.Algorithm {
	return ratelimit.TokenBucket{Rate: ratelimit.Every(l.Every), Burst: l.Burst}
}

func bucket(l Limit, opts ...ratelimit.Option) (Allow, error) {
	limiter, err := ratelimit.New(bucketOf(l), opts...)
	if err != nil {
		return nil, err
	}
	return func(key string) Answer { return answer(limiter.Allow(key)) }, nil
}

func fixedWindow() Contender {
	return library("ratelimit, fixed window", Variant, "`FixedWindow` of 1000 h", windowOf)
}

func windowOf(l Limit) ratelimit.Algorithm {
	return ratelimit.FixedWindow{Limit: l.Burst, Window: l.window()}
}

func slidingWindow() Contender {
	return library("ratelimit, sliding window", Variant, "`SlidingWindow` of 1000 h, one segment", func(l Limit) ratelimit.Algorithm {
		return ratelimit.SlidingWindow{Limit: l.Burst, Window: l.window()}
	})
}

func leakyBucket() Contender {
	return library("ratelimit, leaky bucket", Variant, "`LeakyBucket`", func(l Limit) ratelimit.Algorithm {
		return ratelimit.LeakyBucket{Rate: ratelimit.Every(l.Every), Capacity: l.Burst}
	})
}

func rollingWindow() Contender {
	return library("ratelimit, rolling window", Variant, "`RollingWindow` of 24 periods of 1000 h each", rollingOf)
}

func rollingOf(l Limit) ratelimit.Algorithm {
	period := window
	if l == Quick {
		period = l.Every
	}
	return ratelimit.RollingWindow{Quota: l.Burst, Window: 24 * period, Period: period}
}
