package main

import (
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

func chiRouter(limiter ratelimit.Limiter) http.Handler {
	r := chi.NewRouter()
	r.Use(httplimit.Middleware(limiter))
	r.Get("/hello/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello, %s\n", chi.URLParam(r, "name"))
	})
	return r
}
