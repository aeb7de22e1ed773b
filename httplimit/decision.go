package httplimit

import (
	"context"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
)

// WithDecision lets the handler get the decision on its request from [DecisionOf], such as to
// say in the body how much is left, or to serve less when little is. It costs three allocations.
func WithDecision() Option { return func(c *config) { c.told = true } }

// DecisionOf returns the decision on r. It is for the handler given to [WithDenied] and, with
// [WithDecision], for the handlers of requests that pass; of several such middlewares around a
// handler, the innermost counts. With [WithShadow], it may be a denial. ok is false if there is
// none: without WithDecision, and if the request was skipped or costs nothing.
func DecisionOf(r *http.Request) (d ratelimit.Decision, ok bool) {
	d, ok = r.Context().Value(decisionKey{}).(ratelimit.Decision)
	return d, ok
}

type decisionKey struct{}

// withDecision returns a copy of r for which DecisionOf returns d.
func withDecision(r *http.Request, d ratelimit.Decision) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), decisionKey{}, d))
}
