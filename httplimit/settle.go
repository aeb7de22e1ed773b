package httplimit

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ends"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// WithSettleAtEnd is for requests whose cost is known only when their handler has returned. The
// middleware holds the cost of a request (1, or what the function of [WithCost] estimates) before
// the handler is called. Afterwards it settles with what f returns: it gives the difference back,
// as if only that had been taken when the request came, or charges it beyond the limit (see
// [ratelimit.Reservation.Settle], and docs/holds.md for each algorithm).
//
// For example, this counts the bytes of the response:
//
//	httplimit.WithSettleAtEnd(func(r *http.Request, status int, written int64) int {
//		return int(written)
//	})
//
// Where the status alone says what a request has cost, use [WithSettle].
//
// f gets the request that the handler got, and the status and the number of bytes of the body
// (0 for HEAD) that the handler wrote to its ResponseWriter. Handlers of Gin and Echo
// write elsewhere: packages ginlimit and echolimit of module httplimit/routers see to that. If the
// handler has sent nothing, status is 200, or 500 if it panicked. Informational statuses do not
// count. If the handler hijacked the connection, status is 101 unless it sent another one
// before, and written is what it wrote before. [CostOf] returns what the handler told [Cost],
// and [ByCost] is an f that settles with it.
//
// With [WithAlso], limiters can have a WithSettleAtEnd of their own: for cents, f may return what
// the tokens of CostOf cost.
//
// A request that is not settled within ten minutes, because its handler takes longer or its process
// has crashed, counts as it was held. opts change that: [ratelimit.HoldFor] is for longer ones, and
// with [ratelimit.GiveBack] such a request counts nothing. A client that sends its request slowly,
// or does not read the response, makes its handler take longer. So with GiveBack, its request is
// free, unless timeouts of the server end it before the hold: see docs/http.md.
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
// With WithSettleAtEnd, the handler gets a ResponseWriter that works with
// [http.ResponseController]. It always implements [http.Flusher], [http.Hijacker] and
// [io.ReaderFrom]. If the one in it cannot do the same, Flush does nothing, Hijack returns an error
// that matches [http.ErrNotSupported], and ReadFrom calls Write. A handler that must know whether
// it can flush asks the Flush of ResponseController, which returns such an error as well. The
// ResponseWriter does not implement [http.Pusher] and the deprecated [http.CloseNotifier].
//
// A request takes one more call of the store, which is made before the response ends.
func WithSettleAtEnd(
	f func(r *http.Request, status int, written int64) int,
	opts ...ratelimit.EndOption,
) CostOption {
	return costOption(func(c *config) {
		c.require(f != nil, "WithSettleAtEnd's function", nil,
			"must return how many events a request has cost, as ByCost does")
		c.setEnds("WithSettleAtEnd", opts)
		c.settle, c.byStatus = f, false
	})
}

// WithSettle is [WithSettleAtEnd] for requests whose cost the status says. For example, this
// counts failed logins only:
//
//	httplimit.WithSettle(func(r *http.Request, status int) int {
//		if status == http.StatusUnauthorized {
//			return 1
//		}
//		return 0
//	})
//
// The middleware settles a request before its header is sent, so that a client that reads slowly
// does not keep the request held. What the handler tells [Cost] later does not count. There are two
// exceptions: a request that is in flight, in a limit with an [ratelimit.InFlight] or with
// [WithInFlight], and a request that another limiter settles with a WithSettleAtEnd of its own.
// They are settled when the handler returns.
func WithSettle(
	f func(r *http.Request, status int) int,
	opts ...ratelimit.EndOption,
) CostOption {
	return costOption(func(c *config) {
		c.require(f != nil, "WithSettle's function", nil,
			"must return how many events a request has cost")
		c.setEnds("WithSettle", opts)
		c.settle = func(r *http.Request, status int, _ int64) int { return f(r, status) }
		c.byStatus = true
	})
}

// setEnds sets how holds end, as option was given. It fails unless a hold may have the options.
func (c *config) setEnds(option string, opts []ratelimit.EndOption) {
	c.ends, c.hold = opts, ends.OfHold(opts)
	if _, _, err := anyLimiter.Hold(context.Background(), "", 0, c.hold...); err != nil {
		c.fail(param.Within(option, err))
	}
}

// anyLimiter knows which options a hold may have.
var anyLimiter = ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}))

// Cost says that the request whose context is ctx has cost n events, in the unit of the limit. A
// handler behind a Middleware with [WithSettleAtEnd] calls it with the context of its request, or
// one made from that. Calls add up, so that a handler that streams can call it for each chunk. n
// may be negative, to correct earlier calls. If several such middlewares are around the handler,
// Cost counts for each of them.
//
// A request whose estimate by [WithCost] is 0 is free, whatever Cost says: nothing is held.
//
// Any number of goroutines may call Cost at once. It does nothing after the handler has
// returned, and without WithSettleAtEnd. Behind a [Gate], ctx is that of [Admission.Context]: with
// that of the request, Cost does nothing.
func Cost(ctx context.Context, n int) {
	for a := accountOf(ctx); a != nil; a = a.outer {
		a.add(n)
	}
}

// CostOf returns the sum of what has been told [Cost] with ctx. ok is whether Cost has been called.
func CostOf(ctx context.Context) (sum int, ok bool) {
	a := accountOf(ctx)
	if a == nil {
		return 0, false
	}
	return a.cost()
}

// ByCost is a function for [WithSettleAtEnd]. It returns the sum of what the handler has told
// [Cost], or the cost that was held if the handler has not called Cost: a handler whose request was
// free calls Cost with 0. So a request counts the whole estimate if its handler fails, or panics,
// before it has called Cost.
func ByCost(r *http.Request, _ int, _ int64) int {
	a := accountOf(r.Context())
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

	mu       sync.Mutex // protects what follows
	sum      int
	told     bool // whether the handler has called Cost
	isClosed bool // whether the request is done
}

type accountKey struct{}

func accountOf(ctx context.Context) *account {
	a, _ := ctx.Value(accountKey{}).(*account)
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

// close says that the request is done. isFirst is whether this is said for the first time.
func (a *account) close() (isFirst bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	isFirst = !a.isClosed
	a.isClosed = true
	return isFirst
}

func (a *account) cost() (sum int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sum, a.told
}

// settle settles with what the functions of WithSettleAtEnd return or, where there is none or it is
// no number of events, with the events that are held.
func (a *Admission) settle(status int, written int64) {
	r := a.request
	if accountOf(r.Context()) != a.account {
		r = r.WithContext(a.Context())
	}
	defer func() {
		ctx := context.WithoutCancel(r.Context())
		if a.turn != nil {
			a.gate.settleTurn(ctx, r, a.turn, a.n, a.costs)
		}
		for _, turn := range a.shadowTurns {
			a.gate.settleTurn(ctx, r, turn, a.n, nil)
		}
	}()
	a.n = a.actual(r, &a.gate.costing, a.n, status, written)
	for i, l := range a.limits[:len(a.costs)] {
		if l.costs() {
			a.costs[i] = a.actual(r, &l.costing, a.costs[i], status, written)
		} else {
			a.costs[i] = a.n
		}
	}
}

// actual returns how many events r has cost by c, for which so many are held.
func (a *Admission) actual(
	r *http.Request, c *costing, held int, status int, written int64,
) int {
	if c.settle == nil {
		return held
	}
	a.account.held = held
	n := c.settle(r, status, written)
	if n < 0 {
		a.gate.report(r, ratelimit.Decision{}, fmt.Errorf(
			"httplimit: WithSettleAtEnd's function returned %d: it must return at least 0", n,
		))
		return held
	}
	return n
}

// settleTurn settles what turn holds with n events or, if its limits have costings of their own,
// with the number of each.
func (g *Gate) settleTurn(
	ctx context.Context, r *http.Request, turn *ratelimit.Reservation, n int, costs []int,
) {
	var d ratelimit.Decision
	var err error
	if costs == nil {
		d, err = turn.Settle(ctx, n)
	} else {
		d, err = turn.Settle(ctx, costs...)
	}
	g.report(r, d, err)
}

// result returns the status and the number of bytes of a response to a request of the given method,
// for a handler that has returned or, if hasReturned is false, panicked.
func (w *recorder) result(method string, hasReturned bool) (status int, written int64) {
	status, written = w.status, w.written
	switch {
	case status == 0 && hasReturned:
		status = http.StatusOK
	case status == 0:
		status = http.StatusInternalServerError
	}
	if method == http.MethodHead {
		written = 0 // net/http has dropped it
	}
	return status, written
}
