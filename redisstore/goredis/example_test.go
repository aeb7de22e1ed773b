package goredis_test

import (
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
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

// Five replicas of a service share 100 requests a minute for each API key. While Redis is away,
// each of them grants a fifth of the limit.
func ExampleNew() {
	mux := http.NewServeMux()

	store, err := goredis.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	limit := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(100)}
	alone := ratelimit.Must(ratelimit.New(ratelimit.Share(limit, 5)))
	limiter := ratelimit.Must(ratelimit.New(limit, ratelimit.WithStore(store), ratelimit.WithName("api"),
		ratelimit.WithFailurePolicy(ratelimit.Fallback(alone))))

	limited := httplimit.Middleware(limiter, httplimit.WithKey(httplimit.Header("X-API-Key")))
	log.Fatal(http.ListenAndServe(":8080", limited(mux)))
}
