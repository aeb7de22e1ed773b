// Package server has the flags and the server that the router examples share. It imports
// no router, so that each program compiles only its own.
package server

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Main serves the handler that router returns, for a limiter with the limit of -limit, at
// the address of -addr. It does not return.
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
	server := &http.Server{Addr: *addr, Handler: router(limiter), ReadTimeout: 5 * time.Second}
	log.Printf("%v for each client, at %s", rate, *addr)
	log.Fatal(server.ListenAndServe())
}
