package main

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/ratelimit-go/ratelimit/examples/routers/routertest"
)

func TestRouter(t *testing.T) { routertest.Run(t, "github.com/labstack/echo/v4", router) }

// TestSettle checks that httplimit.WithSettle sees the status of a handler, and of its error.
func TestSettle(t *testing.T) {
	for name, handler := range map[string]echo.HandlerFunc{
		"body":  func(c echo.Context) error { return c.String(http.StatusTeapot, "no") },
		"error": func(c echo.Context) error { return echo.NewHTTPError(http.StatusTeapot, "no") },
	} {
		routertest.Settles(t, name, func(middleware func(http.Handler) http.Handler) http.Handler {
			e := echo.New()
			e.Use(echo.WrapMiddleware(middleware), answerErrors)
			e.GET("/", handler)
			return e
		})
	}
}
