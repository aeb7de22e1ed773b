package rules

import (
	"net/http"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// Middleware returns net/http middleware that applies the rules to the requests of a
// handler. It responds like [httplimit.Middleware], and takes the same options:
// [httplimit.WithKey] sets the subject, by default the client's address. The policy's
// name is the rule's ID, if that consists of printable ASCII characters. If a limiter of
// [httplimit.WithAlso] has that name, such as "photos", the rule's is "photos-2".
//
// If the path of a request has several interpretations (see [Rule]), the request must pass the
// rules for all of them, which decide together, as [Set.Take] says: the response has one RateLimit
// item, and the policies of all rules. With [httplimit.WithShaping], only a request that counts
// against a single rule waits; others are refused at once.
//
// A request of an in-flight rule is in flight while its handler runs. It is released when the
// handler returns or panics, as [httplimit.Middleware] does.
//
// With [httplimit.WithSettle], a request is settled with each of its rules. The limiters of
// [httplimit.WithAlso] count a request that some rule is for, once, if all its rules grant it.
//
// Middleware panics where [httplimit.Middleware] does.
func (s *Set) Middleware(opts ...httplimit.Option) func(http.Handler) http.Handler {
	gate, err := httplimit.NewGateOf(s.limitsOf, opts...)
	if err != nil {
		panic(err)
	}
	return func(next http.Handler) http.Handler {
		limited := gate.Middleware(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rules := s.matchRequest(r)
			if len(rules) == 0 {
				next.ServeHTTP(w, r)
				return
			}
			inner := r.WithContext(newMatched(r.Context(), rules))
			defer handBack(r, inner)
			limited.ServeHTTP(w, inner)
		})
	}
}

// handBack sets in r what net/http and outer handlers look for in it, and what a handler may have
// set in inner, a copy of r: the route, and the form whose files are to be removed. Package
// handback of the root module has the same. A release of rules may meet another version of the
// root, so rules imports no internal package.
func handBack(r, inner *http.Request) {
	if r.MultipartForm == nil && inner.MultipartForm != nil {
		r.MultipartForm = inner.MultipartForm
	}
	if r.Pattern != inner.Pattern {
		r.Pattern = inner.Pattern
	}
}

// matchRequest returns the rules in force for r.
func (s *Set) matchRequest(r *http.Request) []*compiled {
	path := r.URL.EscapedPath()
	rules := s.match(nil, r.Method, path)
	raw := r.URL.RawPath
	if raw != "" && raw != path {
		// Outdated, because Path was changed since, but some routers use it.
		rules = s.match(rules, r.Method, raw)
	}
	return rules
}

// limitsOf returns the limits of a request that matchRequest has found rules for.
func (s *Set) limitsOf(r *http.Request, subject string) ([]httplimit.Limit, error) {
	rules := matchedIn(r.Context())
	limits := make([]httplimit.Limit, len(rules))
	for i, rule := range rules {
		limits[i] = httplimit.Limit{
			Name: rule.ID, Limiter: s.limiter, Key: rule.keyOf(subject), InFlight: rule.flies(),
		}
		if rule.Shadow {
			limits[i].Shadow = func(d ratelimit.Decision) {
				if s.onShadow != nil {
					s.onShadow(Answer{Decision: d, Rule: &rule.Rule, Refused: true})
				}
			}
		}
	}
	return limits, nil
}
