package peers

import (
	"context"
	"math"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/throttled/throttled/v2/store/memstore"
)

// throttleds may compare and swap as often as it takes: by default it gives up after 10 attempts, and
// returns an error instead of an answer.
func throttleds() Peer {
	on := func(store throttled.GCRAStoreCtx, err error, l Limit) (Allow, error) {
		if err != nil {
			return nil, err
		}
		// MaxBurst is in addition to the event that the rate grants.
		quota := throttled.RateQuota{MaxRate: throttled.PerDuration(1, l.Every), MaxBurst: l.Burst - 1}
		limiter, err := throttled.NewGCRARateLimiterCtx(store, quota)
		if err != nil {
			return nil, err
		}
		limiter.SetMaxCASAttemptsLimit(math.MaxInt)
		return func(key string) (bool, error) {
			limited, _, err := limiter.RateLimitCtx(context.Background(), key, 1)
			return !limited, err
		}, nil
	}
	return Peer{
		Name: "throttled",
		Memory: func(l Limit) (Allow, error) {
			store, err := memstore.NewCtx(0)
			return on(store, err, l)
		},
		Redis: map[string]Dial{"throttled": func(at Address, l Limit) (Allow, func(), error) {
			client := goRedis(at)
			store, err := goredisstore.NewCtx(client, "throttled:")
			allow, err := on(store, err, l)
			return allow, func() { _ = client.Close() }, err
		}},
	}
}
