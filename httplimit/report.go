package httplimit

import (
	"context"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Reporter describes the decisions of a limiter as [Middleware] does, for servers of other
// protocols. Any number of goroutines may use it at once.
type Reporter struct{ m *middleware }

// NewReporter returns a Reporter of the decisions of l. It obeys [WithHeaders],
// [WithPolicyName], [WithJitter], [WithInFlightRetry], [WithPartitionKey] and [WithExposedHeaders]. It fails if l is
// nil, an option is invalid, or [WithAlso] is given. Other options have no effect.
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

	// RetryAfter is the time that a client which was refused is told to wait. It is
	// [ratelimit.Never] if no wait helps, and otherwise positive. It is 0 if the request is allowed.
	RetryAfter time.Duration

	// Detail is a sentence that says why the request is refused. It is empty if it is not.
	Detail string
}

// Report describes d, a decision of the limiter on key. If the limits of keys differ, it looks
// up that of key; see [Standard].
func (p *Reporter) Report(ctx context.Context, key string, d ratelimit.Decision) Report {
	q := question{key: key}
	policies, pk := p.m.policiesOf(ctx, q, d), p.m.partition(q, d)
	if !d.Allowed {
		d = p.m.hinted(d, policies)
	}
	r := reportOf(d, policies)
	r.Header = make(http.Header)
	p.m.setHeaders(r.Header, d, policies, pk)
	return r
}

// reportOf returns the report of d, a decision by p, without header fields.
func reportOf(d ratelimit.Decision, p *policies) Report {
	r := Report{Policy: p.names[p.part(d)]}
	if !d.Allowed {
		r.RetryAfter, r.Detail = d.RetryAfter, detail(d)
	}
	return r
}

type reportKey struct{}

// withReport returns r with the report of d, a refusal by p.
func withReport(r *http.Request, d ratelimit.Decision, p *policies) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), reportKey{}, reportOf(d, p)))
}

// ReportOf returns the report of the decision that refused r. It is for the handler given to
// [WithDenied]; for other requests, ok is false.
func ReportOf(r *http.Request) (report Report, ok bool) {
	report, ok = r.Context().Value(reportKey{}).(Report)
	return report, ok
}
