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
)

func main() { server.Main(router) }

func router(limiter ratelimit.Limiter) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.Use(limited(httplimit.Middleware(limiter)))
	e.GET("/hello/:name", func(c *gin.Context) {
		c.String(http.StatusOK, "hello, %s\n", c.Param("name"))
	})
	return e
}

// limited converts net/http middleware to a Gin handler. The rest of the Gin chain is the
// handler that the middleware wraps. Gin's handlers write to c.Writer, so limited tells the
// middleware their status, for httplimit.WithSettle.
func limited(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r
			c.Next()
			w.WriteHeader(c.Writer.Status())
		})).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}
