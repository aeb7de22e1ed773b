package httplimit

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// WithSettle is for requests whose cost is known only when their handler has returned. The
// middleware holds the cost of a request (1, or what the function of [WithCost] estimates)
// before the handler is called. Afterwards it settles with what f returns: it gives the
// difference back, as if only that had been taken when the request came, or charges it beyond the limit
// (see [ratelimit.Reservation.Settle], and docs/holds.md for each algorithm).
//
// For example, this counts failed logins only:
//
//	httplimit.WithSettle(func(r *http.Request, status int, written int64) int {
//		if status == http.StatusUnauthorized {
//			return 1
//		}
//		return 0
//	})
//
// f gets the request that the handler got, and the status and the number of bytes of the body
// (0 for HEAD) that the handler wrote to its ResponseWriter. Handlers of Gin and Echo
// write elsewhere: packages ginlimit and echolimit of module httplimit/routers see to that. If the
// handler has sent nothing, status is 200, or 500 if it panicked. Informational statuses do not
// count. If the handler hijacked the connection, status is 101 unless it sent another one
// before, and written is what it wrote before. [CostOf] returns what the handler told [Cost],
// and [ByCost] is an f that settles with it.
//
// With [WithAlso], limiters can have a WithSettle of their own: for cents, f may return what the
// tokens of CostOf cost.
//
// A request that is not settled within ten minutes, because its handler takes longer or its process
// has crashed, counts as it was held. opts change that: [ratelimit.HoldFor] is for longer ones, and with
// [ratelimit.GiveBack] such a request counts nothing.
//
// A request is settled when its handler returns or panics, even if its client has left or its
// deadline has passed. A handler that passes a hijacked connection to another goroutine is
// settled before the connection ends. Requests that are refused, skipped or cost 0 are not
// settled. Nor are those that [WithShadow] lets pass although they would have been refused.
// The header fields are sent before, and say what was left after the hold.
//
// If f panics or returns a negative number, the cost that was held remains. Such a number,
// and an error of Settle, are passed to the function of [WithStoreError]. If the store failed
// before the handler was called and the [ratelimit.FailurePolicy] let the request pass,
// nothing is held, and Settle charges all that f returns.
//
// With WithSettle, the handler gets a ResponseWriter that works with [http.ResponseController]. It
// always implements [http.Flusher], [http.Hijacker] and [io.ReaderFrom]. If the one in it cannot do
// the same, Flush does nothing, Hijack returns an error that matches [http.ErrNotSupported], and
// ReadFrom calls Write. A handler that must know whether it can flush asks the Flush of
// ResponseController, which returns such an error as well. The ResponseWriter does not implement
// [http.Pusher] and the deprecated [http.CloseNotifier].
//
// A request takes one more call of the store, which is made before the response ends.
func WithSettle(f func(r *http.Request, status int, written int64) int, opts ...ratelimit.HoldOption) Option {
	return func(c *config) {
		c.require(f != nil, "WithSettle's function", nil, "must return how many events a request has cost, as ByCost does")
		if _, _, err := anyLimiter.Hold(context.Background(), "", 0, opts...); err != nil {
			c.fail(param.Within("WithSettle", err))
		}
		c.settle, c.hold = f, opts
	}
}

// anyLimiter knows which options a hold may have.
var anyLimiter = ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}))

// Cost says that the request r has cost n events, in the unit of the limit. A handler behind
// a Middleware with [WithSettle] calls it with the request that it got, or one made from that
// by WithContext. Calls add up, so that a handler that streams can call it for each chunk.
// n may be negative, to correct earlier calls. If several such middlewares are around the
// handler, Cost counts for each of them.
//
// Any number of goroutines may call Cost at once. It does nothing after the handler has
// returned, and without WithSettle.
func Cost(r *http.Request, n int) {
	for a := accountOf(r); a != nil; a = a.outer {
		a.add(n)
	}
}

// CostOf returns the sum of what the handler of r has told [Cost]. ok is whether it has
// called Cost.
func CostOf(r *http.Request) (sum int, ok bool) {
	a := accountOf(r)
	if a == nil {
		return 0, false
	}
	return a.cost()
}

// ByCost is a function for [WithSettle]. It returns the sum of what the handler has told
// [Cost], or the cost that was held if the handler has not called Cost: a handler whose
// request was free calls Cost with 0.
func ByCost(r *http.Request, _ int, _ int64) int {
	a := accountOf(r)
	if a == nil {
		return 0
	}
	if sum, ok := a.cost(); ok {
		return sum
	}
	return a.held
}

// An account has what a request has cost so far.
type account struct {
	outer *account // of the middleware around this one, or nil
	held  int      // by the limiter that is settled

	mu   sync.Mutex // protects what follows
	sum  int
	told bool // whether the handler has called Cost
}

type accountKey struct{}

func accountOf(r *http.Request) *account {
	a, _ := r.Context().Value(accountKey{}).(*account)
	return a
}

// add adds n, up to the greatest int and down to the least.
func (a *account) add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = true
	switch {
	case n > 0 && a.sum > math.MaxInt-n:
		a.sum = math.MaxInt
	case n < 0 && a.sum < math.MinInt-n:
		a.sum = math.MinInt
	default:
		a.sum += n
	}
}

func (a *account) cost() (sum int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sum, a.told
}

// serveSettled passes r to next, and settles the events that it holds for q when next has
// returned or panicked.
func (m *middleware) serveSettled(w http.ResponseWriter, r *http.Request, next http.Handler, h *ratelimit.Reservation, q question) {
	account := &account{outer: accountOf(r), held: q.n}
	inner := r.WithContext(context.WithValue(r.Context(), accountKey{}, account))
	recorder := &recorder{ResponseWriter: w}
	head, returned := r.Method == http.MethodHead, false
	defer func() {
		handBack(r, inner)
		status, written := recorder.status, recorder.written
		switch {
		case status == 0 && returned:
			status = http.StatusOK
		case status == 0:
			status = http.StatusInternalServerError
		}
		if head {
			written = 0 // net/http has dropped it
		}
		m.settleWith(inner, h, q, status, written)
	}()
	next.ServeHTTP(recorder, inner)
	returned = true
}

// settleWith settles with what the functions of WithSettle return or, where there is none or it is no
// number of events, with the events that are held.
func (m *middleware) settleWith(r *http.Request, h *ratelimit.Reservation, q question, status int, written int64) {
	defer func() {
		ctx := context.WithoutCancel(r.Context())
		var d ratelimit.Decision
		var err error
		if q.costs == nil {
			d, err = h.Settle(ctx, q.n)
		} else {
			d, err = h.Settle(ctx, q.costs...)
		}
		m.report(r, d, err)
	}()
	actual := func(c *costing, held int) int {
		if c.settle == nil {
			return held
		}
		accountOf(r).held = held
		n := c.settle(r, status, written)
		if n < 0 {
			m.report(r, ratelimit.Decision{}, fmt.Errorf("httplimit: WithSettle's function returned %d: it must return at least 0", n))
			return held
		}
		return n
	}
	q.n = actual(&m.costing, q.n)
	for i, l := range m.limits[:len(q.costs)] {
		if l.costs() {
			q.costs[i] = actual(&l.costing, q.costs[i])
		} else {
			q.costs[i] = q.n
		}
	}
}

// handBack sets in r what net/http and outer handlers look for in it, and what the handler
// may have set in inner, a copy of it: the route, and the form whose files are to be removed.
func handBack(r, inner *http.Request) {
	if r.MultipartForm == nil && inner.MultipartForm != nil {
		r.MultipartForm = inner.MultipartForm
	}
	if r.Pattern != inner.Pattern {
		r.Pattern = inner.Pattern
	}
}
