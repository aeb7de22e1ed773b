// Package httplimit limits the requests that HTTP servers handle and HTTP clients
// send, with a [ratelimit.Limiter].
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
//	log.Fatal(http.ListenAndServe(":8080", httplimit.Middleware(limiter)(mux)))
//
// [Middleware] takes one event of the client's key for each request, reports in
// header fields how much is left, and answers a request over the limit with status
// 429 and the time to wait. The key is the client's IP address (see [ClientIP])
// unless [WithKey] sets another one. [Transport] is for clients: it makes requests
// wait for their turn, and honours a server's Retry-After.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// An Option changes what [Middleware] does.
type Option func(*middleware)

// WithKey sets the function that returns the key of a request. The default is
// ClientIP().
func WithKey(key KeyFunc) Option { return func(m *middleware) { m.key = key } }

// WithCost sets the function that returns how many events a request counts as. The
// default is 1 for every request. A request that costs 0 passes without asking the
// limiter. A negative cost is handled like an error of the key, see [WithKeyError].
func WithCost(cost func(*http.Request) int) Option {
	return func(m *middleware) { m.cost, m.costed = cost, true }
}

// WithStatus sets the status code of the response to a request over the limit, from
// 400 to 599. The default is 429, Too Many Requests.
func WithStatus(code int) Option { return func(m *middleware) { m.status = code } }

// WithDenied makes h answer requests over the limit. The header fields are set before
// h is called. It gets the decision from [DecisionOf].
func WithDenied(h http.Handler) Option {
	return func(m *middleware) { m.denied, m.answered = h, true }
}

// WithKeyError makes f answer requests whose key or cost cannot be determined. The
// default is a [BadRequest] for each middleware. To limit such requests together,
// return one key for all of them from the [KeyFunc] instead of an error. To let them
// pass, use [WithSkip].
func WithKeyError(f func(http.ResponseWriter, *http.Request, error)) Option {
	return func(m *middleware) { m.keyError = f }
}

// WithStoreError calls f with the error when the limiter's store has failed. The
// limiter's [ratelimit.FailurePolicy] decides whether the request passes. The limiter
// logs such errors whether f is set or not; see [ratelimit.WithFailureLog]. Without
// WithStoreError, the middleware logs only errors of a limiter that does not mark its
// decision as Degraded, at most one line a second; the attribute left_out is the number
// of errors omitted since the previous line.
func WithStoreError(f func(*http.Request, error)) Option {
	return func(m *middleware) { m.storeError, m.storeErrorSet = f, true }
}

// WithSkip lets requests for which skip returns true pass without asking the
// limiter, such as health checks and internal requests.
func WithSkip(skip func(*http.Request) bool) Option {
	return func(m *middleware) { m.skip, m.skipped = skip, true }
}

// WithHeaders chooses the header fields that report how much is left: [Standard],
// the default, [Legacy] or [None]. In each case a refusal has Retry-After, unless no
// wait helps because the request costs more than the limit.
func WithHeaders(h Headers) Option { return func(m *middleware) { m.headers = h } }

// WithPolicyName sets the name of the limit in header fields and bodies. The default
// is "default". The parts of a [ratelimit.All] have a number after the name:
// "default-1", "default-2". The name must consist of printable ASCII characters.
func WithPolicyName(name string) Option { return func(m *middleware) { m.name = name } }

// WithShadow lets every request pass, and calls report for those that would have
// been refused, to try a limit before enforcing it. No header fields are sent. If
// the key or the cost cannot be determined, report gets a zero Decision. WithShadow
// cannot be combined with [WithShaping].
func WithShadow(report func(*http.Request, ratelimit.Decision)) Option {
	return func(m *middleware) { m.shadow, m.shadowed = report, true }
}

// WithShaping holds a request until its turn instead of refusing it, if its turn
// comes within maxDelay, measured by the limiter's clock, and before the deadline of
// the request's context. With a [ratelimit.LeakyBucket], requests leave at its rate.
// A refused request spends nothing, and its Retry-After says when a retry would be
// held or pass.
//
// If the client disconnects while its request is held, the reservation is cancelled,
// which gives back what [ratelimit.Reservation.Cancel] can. For a request with a body
// over HTTP/1, net/http notices a disconnect only after the body is read.
func WithShaping(maxDelay time.Duration) Option {
	return func(m *middleware) { m.shaping = maxDelay }
}

// A middleware is the configuration that the options make.
type middleware struct {
	limiter    ratelimit.Limiter
	key        KeyFunc
	cost       func(*http.Request) int
	status     int
	denied     http.Handler // nil if refusal answers
	refusal    *refusal
	keyError   func(http.ResponseWriter, *http.Request, error)
	storeError func(*http.Request, error)
	skip       func(*http.Request) bool
	headers    Headers
	name       string
	policies   policies
	shadow     func(*http.Request, ratelimit.Decision)
	shadowed   bool             // whether WithShadow was given
	shaping    time.Duration    // the longest delay, or 0
	now        func() time.Time // the time of the limiter's clock

	costed, answered, skipped, storeErrorSet bool // whether these options were given
}

// Middleware returns a function that wraps a handler so that l limits its requests.
// The handler gets the ResponseWriter as it is: streaming, HTTP/2 and upgraded
// connections work as without the middleware.
//
// If an option has an invalid value, or the limiter or the handler is nil, every
// request is answered with status 500 and a body that says what is wrong. The first
// such request is logged with slog.
func Middleware(l ratelimit.Limiter, opts ...Option) func(http.Handler) http.Handler {
	m := &middleware{
		limiter:    l,
		key:        ClientIP(),
		status:     http.StatusTooManyRequests,
		keyError:   BadRequest(),
		storeError: logStoreError(),
		name:       "default",
	}
	for i, opt := range opts {
		if opt == nil {
			return misuse(fmt.Errorf("httplimit: option %d of Middleware is nil: it must be the result of a With function", i))
		}
		opt(m)
	}
	if err := m.check(); err != nil {
		return misuse(err)
	}
	m.now = time.Now
	if clk := ratelimit.ClockOf(l); clk != nil {
		m.now = clk.Now
	}
	m.policies = newPolicies(m.name, l)
	m.refusal = newRefusal(m.status, m.policies.names)
	return func(next http.Handler) http.Handler {
		if isNil(next) {
			return misused(errors.New("httplimit: the handler is nil: pass the handler to be limited"))
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

// BadRequest returns a function for [WithKeyError]. It answers with 400, Bad Request. It
// shows the client only an [ErrNoKey], and logs other errors with slog, at most one line
// a second; the attribute left_out is the number of errors omitted since the previous
// line. Middlewares that share the function share this bound.
func BadRequest() func(http.ResponseWriter, *http.Request, error) {
	var warnings limitedLog
	return func(w http.ResponseWriter, r *http.Request, err error) {
		text := "cannot determine the client of this request"
		if errors.Is(err, ErrNoKey) {
			text += ": " + err.Error()
		} else { // the error may contain what the client must not see
			warnings.warn(r.Context(), "httplimit: "+text, err)
		}
		http.Error(w, text, http.StatusBadRequest)
	}
}

func logStoreError() func(*http.Request, error) {
	var warnings limitedLog
	return func(r *http.Request, err error) {
		warnings.warn(r.Context(), "httplimit: the limiter failed", err)
	}
}

// serve passes r to next, or refuses it.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.skip != nil && m.skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	key, n, err := m.ask(r)
	if err != nil {
		if m.shadow != nil {
			m.shadow(r, ratelimit.Decision{})
			next.ServeHTTP(w, r)
		} else {
			m.keyError(w, r, err)
		}
		return
	}
	if n == 0 {
		next.ServeHTTP(w, r)
		return
	}
	turn, d, err := m.decide(r.Context(), key, n)
	if err != nil {
		if ended := r.Context().Err(); ended != nil && errors.Is(err, ended) && !d.Degraded {
			m.ended(w, r, next)
			return
		}
		if m.storeErrorSet || !d.Degraded { // the limiter logs that a policy decided
			m.storeError(r, err)
		}
	}
	if err := hold(r.Context(), turn, &d); err != nil {
		m.ended(w, r, next)
		return
	}
	switch {
	case m.shadow != nil:
		if !d.Allowed {
			m.shadow(r, d)
		}
		next.ServeHTTP(w, r)
	case d.Allowed:
		m.setHeaders(w.Header(), d)
		next.ServeHTTP(w, r)
	default:
		h := w.Header()
		m.setHeaders(h, d)
		if m.denied == nil {
			m.refusal.answer(w, r, d, m.policies.part(d))
			return
		}
		h["Cache-Control"] = []string{"no-store"}
		m.denied.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), decisionKey{}, d)))
	}
}

// ended answers a request whose context ended before a decision was made: the client
// has disconnected, or the deadline has passed. With WithShadow, it passes.
func (m *middleware) ended(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.shadow != nil {
		next.ServeHTTP(w, r)
		return
	}
	w.Header()["Cache-Control"] = []string{"no-store"}
	w.WriteHeader(http.StatusServiceUnavailable)
}

// ask returns the key of r, and how many events it counts as.
func (m *middleware) ask(r *http.Request) (key string, n int, err error) {
	n = 1
	if m.cost != nil {
		if n = m.cost(r); n < 0 {
			return "", 0, costError(n)
		}
	}
	if n > 0 {
		if key, err = m.key(r); err == nil && key == "" {
			err = fmt.Errorf("%w: the key is empty", ErrNoKey) // clients must not share a key by mistake
		}
	}
	return key, n, err
}

// decide takes n events of key, or reserves them if WithShaping was given. The error
// is that of the store, or of ctx.
func (m *middleware) decide(ctx context.Context, key string, n int) (*ratelimit.Reservation, ratelimit.Decision, error) {
	if m.shaping == 0 {
		d, err := m.limiter.Take(ctx, key, n)
		return nil, d, err
	}
	most := m.shaping
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, max(0, time.Until(deadline)))
	}
	return m.limiter.ReserveWithin(ctx, key, n, most)
}

// hold waits for the turn of the reservation, by the limiter's clock.
func hold(ctx context.Context, r *ratelimit.Reservation, d *ratelimit.Decision) error {
	if r == nil || d.Delay == 0 {
		return nil
	}
	if err := r.Wait(ctx); err != nil {
		return err
	}
	d.ResetAfter -= min(d.Delay, d.ResetAfter)
	return nil
}

type decisionKey struct{}

// DecisionOf returns the decision that refused r. It is for the handler given to
// [WithDenied]; for other requests, ok is false.
func DecisionOf(r *http.Request) (d ratelimit.Decision, ok bool) {
	d, ok = r.Context().Value(decisionKey{}).(ratelimit.Decision)
	return d, ok
}
