// Routers limits each client of a router that is not net/http's own.
//
//	go run ./examples/routers -router chi -addr localhost:8080 -limit 3/10s
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5; do curl -si localhost:8080/hello/you | grep -iE '^(HTTP|RateLimit|Retry)'; done
package main

import (
	"flag"
	"log"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// routers make the same of each router: GET /hello/{name} behind a limiter.
var routers = map[string]func(ratelimit.Limiter) http.Handler{
	"chi":  chiRouter,
	"echo": echoRouter,
	"gin":  ginRouter,
}

func main() {
	name := flag.String("router", "chi", "the `router`: chi, echo or gin")
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	limit := flag.String("limit", "3/10s", "how many `requests/span` a client may make")
	flag.Parse()
	router := routers[*name]
	if router == nil {
		log.Fatalf("-router %s: must be one of %v", *name, slices.Sorted(maps.Keys(routers)))
	}
	rate, err := ratelimit.ParseRate(*limit)
	if err != nil {
		log.Fatalf("-limit: %v", err)
	}
	limiter, err := ratelimit.New(ratelimit.TokenBucket{Rate: rate})
	if err != nil {
		log.Fatalf("-limit: %v", err)
	}
	server := &http.Server{Addr: *addr, Handler: router(limiter), ReadHeaderTimeout: 5 * time.Second}
	log.Printf("%v for each client, at %s", rate, *addr)
	log.Fatal(server.ListenAndServe())
}
