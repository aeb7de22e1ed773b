package httplimit_test

import (
	"net/http"
	"testing"

	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/laws/frontend"
)

// TestFrontEnd_Laws runs the laws of front ends on Middleware, on a Gate whose handler asks it, and
// on one whose limits depend on the request, with shadows of both kinds.
func TestFrontEnd_Laws(t *testing.T) {
	t.Run("middleware", func(t *testing.T) { frontend.Run(t, frontend.NetHTTP) })
	t.Run("gate", func(t *testing.T) { frontend.Run(t, frontend.Gated(frontend.Pass)) })
	for name, shadow := range map[string]func(*frontend.Config) ([]httplimit.Option, httplimit.Limit){
		"limits of requests": func(c *frontend.Config) ([]httplimit.Option, httplimit.Limit) {
			return c.HTTPOptions(), httplimit.Limit{}
		},
		"shadow limits of requests": func(c *frontend.Config) ([]httplimit.Option, httplimit.Limit) {
			return c.Options, httplimit.Limit{Shadow: c.Shadow}
		},
	} {
		t.Run(name, func(t *testing.T) {
			frontend.Run(t, frontend.Middleware(func(c *frontend.Config) (func(http.Handler) http.Handler, error) {
				l, err := c.NewLimiter()
				if err != nil {
					return nil, err
				}
				opts, limit := shadow(c)
				limit.Name, limit.Limiter = "default", l
				limitsOf := func(_ *http.Request, key string) ([]httplimit.Limit, error) {
					limit.Key = key
					return []httplimit.Limit{limit}, nil
				}
				if l == nil {
					limitsOf = nil
				}
				gate, err := httplimit.NewGateOf(limitsOf, opts...)
				if err != nil {
					return nil, err
				}
				return gate.Middleware, nil
			}))
		})
	}
}
