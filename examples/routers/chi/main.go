// Chi limits each client of a chi router.
//
//	go run ./examples/routers/chi -addr localhost:8080 -limit 3/10s
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5; do curl -si localhost:8080/hello/you | grep -iE '^(HTTP|RateLimit|Retry)'; done
package main

import (
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/examples/routers/server"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

func main() { server.Main(router) }

func router(limiter ratelimit.Limiter) http.Handler {
	r := chi.NewRouter()
	r.Use(httplimit.Middleware(limiter))
	r.Get("/hello/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello, %s\n", chi.URLParam(r, "name"))
	})
	return r
}
