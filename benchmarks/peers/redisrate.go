package peers

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

func redisRate() Peer {
	allow := func(limiter *redis_rate.Limiter, l Limit) Allow {
		limit := redis_rate.Limit{Rate: 1, Period: l.Every, Burst: l.Burst}
		return func(key string) (bool, error) {
			res, err := limiter.Allow(context.Background(), key, limit)
			if err != nil {
				return false, err
			}
			return res.Allowed == 1, nil
		}
	}
	auto := func(o redis.AutoPipelineOptions) Dial {
		return func(at Address, l Limit) (Allow, func(), error) {
			client, end, err := goRedisAuto(at, o)
			if err != nil {
				return nil, nil, err
			}
			return allow(redis_rate.NewLimiter(client), l), end, nil
		}
	}
	return Peer{
		Name: "redis_rate",
		Redis: map[string]Dial{
			"redis_rate": func(at Address, l Limit) (Allow, func(), error) {
				client := goRedis(at)
				return allow(redis_rate.NewLimiter(client), l), func() { _ = client.Close() }, nil
			},
			"redis_rate-auto":   auto(halfDuplex),
			"redis_rate-duplex": auto(fullDuplex),
		},
	}
}
