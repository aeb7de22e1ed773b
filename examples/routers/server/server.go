// Package server is what the programs beside it share: their flags and their
// server. It imports none of the routers, so that each program compiles its own
// alone.
package server

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Main listens where -addr says, with the handler that router makes of a limiter
// for -limit. It does not return.
func Main(router func(ratelimit.Limiter) http.Handler) {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	limit := flag.String("limit", "3/10s", "how many `requests/span` a client may make")
	flag.Parse()
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
