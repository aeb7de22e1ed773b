package peers

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
)

func redisRate() Peer {
	return Peer{
		Name: "redis_rate",
		Redis: map[string]Dial{"redis_rate": func(addr string, l Limit) (Allow, func(), error) {
			client := goRedis(addr)
			limiter := redis_rate.NewLimiter(client)
			limit := redis_rate.Limit{Rate: 1, Period: l.Every, Burst: l.Burst}
			return func(key string) (bool, error) {
				res, err := limiter.Allow(context.Background(), key, limit)
				if err != nil {
					return false, err
				}
				return res.Allowed == 1, nil
			}, func() { _ = client.Close() }, nil
		}},
	}
}
