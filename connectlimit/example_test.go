package connectlimit_test

import (
	"log"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/connectlimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// Each client may make 60 calls a minute.
func Example() {
	mux := http.NewServeMux() // with the handlers of your services

	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
	log.Fatal(http.ListenAndServe(":8080", connectlimit.Middleware(limiter)(mux)))
}

// Each client and procedure has a limit of its own, and health checks do not count.
func ExampleMiddleware() {
	mux := http.NewServeMux()
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}))
	handler := connectlimit.Middleware(limiter,
		httplimit.WithKey(key.Join(clientip.Of(), key.Pattern())),
		httplimit.WithSkip(connectlimit.HealthAndReflection))(mux)
	log.Fatal(http.ListenAndServe(":8080", handler))
}

// A client that makes at most ten calls a second.
func ExampleClient() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 1000}))

	limits, err := connectlimit.NewClient(limiter, nil)
	if err != nil {
		log.Fatal(err)
	}
	options := connect.WithInterceptors(limits)

	client := connect.NewClient[emptypb.Empty, emptypb.Empty](http.DefaultClient, "http://localhost:8080/example.Service/Method", options)
	_ = client
}
