package httplimit

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ascii"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Option changes what [Middleware] does.
type Option func(*config)

// WithKey sets the function that returns the key of a request. The default is
// ClientIP().
func WithKey(key KeyFunc) Option { return func(c *config) { c.key = key } }

// WithCost sets the function that returns how many events a request counts as. The
// default is 1 for every request. A request that costs 0, with [WithAlso] in all limiters, passes
// without asking them. A negative cost is handled like an error of the key, see [WithKeyError].
func WithCost(cost func(*http.Request) int) Option {
	return func(c *config) { c.cost, c.costed = cost, true }
}

// WithStatus sets the status code of the response to a request over the limit, from
// 400 to 599. The default is 429, Too Many Requests. If no limit was checked, because the store has
// failed and [ratelimit.FailClosed] refuses the request, the client did nothing wrong: the status is
// 503, whatever WithStatus says, with the Retry-After of the policy. A [ratelimit.Fallback] that
// refuses has checked a limit, and so has the limit of [ratelimit.New] if the lookup of
// [ratelimit.WithLimits] has failed: see [ratelimit.Decision.Checked].
func WithStatus(code int) Option { return func(c *config) { c.status = code } }

// WithDenied makes h answer requests over the limit. The header fields are set before
// h is called, and those that an outer handler has set for another body, such as Content-Length
// and ETag, are removed. h gets the decision from [DecisionOf].
func WithDenied(h http.Handler) Option {
	return func(c *config) { c.denied, c.answered = h, true }
}

// WithKeyError makes f answer requests whose key or cost cannot be determined. The
// default is a [BadRequest] for each middleware. To limit such requests together,
// return one key for all of them from the [KeyFunc] instead of an error. To let them
// pass, use [WithSkip].
func WithKeyError(f func(http.ResponseWriter, *http.Request, error)) Option {
	return func(c *config) { c.keyError = f }
}

// WithStoreError calls f with the error when the limiter's store has failed, or when a
// request cannot be settled or released, see [WithSettle] and [WithInFlight]. The
// limiter's [ratelimit.FailurePolicy] decides whether the request passes. The limiter
// logs such errors whether f is set or not; see [ratelimit.WithFailureLog]. Without
// WithStoreError, the middleware logs only errors of a limiter that does not mark its
// decision as Degraded, at most one line a second; the attribute left_out is the number
// of errors omitted since the previous line.
func WithStoreError(f func(*http.Request, error)) Option {
	return func(c *config) { c.storeError, c.storeErrorSet = f, true }
}

// WithSkip lets requests for which skip returns true pass without asking the
// limiter, such as health checks and internal requests. Without it every request counts, also the
// preflight requests (OPTIONS) of browsers, unless a CORS middleware outside answers them. This lets
// them pass:
//
//	httplimit.WithSkip(func(r *http.Request) bool {
//		return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
//	})
func WithSkip(skip func(*http.Request) bool) Option {
	return func(c *config) { c.skip, c.skipped = skip, true }
}

// WithHeaders chooses the header fields that report how much is left: [Standard],
// the default, [Draft7], [Legacy] or [None]. In each case a refusal has Retry-After, unless no
// wait helps because the request costs more than the limit.
func WithHeaders(h Headers) Option { return func(c *config) { c.headers = h } }

// WithJitter adds a random time, from 0 to the given maximum, to the time that a refusal tells
// the client to wait: Retry-After, and the t of RateLimit. So clients that were refused together
// do not return together. None is told to return earlier than without WithJitter. The decision
// that [DecisionOf] and [WithShadow] report stays exact.
func WithJitter(most time.Duration) Option { return func(c *config) { c.jitter = most } }

// WithExposedHeaders lets scripts of other origins read the header fields: it adds the field
// Access-Control-Expose-Headers, which names them. All else that such a script needs is up to
// the CORS middleware, which belongs outside this one, so that it also handles refusals, and
// answers preflight requests before they are counted.
func WithExposedHeaders() Option { return func(c *config) { c.expose = true } }

// WithPartitionKey adds the parameter pk to the RateLimit field of [Standard], which tells a
// client with several keys whose quota the rest of the field is about. f returns it for the
// key of the request or, with [WithAlso], of the limiter that decided. It should be something
// that clients can compute, and nothing that others must not see: not an API key, but a name
// or a hash of it.
func WithPartitionKey(f func(key string) []byte) Option {
	return func(c *config) { c.partitionKey, c.partitioned = f, true }
}

// WithPolicyName sets the name of the limit in header fields and bodies. The default
// is "default". The parts of a [ratelimit.All] have a number after the name:
// "default-1", "default-2". The name must consist of printable ASCII characters.
//
// Clients tell limits apart by their names. So if several middlewares are around a handler, give
// each another name, such as "site" to the outer one and "login" to the inner one: their limits are
// listed together. Within a middleware, two limits of one name are a mistake.
func WithPolicyName(name string) Option { return func(c *config) { c.name = name } }

// WithShadow lets every request pass, and calls report for those that would have
// been refused, to try a limit before enforcing it. No header fields are sent. If
// the key or the cost cannot be determined, report gets a zero Decision. WithShadow
// cannot be combined with [WithShaping].
//
// The limiter does not know that its denials refuse nobody, and its observers see them like all
// others. So that metrics and logs tell them apart, give it a name of its own, as in the
// example: [ratelimit.WithName]("api, shadow").
func WithShadow(report func(*http.Request, ratelimit.Decision)) Option {
	return func(c *config) { c.shadow, c.shadowed = report, true }
}

// WithShaping holds a request until its turn instead of refusing it, if its turn
// comes within maxDelay, measured by the limiter's clock, and before the deadline of
// the request's context. With a [ratelimit.LeakyBucket], requests leave at its rate.
// A refused request spends nothing, and its Retry-After says when a retry would be
// held or pass. After a wait, the limiter is asked once more for what is left.
//
// Requests of a key wait in line, in the order of arrival: see [ratelimit.Limiter]. [ratelimit.WithMaxWaiters] bounds how
// many; then others are refused at once. Where nobody knows when a turn comes, in stores that are not in memory
// and with a [ratelimit.InFlight] or [WithInFlight], a request is refused after maxDelay.
//
// If the client disconnects while its request is held, the request leaves the line, and those behind it
// move up. For a request with a body
// over HTTP/1, net/http notices a disconnect only after the body is read. The server's ReadTimeout
// goes on while a request is held. After it, the handler may be unable to read the body, so it
// should exceed maxDelay by the time that a body may take.
func WithShaping(maxDelay time.Duration) Option {
	return func(c *config) { c.shaping = maxDelay }
}

// A config is what the options make. newConfig checks it.
type config struct {
	key KeyFunc
	costing
	status     int
	denied     http.Handler // nil for the default response
	keyError   func(http.ResponseWriter, *http.Request, error)
	storeError func(*http.Request, error)
	skip       func(*http.Request) bool
	headers    Headers
	name       string
	shadow     func(*http.Request, ratelimit.Decision)
	shaping    time.Duration // the longest delay, or 0
	also       []*limit
	inFlight   bool
	told       bool          // whether handlers get the decision
	jitter     time.Duration // the most that is added to RetryAfter
	expose     bool          // whether scripts of other origins may read the header fields

	flightRetry time.Duration // the most that a refusal by an InFlight tells a client to wait

	partitionKey func(key string) []byte // nil if the RateLimit field has no pk

	answered, skipped, shadowed, storeErrorSet, partitioned bool // whether these options were given
}

// A costing is what a request costs in a limiter.
type costing struct {
	cost   func(*http.Request) int                              // nil if it is 1
	settle func(r *http.Request, status int, written int64) int // nil if requests are not settled
	hold   []ratelimit.HoldOption                               // until then

	costed, settled bool // whether these options were given
}

// check returns what is wrong with the options.
func (c *costing) check() error {
	switch {
	case c.costed && c.cost == nil:
		return invalid("WithCost's function", nil, "must return how many events a request counts as")
	case c.settled && c.settle == nil:
		return invalid("WithSettle's function", nil, "must return how many events a request has cost, as ByCost does")
	}
	_, _, err := anyLimiter.Hold(context.Background(), "", 0, c.hold...)
	if err != nil {
		return misuseError{param.Within("WithSettle", err)}
	}
	return nil
}

// anyLimiter knows which options a hold may have.
var anyLimiter = ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}))

// costs reports whether an option was given.
func (c *costing) costs() bool { return c.costed || c.settled }

// costOf returns how many events r is taken for.
func (c *costing) costOf(r *http.Request) (n int, err error) {
	if c.cost == nil {
		return 1, nil
	}
	if n = c.cost(r); n < 0 {
		err = costError(n)
	}
	return n, err
}

func newConfig(opts []Option) (*config, error) {
	c := &config{
		key:        ClientIP(),
		status:     http.StatusTooManyRequests,
		keyError:   BadRequest(),
		storeError: logStoreError(),
		name:       "default",

		flightRetry: time.Second,
	}
	for i, opt := range opts {
		if opt == nil {
			return nil, invalid(fmt.Sprintf("option %d of Middleware", i), nil, "must be the result of a With function")
		}
		opt(c)
	}
	return c, c.check()
}

// check returns what is wrong with the options.
func (c *config) check() error {
	switch {
	case c.key == nil:
		return invalid("WithKey's function", nil, "must be a KeyFunc, such as ClientIP()")
	case c.skipped && c.skip == nil:
		return invalid("WithSkip's function", nil, "must report which requests pass without a limit")
	case c.answered && param.IsNil(c.denied):
		return invalid("WithDenied's handler", nil, "must be a handler; omit the option for the default response")
	case c.keyError == nil:
		return invalid("WithKeyError's function", nil, "must answer a request, as BadRequest() does")
	case c.storeError == nil:
		return invalid("WithStoreError's function", nil, "must be a function to call with the error")
	case c.shadowed && c.shadow == nil:
		return invalid("WithShadow's function", nil, "must be a function to call for requests that would have been refused")
	case c.partitioned && c.partitionKey == nil:
		return invalid("WithPartitionKey's function", nil, "must return the partition key for a key; omit the option to send none")
	case c.jitter < 0:
		return invalid("WithJitter's maximum", c.jitter, "must not be negative")
	case c.flightRetry <= 0:
		return invalid("WithInFlightRetry's time", c.flightRetry, "must be positive")
	case c.shaping < 0:
		return invalid("WithShaping's delay", c.shaping, "must not be negative")
	case c.shadowed && c.shaping > 0:
		return invalid("WithShaping's delay", c.shaping, "must be 0 with WithShadow: remove one of the two")
	case c.shaping > 0 && c.also != nil:
		return invalid("WithShaping's delay", c.shaping, "must be 0 with WithAlso: remove one of the two")
	case c.status < 400 || c.status > 599:
		return invalid("WithStatus's code", c.status, "must be from 400 to 599")
	case c.headers < Standard || c.headers > Draft7:
		return invalid("WithHeaders's choice", int(c.headers), "must be Standard, Draft7, Legacy or None")
	case !ascii.IsPrintable(c.name):
		return invalid("WithPolicyName's name", fmt.Sprintf("%q", c.name), "must be one or more printable ASCII characters")
	}
	for _, l := range c.also {
		if err := l.check(); err != nil {
			return err
		}
	}
	if err := c.costing.check(); err != nil {
		return err
	}
	return misuseOf(c.key)
}
