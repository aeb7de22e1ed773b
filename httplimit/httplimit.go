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
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// Middleware returns a function that wraps a handler so that l limits its requests.
// The handler gets the ResponseWriter as it is: streaming, HTTP/2 and upgraded
// connections work as without the middleware.
//
// If an option has an invalid value, or the limiter or the handler is nil, every
// request is answered with status 500 and a body that says what is wrong. The first
// such request is logged with slog. The same goes for a [KeyFunc] made by [ClientIP] or
// [Join] with an invalid argument, except that requests which need no key pass.
func Middleware(l ratelimit.Limiter, opts ...Option) func(http.Handler) http.Handler {
	c, err := newConfig(opts)
	if param.IsNil(l) {
		err = invalid("the limiter", nil, "must be a Limiter, such as ratelimit.New returns")
	}
	if err != nil {
		return func(http.Handler) http.Handler { return misused(err) }
	}
	m := &middleware{config: c, limiter: l}
	m.now = time.Now
	if clk := ratelimit.ClockOf(l); clk != nil {
		m.now = clk.Now
	}
	alg := ratelimit.AlgorithmOf(l)
	m.policies, m.perKey = newPolicies(m.config, alg), alg == nil
	return func(next http.Handler) http.Handler {
		if param.IsNil(next) {
			return misused(invalid("the handler", nil, "must be the handler whose requests are limited"))
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

// A middleware limits the requests of one handler or several.
type middleware struct {
	*config
	limiter  ratelimit.Limiter
	policies *policies        // of all keys
	perKey   bool             // whether each key may have its own, see policiesOf
	own      policyCache      // for policiesOf
	now      func() time.Time // the time of the limiter's clock
	misuse   misuse           // answers if the key is misused
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
		if isMisuse(err) {
			m.misuse.answer(w, r, err)
			return
		}
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
		m.setHeaders(w.Header(), d, m.policiesOf(r.Context(), key, d))
		next.ServeHTTP(w, r)
	default:
		h, p := w.Header(), m.policiesOf(r.Context(), key, d)
		m.setHeaders(h, d, p)
		if m.denied == nil {
			p.refusal.answer(w, r, d, p.part(d))
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
