package contenders

import (
	"context"
	"math"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
)

func throttledMemory() Contender {
	return Contender{
		Name:   throttledName,
		Role:   Peer,
		Quick:  true,
		Stale:  true,
		Module: "github.com/throttled/throttled/v2",
		Setup:  "GCRA on `memstore` without a bound, `RateLimitCtx`; `SetMaxCASAttemptsLimit` is unlimited, because by default it gives up after 10 attempts and returns an error instead of an answer; it reads the clock before the state, so that a caller that was stopped in between may be denied by mistake: without I1kp, I100kp and I100k-64, where that happens",
		New: func(l Limit) (Allow, error) {
			store, err := memstore.NewCtx(0)
			if err != nil {
				return nil, err
			}
			return throttledOn(store, l)
		},
	}
}

// throttledOn returns the limiter of throttled on a store.
func throttledOn(store throttled.GCRAStoreCtx, l Limit) (Allow, error) {
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(1, l.Every),
		MaxBurst: l.Burst - 1, // in addition to the one that the rate grants
	})
	if err != nil {
		return nil, err
	}
	limiter.SetMaxCASAttemptsLimit(math.MaxInt)
	ctx := context.Background()
	return func(key string) Answer {
		limited, _, err := limiter.RateLimitCtx(ctx, key, 1)
		if err != nil {
			return Failed
		}
		return answer(!limited)
	}, nil
}
