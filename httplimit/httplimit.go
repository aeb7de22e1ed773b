// Package httplimit puts a [ratelimit.Limiter] in front of HTTP handlers, and
// behind HTTP clients.
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
//	http.ListenAndServe(":8080", httplimit.Middleware(limiter)(mux))
//
// [Middleware] takes one event of the client's key for each request, tells the
// client in header fields what is left, and answers a request over the limit
// with 429 and the time to wait. The key is the client's address, see [ClientIP],
// unless [WithKey] says otherwise. [Transport] is the other side: it makes
// requests wait for their turn, and heeds a server's Retry-After.
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

// WithKey says whose limit a request counts against. The default is ClientIP().
func WithKey(key KeyFunc) Option { return func(m *middleware) { m.key = key } }

// WithCost says how many events a request is; 0 lets it through without asking.
// The default is 1 for each. A negative cost is answered as a failing key is.
func WithCost(cost func(*http.Request) int) Option {
	return func(m *middleware) { m.cost, m.costed = cost, true }
}

// WithStatus sets the status of a request over the limit: from 400 to 599, by
// default 429, Too Many Requests.
func WithStatus(code int) Option { return func(m *middleware) { m.status = code } }

// WithDenied lets h answer requests over the limit. When it is called, the header
// fields are set already; [DecisionOf] tells it more.
func WithDenied(h http.Handler) Option {
	return func(m *middleware) { m.denied, m.answered = h, true }
}

// WithKeyError lets f answer requests whose key or cost cannot be told. The default
// is 400, Bad Request; an error that is not [ErrNoKey] is not shown to the client, but
// logged with slog, at most once a second. To limit them together, have the [KeyFunc]
// return one key instead of an error; to let them through, see [WithSkip].
func WithKeyError(f func(http.ResponseWriter, *http.Request, error)) Option {
	return func(m *middleware) { m.keyError = f }
}

// WithStoreError calls f when the limiter's store has failed, with its error.
// What becomes of the request, the limiter's [ratelimit.FailurePolicy] says. The
// default logs it with slog: at most one line a second, with left_out, how many
// were left out since the one before.
func WithStoreError(f func(*http.Request, error)) Option {
	return func(m *middleware) { m.storeError = f }
}

// WithSkip lets requests through that skip is true for, without asking the
// limiter: health checks, or what comes from inside.
func WithSkip(skip func(*http.Request) bool) Option {
	return func(m *middleware) { m.skip, m.skipped = skip, true }
}

// WithHeaders chooses the header fields that tell what is left: [Standard], the
// default, [Legacy] or [None]. Whichever it is, a refusal has Retry-After, except
// of a request that no wait will make possible: one whose cost exceeds the limit.
func WithHeaders(h Headers) Option { return func(m *middleware) { m.headers = h } }

// WithPolicyName names the limit in header fields and bodies, by default
// "default". The parts of a [ratelimit.All] are told apart by a number after the
// name: "default-1", "default-2". It must be of printable ASCII characters.
func WithPolicyName(name string) Option { return func(m *middleware) { m.name = name } }

// WithShadow lets every request through, and calls report with those that would
// have been refused: to see what a limit would do before it is turned on. No
// header fields are sent. Of a request whose key cannot be told, the decision is
// zero. It cannot be told what [WithShaping] would have held: leave that out.
func WithShadow(report func(*http.Request, ratelimit.Decision)) Option {
	return func(m *middleware) { m.shadow, m.shadowed = report, true }
}

// WithShaping holds a request until its turn instead of refusing it, if its turn
// comes within most, measured by the limiter's clock, and before the request's
// context ends: with a [ratelimit.LeakyBucket], requests leave at its rate. A
// request that is refused has spent nothing, and Retry-After tells when its turn
// will be near enough.
//
// If the client goes away while its request is held, the place is given back as
// far as [ratelimit.Reservation.Cancel] can. net/http notices that only once the
// request's body is read, if it has one and comes over HTTP/1.
func WithShaping(most time.Duration) Option { return func(m *middleware) { m.shaping = most } }

// A middleware is what the options make.
type middleware struct {
	limiter    ratelimit.Limiter
	key        KeyFunc
	cost       func(*http.Request) int
	status     int
	denied     http.Handler // nil for refusal
	refusal    *refusal
	keyError   func(http.ResponseWriter, *http.Request, error)
	storeError func(*http.Request, error)
	skip       func(*http.Request) bool
	headers    Headers
	name       string
	policies   policies
	shadow     func(*http.Request, ratelimit.Decision)
	shadowed   bool // whether there is to be one
	shaping    time.Duration
	now        func() time.Time // what the limiter's clock shows

	costed, answered, skipped bool // whether there is to be a cost, a denied, a skip
}

// Middleware returns what puts l in front of a handler. The handler gets the
// ResponseWriter as it is: streaming, HTTP/2 and upgraded connections work as
// without it.
//
// An option that cannot be used, or a limiter or handler that is nil, is a mistake
// that no request can work around: every request is answered with 500 and a body
// that names it, and the first one is logged.
func Middleware(l ratelimit.Limiter, opts ...Option) func(http.Handler) http.Handler {
	m := &middleware{
		limiter:    l,
		key:        ClientIP(),
		status:     http.StatusTooManyRequests,
		keyError:   badRequest(),
		storeError: logStoreError(),
		name:       "default",
	}
	for _, opt := range opts {
		if opt != nil {
			opt(m)
		}
	}
	if err := m.check(); err != nil {
		return func(http.Handler) http.Handler { return misused(err) }
	}
	m.now = time.Now
	if clk := ratelimit.ClockOf(l); clk != nil {
		m.now = clk.Now
	}
	m.policies = newPolicies(m.name, l)
	m.refusal = newRefusal(m.status, m.policies.names)
	return func(next http.Handler) http.Handler {
		if isNil(next) {
			return misused(errors.New("httplimit: the handler behind the limit is nil: give the one that serves what is allowed"))
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

// badRequest returns what answers a request whose key or cost cannot be told.
func badRequest() func(http.ResponseWriter, *http.Request, error) {
	var log valve
	return func(w http.ResponseWriter, r *http.Request, err error) {
		text := "cannot tell whose request this is"
		if errors.Is(err, ErrNoKey) {
			text += ": " + err.Error()
		} else { // which may say what is not for the client
			log.warn(r.Context(), "httplimit: "+text, err)
		}
		http.Error(w, text, http.StatusBadRequest)
	}
}

func logStoreError() func(*http.Request, error) {
	var log valve
	return func(r *http.Request, err error) {
		log.warn(r.Context(), "httplimit: the limiter's store failed", err)
	}
}

// serve lets r through to next, or not.
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
		m.storeError(r, err)
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
		m.tell(w.Header(), d)
		next.ServeHTTP(w, r)
	default:
		h := w.Header()
		m.tell(h, d)
		if m.denied == nil {
			m.refusal.answer(w, r, d, m.policies.part(d))
			return
		}
		h["Cache-Control"] = []string{"no-store"}
		m.denied.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), decisionKey{}, d)))
	}
}

// ended answers a request that is over before anything was decided: its client has
// gone away, or its time is up. Shadow changes nothing for it either.
func (m *middleware) ended(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.shadow != nil {
		next.ServeHTTP(w, r)
		return
	}
	w.Header()["Cache-Control"] = []string{"no-store"}
	w.WriteHeader(http.StatusServiceUnavailable)
}

// ask returns the key of r, and how many events it is.
func (m *middleware) ask(r *http.Request) (key string, n int, err error) {
	n = 1
	if m.cost != nil {
		if n = m.cost(r); n < 0 {
			return "", 0, costError(n)
		}
	}
	if n > 0 {
		if key, err = m.key(r); err == nil && key == "" {
			err = fmt.Errorf("%w: it is empty", ErrNoKey) // and must not be everybody's
		}
	}
	return key, n, err
}

// decide takes n events of key, or reserves them if they may wait. The error is
// that of a store.
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

// hold waits for the turn of what was reserved, by the limiter's clock.
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

// DecisionOf returns the decision on a request that was refused, to the handler
// given to [WithDenied].
func DecisionOf(r *http.Request) (d ratelimit.Decision, ok bool) {
	d, ok = r.Context().Value(decisionKey{}).(ratelimit.Decision)
	return d, ok
}
