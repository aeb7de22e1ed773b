package echolimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v5"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/routers/echolimit"
)

// A router that allows each client 60 requests a minute.
func Example() {
	e := echo.New()
	e.Use(echolimit.Wrap(httplimit.PerClient(ratelimit.PerMinute(60))))
	e.GET("/hello", func(c *echo.Context) error { return c.String(http.StatusOK, "hello") })

	answered := make(map[int]int) // by status
	for range 70 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest("GET", "/hello", nil))
		answered[w.Code]++
	}
	fmt.Println(answered)
	// Output: map[200:60 429:10]
}
