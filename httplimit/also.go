package httplimit

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

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
// decision that [DecisionOf] and [WithShadow] report, Part is the index of the limiter that
// decided; that of Middleware is 0.
//
// [WithCost] and [WithSettle] apply to all limiters, except to those that have one of the two of
// their own among own, which may have no other options. So one middleware counts requests and tokens:
//
//	httplimit.WithAlso(tokens, key.Header("User"), "tokens",
//		httplimit.WithCost(estimate), httplimit.WithSettle(httplimit.ByCost))
//
// It decides with one call, and spends nothing if a limiter refuses. A middleware in another one
// does not: what the outer one has counted stays counted when the inner one refuses.
//
// WithAlso cannot be combined with [WithShaping].
func WithAlso(l ratelimit.Limiter, key key.Func, name string, own ...Option) Option {
	return func(c *config) {
		c.require(!param.IsNil(l), "WithAlso's limiter", nil, "must be a Limiter, such as ratelimit.New returns")
		c.requireKey("WithAlso's function", key)
		c.requireName("WithAlso's name", name)
		c.also = append(c.also, &limit{limiter: l, key: key, name: name, costing: c.costingOf(own)})
	}
}

// costingOf returns the costing that the options own of a WithAlso make. It fails if one of them is
// another option.
func (c *config) costingOf(own []Option) costing {
	const want = "must be the result of WithCost or WithSettle"
	var made config
	for i, opt := range own {
		if opt == nil {
			c.fail(invalid(fmt.Sprintf("option %d of WithAlso", i), nil, want))
			return costing{}
		}
		opt(&made)
	}
	if made.err != nil {
		c.fail(made.err)
		return costing{}
	}
	result := made.costing
	made.costing = costing{}
	c.require(reflect.DeepEqual(made, config{}), "an option of WithAlso", "another one", want)
	return result
}

// A limit is one of the limiters of a middleware.
type limit struct {
	limiter  ratelimit.Limiter
	key      key.Func
	name     string
	costing            // its own, if it has one
	policies *policies // of all keys
	info     ratelimit.Info
	own      policyCache // for policiesOf
}

// describe sets the policies. status is that of a refusal.
func (l *limit) describe(status int) {
	l.info = ratelimit.Describe(l.limiter)
	l.policies = newPolicies(l.name, status, l.info.Algorithm)
}

// policiesOf returns the policies of key.
func (l *limit) policiesOf(ctx context.Context, key string, status int) *policies {
	if l.info.Lookup == nil {
		return l.policies
	}
	alg, err := l.info.For(ctx, key)
	if err != nil || alg == nil {
		return l.policies // not known
	}
	return l.own.policies(l.name, status, alg)
}

// keyOf returns the key of r.
func (l *limit) keyOf(r *http.Request) (string, error) {
	key, err := l.key(r)
	if err == nil && key == "" {
		return "", errEmptyKey
	}
	return key, err
}

// errEmptyKey refuses an empty key, which clients would share by mistake.
var errEmptyKey = fmt.Errorf("%w: the key is empty", key.ErrNone)
