// Chi limits each client of a chi router.
//
//	go run ./examples/routers/chi
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5; do curl -si localhost:8080/hello/you | grep -iE '^(HTTP|RateLimit|Retry)'; done
package main

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

func main() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 3, Per: 10 * time.Second}}))
	server := &http.Server{Addr: "localhost:8080", Handler: router(limiter), ReadTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

func router(limiter ratelimit.Limiter) http.Handler {
	r := chi.NewRouter()
	r.Use(httplimit.Middleware(limiter))
	r.Get("/hello/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello, %s\n", chi.URLParam(r, "name"))
	})
	return r
}
