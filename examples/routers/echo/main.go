// Echo limits each client of an Echo router.
//
//	go run ./examples/routers/echo
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5; do curl -si localhost:8080/hello/you | grep -iE '^(HTTP|RateLimit|Retry)'; done
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/labstack/echo/v5"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/routers/echolimit"
)

func main() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 3, Per: 10 * time.Second}}))
	server := &http.Server{Addr: "localhost:8080", Handler: router(limiter), ReadTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

func router(limiter ratelimit.Limiter) http.Handler {
	e := echo.New()
	e.Use(echolimit.Wrap(httplimit.Middleware(limiter)))
	e.GET("/hello/:name", func(c *echo.Context) error {
		return c.String(http.StatusOK, "hello, "+c.Param("name")+"\n")
	})
	return e
}
