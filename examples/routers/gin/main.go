// Gin limits each client of a Gin router.
//
//	go run ./examples/routers/gin -addr localhost:8080 -limit 3/10s
package main

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

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
	gin.SetMode(gin.ReleaseMode)
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: rate}))
	e := gin.New()
	e.Use(limited(httplimit.Middleware(limiter)))
	e.GET("/hello/:name", func(c *gin.Context) {
		c.String(http.StatusOK, "hello, %s\n", c.Param("name"))
	})
	return e
}

// limited makes a Gin handler of a middleware: what comes after it in the chain
// is its next handler.
func limited(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}
