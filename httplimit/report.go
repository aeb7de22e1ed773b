package httplimit

import (
	"context"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Reporter describes the decisions of a limiter as [Middleware] does, for servers of other
// protocols. Any number of goroutines may use it at once.
type Reporter struct{ m *middleware }

// NewReporter returns a Reporter of the decisions of l. It obeys [WithHeaders] and
// [WithPolicyName]. It fails if l is nil, an option is invalid, or [WithAlso] is given. Other
// options have no effect.
func NewReporter(l ratelimit.Limiter, opts ...Option) (*Reporter, error) {
	c, err := newConfig(opts)
	switch {
	case param.IsNil(l):
		return nil, invalid("the limiter", nil, "must be a Limiter, such as ratelimit.New returns")
	case err != nil:
		return nil, err
	case c.also != nil:
		return nil, invalid("the number of NewReporter's limiters", 1+len(c.also), "must be 1: remove WithAlso")
	}
	return &Reporter{newMiddleware(c, l)}, nil
}

// A Report describes a decision to a client.
type Report struct {
	// Header has the fields that Middleware would send. It is nil in a Report of [ReportOf],
	// because they are set already.
	Header http.Header

	// Policy is the name of the limit that decided: that of [WithPolicyName] or, for an
	// [ratelimit.All], that of the part, such as "default-2".
	Policy string

	// Detail is a sentence that says why the request is refused. It is empty if it is not.
	Detail string
}

// Report describes d, a decision of the limiter on key. If the limits of keys differ, it looks
// up that of key; see [Standard].
func (p *Reporter) Report(ctx context.Context, key string, d ratelimit.Decision) Report {
	policies := p.m.policiesOf(ctx, question{key: key}, d)
	r := Report{Header: make(http.Header), Policy: policies.names[policies.part(d)]}
	p.m.setHeaders(r.Header, d, policies)
	if !d.Allowed {
		r.Detail = detail(d)
	}
	return r
}

type reportKey struct{}

// withReport returns r with the report of d, a refusal by p.
func withReport(r *http.Request, d ratelimit.Decision, p *policies) *http.Request {
	report := Report{Policy: p.names[p.part(d)], Detail: detail(d)}
	return r.WithContext(context.WithValue(r.Context(), reportKey{}, report))
}

// ReportOf returns the report of the decision that refused r. It is for the handler given to
// [WithDenied]; for other requests, ok is false.
func ReportOf(r *http.Request) (report Report, ok bool) {
	report, ok = r.Context().Value(reportKey{}).(Report)
	return report, ok
}
