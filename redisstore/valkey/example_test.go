package valkey_test

import (
	"log"
	"time"

	client "github.com/valkey-io/valkey-go"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore/valkey"
)

func Example() {
	connected, err := client.NewClient(client.ClientOption{
		InitAddress:      []string{"localhost:6379"},
		ConnWriteTimeout: time.Second, // after which a dead connection is given up
	})
	if err != nil {
		log.Fatal(err)
	}
	defer connected.Close()
	store, err := valkey.New(connected)
	if err != nil {
		log.Fatal(err)
	}
	limit := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}
	// While the server is away, each of eight processes has an eighth of the limit.
	alone := ratelimit.Must(ratelimit.New(ratelimit.Share(limit, 8)))
	limiter := ratelimit.Must(ratelimit.New(limit, ratelimit.WithStore(store),
		ratelimit.WithName("api"), ratelimit.WithFailurePolicy(ratelimit.Fallback(alone))))
	if !limiter.Allow("a user") {
		log.Println("too many requests")
	}
}
