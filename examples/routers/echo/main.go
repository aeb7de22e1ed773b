// Echo limits each client of an Echo router.
//
//	go run ./examples/routers/echo -addr localhost:8080 -limit 3/10s
package main

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

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
	e := echo.New()
	e.Use(echo.WrapMiddleware(httplimit.Middleware(limiter)))
	e.GET("/hello/:name", func(c echo.Context) error {
		return c.String(http.StatusOK, "hello, "+c.Param("name")+"\n")
	})
	return e
}
