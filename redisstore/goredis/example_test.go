package goredis_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
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

	limited := httplimit.Middleware(limiter, httplimit.WithKey(key.Header("X-API-Key")))
	log.Fatal(http.ListenAndServe(":8080", limited(mux)))
}

// An operator lists the users of a limiter who are refused now.
func Example_scan() {
	store, err := goredis.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	// Scan needs the limiter for the values of a bucket, which do not say what its Burst is.
	limit := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}
	ratelimit.Must(ratelimit.New(limit, ratelimit.WithStore(store), ratelimit.WithName("api")))
	for entry, err := range store.Scan(context.Background(), "api") {
		switch d := entry.Decision; {
		case err != nil:
			log.Print(err) // keys are missing
		case entry.Err != nil:
			log.Printf("%q: %v", entry.Key, entry.Err)
		case !d.Allowed:
			fmt.Printf("%q: %d of %d used, retry after %v\n",
				entry.Key, d.Limit-d.Remaining, d.Limit, d.RetryAfter)
		}
	}
}
