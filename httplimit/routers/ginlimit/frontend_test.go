package ginlimit_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/routers/ginlimit"
	"github.com/ratelimit-go/ratelimit/internal/laws/frontend"
)

// TestFrontEnd_Laws runs the laws of front ends on a Gin router.
func TestFrontEnd_Laws(t *testing.T) {
	frontend.Run(t, func(c *frontend.Config) (frontend.Server, error) {
		l, err := c.NewLimiter()
		if err != nil {
			return nil, err
		}
		e := gin.New()
		e.Use(ginlimit.Wrap(httplimit.Middleware(l, c.HTTPOptions()...)))
		e.GET("/", func(gc *gin.Context) {
			if err := c.Handle(gc.Request.Context()); err != nil {
				gc.String(http.StatusInternalServerError, "the handler has failed")
			}
		})
		return frontend.ServerOf(e), nil
	})
}
