package httplimit

import (
	"context"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A Verdict is what a [Gate] has decided about a request.
type Verdict struct {
	// Passed is whether the request may be handled.
	Passed bool

	// Decision is that of the limits. It is exact, and may be a denial although the request has
	// passed, see [WithShadow]. If there are several limits, Part is the index of the one that
	// decided: the limits of [NewGateOf] without a Shadow, or the limiter of [NewGate], come before
	// those of [WithAlso]. It is zero if none of these was asked: the request was skipped, is free,
	// has no key, or counts only in limits with a Shadow.
	Decision ratelimit.Decision

	// Policy is the name of the limit that decided: that of [WithPolicyName] or, for an
	// [ratelimit.All], that of its part, such as "default-2". It is empty if the limit is not
	// enforced.
	Policy string

	// RetryAfter is the time that a client which is refused is told to wait. It is
	// [ratelimit.Never] if no wait helps, and otherwise positive. It is 0 if the request has
	// passed.
	RetryAfter time.Duration

	// Detail is a sentence for the client that says why the request is refused. It is empty if the
	// request has passed.
	Detail string

	// Err is set if the request is refused although no limit was exceeded: because its key or cost
	// cannot be determined, or with the error of its context, because that has ended. Then nothing
	// is spent, unless the store executes later what it was asked in vain.
	Err error

	gate    *Gate
	request *http.Request
	isOver  bool // whether the context of the request has ended
}

// WithVerdict lets the handler of a request that passes get its Verdict from [VerdictOf], such as
// to say in the body how much is left, or to serve less when little is. It costs three allocations.
func WithVerdict() Option {
	return option(func(c *config) { c.isTold = true })
}

// VerdictOf returns the Verdict on the request whose context is ctx. It is for the handler given to
// [WithRefusal] and, with [WithVerdict], for the handlers of requests that pass; if several such
// middlewares are around a handler, the innermost counts. ok is false if there is none: without
// WithVerdict, and if the Decision says nothing, because no limit was asked.
func VerdictOf(ctx context.Context) (v Verdict, ok bool) {
	v, ok = ctx.Value(verdictKey{}).(Verdict)
	return v, ok
}

type verdictKey struct{}

// inContext returns a context in which VerdictOf finds v.
func (v *Verdict) inContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, verdictKey{}, *v)
}
