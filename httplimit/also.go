package httplimit

import (
	"fmt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// WithAlso adds a limiter that must grant a request as well, under a key of its own: a request
// counts for its user and for the user's organisation. It passes if all limiters grant it, and
// otherwise spends nothing. WithAlso may be given several times.
//
// The limiters decide together, as [ratelimit.TakeAll] says. If the one that decided has an
// [ratelimit.All], another call of it finds out which part to name in the header fields.
//
// All limits are reported in one set of header fields, as for the parts of a [ratelimit.All].
// name is that of the limit, and differs from all others; [WithPolicyName] sets that of
// Middleware's limiter, which is "default" without it. In the
// decision that [VerdictOf] and [WithShadow] report, Part is the index of the limiter that
// decided; that of Middleware is 0.
//
// [WithCost], [WithSettle] and [WithSettleAtEnd] apply to all limiters, except to those that
// have one of them of their own. So one middleware counts requests and tokens:
//
//	httplimit.WithAlso(tokens, key.Header("User"), "tokens",
//		httplimit.WithCost(estimate), httplimit.WithSettleAtEnd(httplimit.ByCost))
//
// It decides with one call, and spends nothing if a limiter refuses. A middleware in another one
// does not: what the outer one has counted stays counted when the inner one refuses.
//
// WithAlso cannot be combined with [WithShaping].
func WithAlso(l ratelimit.Limiter, key key.Func, name string, own ...CostOption) Option {
	return option(func(c *config) {
		c.require(!param.IsNil(l), "WithAlso's limiter", nil,
			"must be a Limiter, such as ratelimit.New returns")
		c.requireKey("WithAlso's function", key)
		c.requireName("WithAlso's name", name)
		c.also = append(
			c.also,
			&namedLimit{limiter: l, key: key, name: name, costing: c.costingOf(own)},
		)
	})
}

// costingOf returns the costing that the options own of a WithAlso make.
func (c *config) costingOf(own []CostOption) costing {
	var made config
	for i, opt := range own {
		if opt == nil {
			c.fail(invalid(fmt.Sprintf("option %d of WithAlso", i), nil,
				"must be the result of WithCost, WithSettle or WithSettleAtEnd"))
			return costing{}
		}
		opt.set(&made)
	}
	if made.err != nil {
		c.fail(made.err)
		return costing{}
	}
	return made.costing
}
