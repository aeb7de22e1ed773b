package main

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

func echoRouter(limiter ratelimit.Limiter) http.Handler {
	e := echo.New()
	e.Use(echo.WrapMiddleware(httplimit.Middleware(limiter)))
	e.GET("/hello/:name", func(c echo.Context) error {
		return c.String(http.StatusOK, "hello, "+c.Param("name")+"\n")
	})
	return e
}
