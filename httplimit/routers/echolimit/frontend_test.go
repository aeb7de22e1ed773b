package echolimit_test

import (
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/routers/echolimit"
	"github.com/ratelimit-go/ratelimit/internal/laws/frontend"
)

// TestFrontEnd_Laws runs the laws of front ends on an Echo router.
func TestFrontEnd_Laws(t *testing.T) {
	frontend.Run(t, func(c *frontend.Config) (frontend.Server, error) {
		l, err := c.NewLimiter()
		if err != nil {
			return nil, err
		}
		e := echo.New()
		e.Use(echolimit.Wrap(httplimit.Middleware(l, c.HTTPOptions()...)))
		e.GET("/", func(ec *echo.Context) error { return c.Handle(ec.Request().Context()) })
		return frontend.ServerOf(e), nil
	})
}
