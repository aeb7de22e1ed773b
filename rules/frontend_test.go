package rules

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/laws/frontend"
)

// TestFrontEnd_Laws runs the laws of front ends on a set with one rule. What is in shadow is so by
// an option of the middleware, or by the rule. The limits of rules have a lookup, so a call whose
// client has left is refused in memory, too.
func TestFrontEnd_Laws(t *testing.T) {
	t.Run("middleware", func(t *testing.T) {
		frontend.Run(t, frontend.Middleware(func(c *frontend.Config) (func(http.Handler) http.Handler, error) {
			s, err := setOf(c, false)
			if err != nil {
				return nil, err
			}
			return s.Middleware(c.HTTPOptions()...), nil
		}), inMemory)
	})
	t.Run("shadow rule", func(t *testing.T) {
		frontend.Run(t, frontend.Middleware(func(c *frontend.Config) (func(http.Handler) http.Handler, error) {
			s, err := setOf(c, c.Shadow != nil)
			if err != nil {
				return nil, err
			}
			return s.Middleware(c.Options...), nil
		}), inMemory)
	})
}

const inMemory = "decides in memory in any case"

// setOf returns a set of one rule, for all paths. The rule has the default name of a limit. The set
// has no source if there is no limit.
func setOf(c *frontend.Config, shadow bool) (*Set, error) {
	var source Source
	rule := Rule{ID: "default", Call: "/**", Shadow: shadow}
	switch alg := c.Algorithm.(type) {
	case ratelimit.TokenBucket:
		rule.Algorithm, rule.Burst = "token-bucket", alg.Burst
		rule.Limit, rule.Window = alg.Rate.Events, alg.Rate.Per
	case ratelimit.FixedWindow:
		rule.Algorithm, rule.Limit, rule.Window = "fixed-window", alg.Limit, alg.Window
	case ratelimit.InFlight:
		rule.Algorithm, rule.Limit, rule.Window = "in-flight", alg.Limit, alg.Timeout
	case nil:
	default:
		return nil, fmt.Errorf("no rule has a %T", alg)
	}
	if c.Algorithm != nil {
		source = Static(rule)
	}
	s, err := New(context.Background(), source, WithInterval(0), WithAllOrNothing(),
		WithClock(c.Clock), WithLimiter(c.Limiter...), WithOnShadow(func(a Answer) { c.Shadow(a.Decision) }))
	if err == nil {
		c.AtEnd(func() { _ = s.Close() })
	}
	return s, err
}
