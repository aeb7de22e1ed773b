package contenders

import (
	"context"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"
)

// onGoRedis returns a peer that uses Redis through go-redis. All such peers configure the
// client in the same way.
func onGoRedis(name, module, setup string, limiter func(client *redis.Client, l Limit) (Allow, error)) Contender {
	return Contender{
		Name:   name,
		Role:   Peer,
		Module: module,
		Setup:  setup,
		Dial: func(addr string, l Limit, _ time.Duration) (Allow, func(), error) {
			client := goRedis(addr)
			allow, err := limiter(client, l)
			return allow, closer(client), err
		},
	}
}

func redisRate() Contender {
	return onGoRedis(RedisRate, "github.com/go-redis/redis_rate/v10", "`Limiter.Allow`, on go-redis", func(client *redis.Client, l Limit) (Allow, error) {
		limiter := redis_rate.NewLimiter(client)
		limit := redis_rate.Limit{Rate: 1, Period: l.Every, Burst: l.Burst}
		ctx := context.Background()
		return func(key string) Answer {
			res, err := limiter.Allow(ctx, key, limit)
			if err != nil {
				return Failed
			}
			return answer(res.Allowed == 1)
		}, nil
	})
}

func redisThrottled() Contender {
	const setup = "GCRA on `goredisstore.v9`, `RateLimitCtx`; `SetMaxCASAttemptsLimit` as in memory, for the same reason"
	c := onGoRedis("throttled, Redis", "github.com/throttled/throttled/v2", setup, func(client *redis.Client, l Limit) (Allow, error) {
		store, err := throttledstore.NewCtx(client, "throttled:")
		if err != nil {
			return nil, err
		}
		return throttledOn(store, l)
	})
	c.Swaps = true
	return c
}

func redisUlule() Contender {
	const setup = "`redis` store, `Get`; windows of 1000 h from a key's first event; a denial counts as an event too"
	return onGoRedis("ulule/limiter, Redis", "github.com/ulule/limiter/v3", setup, func(client *redis.Client, l Limit) (Allow, error) {
		store, err := ululestore.NewStore(client)
		if err != nil {
			return nil, err
		}
		return ululeOn(store, l), nil
	})
}
