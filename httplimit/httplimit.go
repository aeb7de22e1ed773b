// Package httplimit limits the requests that HTTP servers handle, with a [ratelimit.Limiter].
// Package [httplimit/client] is for the requests that clients send.
//
//	log.Fatal(http.ListenAndServe(":8080", httplimit.PerClient(ratelimit.PerMinute(60))(mux)))
//
// [PerClient] limits each client to a rate. [Middleware] applies any limiter, and [New] does so
// and returns an error where Middleware panics.
//
// The middleware takes one event of the client's key for each request, reports in
// header fields how much is left, and answers a request over the limit with status
// 429 and the time to wait. The key is the client's IP address (see [clientip.Of], which must
// know the proxies that requests come through) unless [WithKey] sets another one. Package [key] has
// functions for header fields, cookies, users and routes, and joins several keys.
//
// With [WithCost], a request counts as several events. If its cost is known only when its
// handler has returned, [WithSettle] corrects it: failed logins only, bytes of the response,
// or what the handler tells [Cost]. With [WithAlso], a request counts under several keys, and as a
// number of events of its own in each limiter: a request, and its tokens.
//
// With a [ratelimit.InFlight], alone or in a [ratelimit.All], a request is in flight while its
// handler runs:
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.All{
//		ratelimit.InFlight{Limit: 5, Timeout: time.Minute},
//		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(100)},
//	}))
//
// Middleware releases it when the handler returns or panics, even if its client has left. A
// handler that passes a hijacked connection to another goroutine is released before the
// connection ends. A request that runs longer than the Timeout is not counted any more. If the
// keys have limits of their own, see [WithInFlight].
//
// A limit is no protection from clients that announce a body and do not send it. Over HTTP/1,
// net/http reads up to 256 KiB of an unread body before it sends the response, also of a request
// that is refused. So set the server's ReadTimeout: without it, such a connection and its goroutine
// stay for as long as the client likes, and ReadHeaderTimeout does not end them.
//
// The page [docs/http.md] is an introduction.
//
// [httplimit/client]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit/client
// [docs/http.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/http.md
package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// Middleware returns a function that wraps a handler so that l limits its requests.
// The handler gets the ResponseWriter as it is: streaming, HTTP/2 and upgraded
// connections work as without the middleware. Only [WithSettle] wraps it.
//
// Each middleware counts a request. If two of one limiter are around a handler, such as one around the
// mux and one around a route, its requests count twice. Either leave one out, or give one of them a
// limiter of its own (and a name, see [WithPolicyName]).
//
// Middleware panics if l is nil, or if an option is nil, has an invalid argument, or cannot be
// combined with another one. [New] returns the error that Middleware panics with. It matches
// [ratelimit.ErrInvalid]. The function that both return panics if the handler is nil.
func Middleware(l ratelimit.Limiter, opts ...Option) func(http.Handler) http.Handler {
	limited, err := New(l, opts...)
	if err != nil {
		panic(err)
	}
	return limited
}

// New is Middleware for limiters and options that are not written in the source, but come from a
// configuration, for example: it returns an error where Middleware panics.
func New(l ratelimit.Limiter, opts ...Option) (func(http.Handler) http.Handler, error) {
	if param.IsNil(l) {
		return nil, invalid("the limiter", nil, "must be a Limiter, such as ratelimit.New returns")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	m := newMiddleware(c, l)
	if err := m.policies.check(); err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		if param.IsNil(next) {
			panic(invalid("the handler", nil, "must be the handler whose requests are limited"))
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

// PerClient is Middleware with a limiter of its own, a [ratelimit.TokenBucket] of the given
// rate:
//
//	log.Fatal(http.ListenAndServe(":8080", httplimit.PerClient(ratelimit.PerMinute(60))(mux)))
//
// Each client may make rate.Events requests at once, and as many per rate.Per in the long
// run. The handlers that the returned function wraps share the limit. PerClient panics if
// rate is not positive, and where Middleware does.
func PerClient(rate ratelimit.Rate, opts ...Option) func(http.Handler) http.Handler {
	return Middleware(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: rate})), opts...)
}

// A middleware limits the requests of one handler or several.
type middleware struct {
	*config
	limits   []*limit    // the limiter of Middleware, and those of WithAlso
	policies *policies   // of all keys
	standIns *policies   // of limits that decide in place of those of the keys, of which only the names are known
	perKey   bool        // whether each key may have its own, see policiesOf
	flies    bool        // whether requests are released when their handler is done
	settles  bool        // whether they are settled then
	apart    bool        // whether a limiter has a costing of its own
	clk      clock.Clock // that of the first limiter
	warnings limitedLog  // of errors of the limiters, without WithStoreError
}

func newMiddleware(c *config, l ratelimit.Limiter) *middleware {
	m := &middleware{config: c, flies: c.inFlight, settles: c.settle != nil, clk: ratelimit.Describe(l).Clock}
	if m.clk == nil {
		m.clk = clock.New()
	}
	m.limits = append([]*limit{{limiter: l, key: c.key, name: c.name}}, c.also...)
	all, standIns := make([]*policies, len(m.limits)), make([]*policies, len(m.limits))
	for i, l := range m.limits {
		l.describe(c.status)
		all[i], standIns[i] = l.policies, newPolicies(l.name, c.status, nil)
		m.perKey = m.perKey || l.info.Lookup != nil
		m.flies = m.flies || flies(l.limiter)
		m.settles = m.settles || l.settle != nil
		m.apart = m.apart || l.costs()
	}
	m.policies, m.standIns = combined(all), combined(standIns)
	return m
}

// BadRequest returns a function for [WithKeyError]. It answers with 400, Bad Request. It shows the
// client only errors that match [key.ErrNone], and logs other errors with slog, at most one line a
// second; the attribute left_out is the number of errors omitted since the previous line.
// Middlewares that share the function share this bound.
func BadRequest() func(http.ResponseWriter, *http.Request, error) {
	var warnings limitedLog
	return func(w http.ResponseWriter, r *http.Request, err error) {
		text := "cannot determine the client of this request"
		if errors.Is(err, key.ErrNone) {
			text += ": " + err.Error()
		} else { // the error may contain what the client must not see
			warnings.warn(r.Context(), "httplimit: "+text, err)
		}
		http.Error(w, text, http.StatusBadRequest)
	}
}

// serve passes r to next, or refuses it.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.skip != nil && m.skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	q, err := m.ask(r)
	if err != nil {
		if m.shadow != nil {
			m.shadow(r, ratelimit.Decision{})
			next.ServeHTTP(w, r)
		} else {
			prepareRefusal(w.Header())
			m.keyError(w, r, err)
		}
		return
	}
	if q.free {
		next.ServeHTTP(w, r)
		return
	}
	a, err := m.decide(r.Context(), q)
	if a.turn != nil && (m.flies || m.settles) {
		m.serveHeld(w, r, next, q, &a, err)
	} else {
		m.serveDecided(w, r, next, q, &a, err)
	}
}

// serveHeld is serveDecided for a request that holds events. If it is not passed to next, because
// its client has left or a function of the program has panicked, it gives them back. What is in
// flight is released afterwards.
func (m *middleware) serveHeld(w http.ResponseWriter, r *http.Request, next http.Handler, q question, a *answer, err error) {
	defer func() {
		switch {
		case !a.passed:
			m.cancel(r, a.turn)
		case m.flies:
			m.release(r, a.turn)
		}
	}()
	m.serveDecided(w, r, next, q, a, err)
}

// cancel gives back what h holds.
func (m *middleware) cancel(r *http.Request, h *ratelimit.Reservation) {
	_, err := h.Settle(context.WithoutCancel(r.Context()), 0)
	if errors.Is(err, ratelimit.ErrEnded) { // a Wait whose context has ended has given it back
		return
	}
	m.report(r, ratelimit.Decision{Degraded: true}, err) // only a store fails here
}

// serveDecided passes r to next, or refuses it, as a says. err is the error of decide.
func (m *middleware) serveDecided(w http.ResponseWriter, r *http.Request, next http.Handler, q question, a *answer, err error) {
	if err != nil {
		if ended := r.Context().Err(); ended != nil && errors.Is(err, ended) && !a.Degraded {
			m.ended(w, r, next, q, a)
			return
		}
		m.report(r, a.Decision, err)
	}
	switch {
	case m.shadow != nil:
		if !a.Allowed {
			m.shadow(r, a.Decision)
		}
		m.pass(w, r, next, q, a)
	case a.Allowed:
		p := m.policiesOf(r.Context(), q, a.Decision)
		d := a.Decision
		if m.headers != None {
			d = p.shown(r.Context(), q, d)
		}
		m.setHeaders(w.Header(), d, p, m.partition(q, a.Decision))
		m.pass(w, r, next, q, a)
	default:
		h, p := w.Header(), m.policiesOf(r.Context(), q, a.Decision)
		d := m.hinted(p.shown(r.Context(), q, a.Decision), p)
		m.setHeaders(h, d, p, m.partition(q, a.Decision))
		if m.denied == nil {
			p.refusal.answer(w, r, d, p.part(d))
			return
		}
		prepareRefusal(h)
		m.denied.ServeHTTP(w, withDecision(withReport(r, d, p), a.Decision))
	}
}

// pass passes r to next.
func (m *middleware) pass(w http.ResponseWriter, r *http.Request, next http.Handler, q question, a *answer) {
	a.passed = true
	if m.told {
		inner := withDecision(r, a.Decision)
		defer handBack(r, inner)
		r = inner
	}
	if m.settles && a.turn != nil {
		m.serveSettled(w, r, next, a.turn, q)
	} else {
		next.ServeHTTP(w, r)
	}
}

// report reports the error that came with d.
func (m *middleware) report(r *http.Request, d ratelimit.Decision, err error) {
	switch {
	case err == nil:
	case m.storeError != nil:
		m.storeError(r, err)
	case !d.Degraded || errors.Is(err, ratelimit.ErrDebt): // a limiter logs that a policy decided
		m.warnings.warn(r.Context(), "httplimit: the limiter failed", err)
	}
}

// ended answers a request whose context ended before a decision was made: the client
// has disconnected, or the deadline has passed. With WithShadow, it passes.
func (m *middleware) ended(w http.ResponseWriter, r *http.Request, next http.Handler, q question, a *answer) {
	if m.shadow != nil {
		m.pass(w, r, next, q, a)
		return
	}
	prepareRefusal(w.Header())
	w.WriteHeader(http.StatusServiceUnavailable)
}

// A question is what the limiters are asked about a request.
type question struct {
	n     int               // how many events it counts as
	costs []int             // the same for each limiter, if one has a costing of its own
	free  bool              // whether all of these are 0: then the rest is empty
	key   string            // its key for the first limiter
	all   []ratelimit.Bound // its keys for all limiters, if there are several
}

// ask returns the question that r is.
func (m *middleware) ask(r *http.Request) (q question, err error) {
	if q.n, err = m.costOf(r); err != nil {
		return question{}, err
	}
	q.free = q.n == 0
	if m.apart {
		q.costs = make([]int, len(m.limits))
		for i, l := range m.limits {
			if q.costs[i] = q.n; l.costs() {
				if q.costs[i], err = l.costOf(r); err != nil {
					return question{}, err
				}
			}
			q.free = q.free && q.costs[i] == 0
		}
	}
	if q.free {
		return q, nil
	}
	if q.key, err = m.limits[0].keyOf(r); err != nil || len(m.limits) == 1 {
		return q, err
	}
	q.all = make([]ratelimit.Bound, len(m.limits))
	q.all[0] = ratelimit.For(m.limits[0].limiter, q.key, m.hold...)
	for i, l := range m.limits[1:] {
		key, err := l.keyOf(r)
		if err != nil {
			return question{}, err
		}
		if l.costs() {
			q.all[i+1] = ratelimit.For(l.limiter, key, l.hold...).N(q.costs[i+1])
		} else {
			q.all[i+1] = ratelimit.For(l.limiter, key, m.hold...)
		}
	}
	return q, nil
}

// An answer is what the limiters say.
type answer struct {
	ratelimit.Decision
	turn   *ratelimit.Reservation // to wait for, to settle or to release; nil if nothing is held
	passed bool                   // whether the request was passed to the handler, which settles what it held
}

// decide takes what q asks for. It holds or reserves it if the options need that. The error
// is that of the store, or of ctx.
func (m *middleware) decide(ctx context.Context, q question) (a answer, err error) {
	l, hold := m.limits[0].limiter, m.flies || m.settles
	switch {
	case q.all != nil && hold:
		a.turn, a.Decision, err = ratelimit.HoldAll(ctx, q.n, q.all...)
	case q.all != nil:
		a.Decision, err = ratelimit.TakeAll(ctx, q.n, q.all...)
	case m.shaping > 0:
		return m.wait(ctx, l, q)
	default:
		return m.take(ctx, l, q)
	}
	return a, err
}

// take takes what q asks for of one limiter, now.
func (m *middleware) take(ctx context.Context, l ratelimit.Limiter, q question) (a answer, err error) {
	if m.flies || m.settles {
		a.turn, a.Decision, err = l.Hold(ctx, q.key, q.n, m.hold...)
	} else {
		a.Decision, err = l.Take(ctx, q.key, q.n)
	}
	return a, err
}

// nowLeft returns the decision on a request that was granted after a wait.
func (m *middleware) nowLeft(ctx context.Context, q question) (ratelimit.Decision, error) {
	d, err := m.limits[0].limiter.Peek(ctx, q.key)
	d.Allowed, d.RetryAfter, d.Delay = true, 0, 0
	return d, err
}

// shown returns d, a decision on q, with the Part that it has in p.
func (p *policies) shown(ctx context.Context, q question, d ratelimit.Decision) ratelimit.Decision {
	if p.starts == nil {
		return d
	}
	decided := q.all[d.Part]
	first, end := p.starts[d.Part], len(p.names)
	if d.Part+1 < len(p.starts) {
		end = p.starts[d.Part+1]
	}
	if d.Part = first; end-first == 1 || d.Degraded {
		return d
	}
	// Peek names the part with the least left, or one that refuses a single event. If d is a
	// refusal, that part refuses its events.
	if now, err := decided.Limiter().Peek(ctx, decided.Key()); err == nil {
		d.Part = min(first+now.Part, end-1)
	}
	return d
}
