package goredis_test

import (
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
)

func Example() {
	store, err := goredis.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	limit := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}
	// While Redis is away, each of eight processes has an eighth of the limit.
	alone := ratelimit.Must(ratelimit.New(ratelimit.Share(limit, 8)))
	limiter := ratelimit.Must(ratelimit.New(limit, ratelimit.WithStore(store),
		ratelimit.WithName("api"), ratelimit.WithFailurePolicy(ratelimit.Fallback(alone))))
	if !limiter.Allow("a user") {
		log.Println("too many requests")
	}
}
