// Chi limits each client of a chi router.
//
//	go run ./examples/routers/chi -addr localhost:8080 -limit 3/10s
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	limit := flag.String("limit", "3/10s", "how many `requests/span` a client may make")
	flag.Parse()
	rate, err := ratelimit.ParseRate(*limit)
	if err != nil {
		log.Fatalf("-limit: %v", err)
	}
	server := &http.Server{Addr: *addr, Handler: router(rate), ReadHeaderTimeout: 5 * time.Second}
	log.Printf("%v for each client, at %s", rate, *addr)
	log.Fatal(server.ListenAndServe())
}

func router(rate ratelimit.Rate) http.Handler {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: rate}))
	r := chi.NewRouter()
	r.Use(httplimit.Middleware(limiter))
	r.Get("/hello/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello, %s\n", chi.URLParam(r, "name"))
	})
	return r
}
