// Package httplimit limits the requests that HTTP servers handle, with a [ratelimit.Limiter].
// Package [httplimit/client] is for the requests that clients send.
//
//	log.Fatal(http.ListenAndServe(":8080", httplimit.PerClient(ratelimit.PerMinute(60))(mux)))
//
// [PerClient] limits each client to a rate. [Middleware] applies any limiter. A [Gate] does so for
// handlers that decide themselves when to ask, and for limiters that come from a configuration.
//
// The middleware takes one event of the client's key for each request, reports in
// header fields how much is left, and answers a request over the limit with status
// 429 and the time to wait. The key is the client's IP address (see [clientip.Of], which must
// know the proxies that requests come through) unless [WithKey] sets another one. Package [key] has
// functions for header fields, cookies, users and routes, and joins several keys.
//
// With [WithCost], a request counts as several events. If its cost is known only
// later, [WithSettle] corrects it by the status of the response: failed logins only.
// [WithSettleAtEnd] corrects it when the handler has returned: bytes of the response, or what the
// handler tells [Cost]. With [WithAlso], a
// request counts under several keys, and as a number of events of its own in each limiter: a
// request, and its tokens.
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
// Nor is a limit protection from clients that do not read the response: their handlers wait in
// Write. Meanwhile a request of an InFlight stays in flight, until its Timeout, and a request of
// [WithSettle] stays held. So set the server's WriteTimeout, after which Write fails, or let
// handlers that stream set deadlines with [http.ResponseController.SetWriteDeadline].
//
// A request whose context has ended by its deadline is not handled: it is answered with 503,
// without a body, and what it has spent is given back. If the deadline passes while a store is
// asked, the [ratelimit.FailurePolicy] does not decide, because clients that choose a deadline
// shorter than a round trip to the store would not be limited otherwise. A request that is
// cancelled is decided on all the same if all its limits are in memory, and have no lookup
// ([ratelimit.WithLimits]): to net/http, a client that has closed its side of the connection, and
// waits for the answer, looks like one that has left. It does not wait, see [WithShaping]. If a
// limit is in another store, the request is refused.
//
// The page [docs/http.md] is an introduction.
//
// [httplimit/client]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit/client
// [docs/http.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/http.md
package httplimit

import (
	"net/http"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/handback"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// Middleware returns a function that wraps a handler so that l limits its requests.
// The handler gets the ResponseWriter as it is: streaming, HTTP/2 and upgraded
// connections work as without the middleware. Only [WithSettle] and [WithSettleAtEnd] wrap it.
//
// Each middleware counts a request. If two of one limiter are around a handler, such as one around
// the mux and one around a route, its requests count twice. Either leave one out, or give one of
// them a limiter of its own (and a name, see [WithPolicyName]).
//
// Middleware panics if l is nil, or if an option is nil, has an invalid argument, or cannot be
// combined with another one. Where these are not written in the source, but come from a
// configuration, use [Gate.Middleware]: [NewGate] returns an error that matches
// [ratelimit.ErrInvalid]. The function that Middleware returns panics if the handler is nil.
func Middleware(l ratelimit.Limiter, opts ...Option) func(http.Handler) http.Handler {
	g, err := NewGate(l, opts...)
	if err != nil {
		panic(err)
	}
	return g.Middleware
}

// Middleware wraps next so that the Gate decides about its requests, as the function Middleware
// says. It panics if next is nil.
func (g *Gate) Middleware(next http.Handler) http.Handler {
	if param.IsNil(next) {
		panic(invalid("the handler", nil, "must be the handler whose requests are limited"))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, next) })
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

// serve passes r to next, or refuses it.
func (g *Gate) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	var a Admission
	g.admit(r, &a)
	switch {
	case !a.Passed:
		a.Refuse(w, r)
	case a.isHeld():
		a.serveHeld(w, r, next)
	default:
		a.SetHeader(w.Header())
		inner := a.innerRequest()
		if inner != r {
			defer handback.Set(r, inner)
		}
		next.ServeHTTP(w, inner)
	}
}

// innerRequest returns the request for the handler.
func (a *Admission) innerRequest() *http.Request {
	if !a.isTold() && a.account == nil {
		return a.request
	}
	return a.request.WithContext(a.Context())
}

// serveHeld passes the request to next, and calls Done when next has returned or panicked or, if
// the status is all that Done needs, before next sends the header.
func (a *Admission) serveHeld(w http.ResponseWriter, r *http.Request, next http.Handler) {
	inner := a.innerRequest()
	a.request = inner
	if a.account == nil {
		defer func() {
			handback.Set(r, inner)
			a.Done(0, 0)
		}()
		a.SetHeader(w.Header())
		next.ServeHTTP(w, inner)
		return
	}
	recorder := &recorder{ResponseWriter: w}
	if a.gate.byStatus && !a.flies {
		settled := *a // so that an Admission which is not held need not be on the heap
		recorder.atHeader = func(status int) { settled.Done(status, 0) }
	}
	hasReturned := false
	defer func() {
		handback.Set(r, inner)
		a.Done(recorder.result(r.Method, hasReturned))
	}()
	a.SetHeader(w.Header())
	next.ServeHTTP(recorder, inner)
	hasReturned = true
}
