// Gin limits each client of a Gin router.
//
//	go run ./examples/routers/gin
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5; do curl -si localhost:8080/hello/you | grep -iE '^(HTTP|RateLimit|Retry)'; done
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/routers/ginlimit"
)

func main() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 3, Per: 10 * time.Second}}))
	server := &http.Server{Addr: "localhost:8080", Handler: router(limiter), ReadTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

func router(limiter ratelimit.Limiter) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.Use(ginlimit.Wrap(httplimit.Middleware(limiter)))
	e.GET("/hello/:name", func(c *gin.Context) {
		c.String(http.StatusOK, "hello, %s\n", c.Param("name"))
	})
	return e
}
