// Gin limits each client of a Gin router.
//
//	go run ./examples/routers/gin -addr localhost:8080 -limit 3/10s
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5; do curl -si localhost:8080/hello/you | grep -iE '^(HTTP|RateLimit|Retry)'; done
package main

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/examples/routers/server"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/routers/ginlimit"
)

func main() { server.Main(router) }

func router(limiter ratelimit.Limiter) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.Use(ginlimit.Wrap(httplimit.Middleware(limiter)))
	e.GET("/hello/:name", func(c *gin.Context) {
		c.String(http.StatusOK, "hello, %s\n", c.Param("name"))
	})
	return e
}
