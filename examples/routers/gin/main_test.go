package main

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/ratelimit-go/ratelimit/examples/routers/routertest"
)

func TestRouter(t *testing.T) { routertest.Run(t, "github.com/gin-gonic/gin", router) }

// TestSettle checks that httplimit.WithSettle sees the status of a handler.
func TestSettle(t *testing.T) {
	for name, handler := range map[string]gin.HandlerFunc{
		"body":  func(c *gin.Context) { c.String(http.StatusTeapot, "no") },
		"late":  func(c *gin.Context) { c.Status(http.StatusOK); c.Status(http.StatusTeapot) },
		"abort": func(c *gin.Context) { c.AbortWithStatus(http.StatusTeapot) },
	} {
		routertest.Settles(t, name, func(middleware func(http.Handler) http.Handler) http.Handler {
			gin.SetMode(gin.ReleaseMode)
			e := gin.New()
			e.Use(limited(middleware))
			e.GET("/", handler)
			return e
		})
	}
}
