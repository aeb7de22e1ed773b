package httplimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/internal/policy"
)

// This file has what follows from a Gate's verdict. What the client is told is in headers.go, the
// header fields, and in refusal.go: the status, the reason and the body.

// An Admission is a [Gate]'s verdict on a request, and what becomes of the request. Its methods are
// for whoever has got it from [Gate.Admit], who calls Refuse or, when the request is done, Done. Of
// the zero Admission, SetHeader, Refuse and Done do nothing, and Context returns
// [context.Background].
type Admission struct {
	Verdict

	question
	turn        *ratelimit.Reservation   // what the enforced limits hold, if anything
	shadowTurns []*ratelimit.Reservation // what the others hold
	account     *account                 // nil if the request is not settled

	// The durations of the decision start at a reading between these two, which are of [Legacy].
	asked, answered time.Time

	policies *policy.List       // nil if nothing is told to the client
	told     ratelimit.Decision // as the client is told
}

// SetHeader adds to h the header fields that the client is told, as [WithHeaders] says. Refuse does
// so by itself.
func (a *Admission) SetHeader(h http.Header) {
	if a.policies != nil {
		a.gate.setHeaders(h, a)
	}
}

// Context returns the context for whoever handles the request. In it, [Cost] finds the request that
// is to be settled and, with [WithVerdict], [VerdictOf] finds the Verdict.
func (a *Admission) Context() context.Context {
	if a.request == nil {
		return context.Background()
	}
	ctx := a.request.Context()
	if a.isTold() {
		ctx = a.inContext(ctx)
	}
	if a.account != nil {
		ctx = context.WithValue(ctx, accountKey{}, a.account)
	}
	return ctx
}

// isTold reports whether the handler of the request gets the Verdict.
func (a *Admission) isTold() bool { return a.gate.isTold && len(a.limits) > 0 }

// Done says that the request is done, so that it is settled ([WithSettle]) and what is in flight is
// released. status and written are for the function of WithSettle or [WithSettleAtEnd]: the status
// of the response, and the number of bytes in its body. Done must be called if the request has
// passed, also if its handler panics: otherwise what is held ends by itself, see WithSettle and
// [ratelimit.InFlight]. Call Done before the response is written if the status says what the
// request has cost: a client that does not read keeps its handler in Write, and what is held may
// end by itself meanwhile. After the first call, also of a copy of the Admission, Done does
// nothing. It does nothing if the request has not passed.
func (a *Admission) Done(status int, written int64) {
	if !a.isHeld() || a.account != nil && !a.account.close() {
		return
	}
	defer func() {
		if a.account == nil || a.flies {
			a.each(a.release)
		}
	}()
	if a.account != nil {
		a.settle(status, written)
	}
}

// isHeld reports whether limits hold events of the request.
func (a *Admission) isHeld() bool {
	return (a.turn != nil || a.shadowTurns != nil) && a.holds
}

// each calls f with what each limit holds.
func (a *Admission) each(f func(*ratelimit.Reservation)) {
	if a.turn != nil {
		f(a.turn)
	}
	for _, turn := range a.shadowTurns {
		f(turn)
	}
}

// release releases what turn holds in flight, unless it has been settled. If settling has failed
// because there is no room for the debt, what was held is spent, but no longer in flight.
func (a *Admission) release(turn *ratelimit.Reservation) {
	a.reportEnd(turn.Release(context.WithoutCancel(a.request.Context())))
}

// giveBack gives back what is held, because the request is not handled.
func (a *Admission) giveBack() {
	if !a.isHeld() {
		return
	}
	a.each(func(turn *ratelimit.Reservation) {
		_, err := turn.Settle(context.WithoutCancel(a.request.Context()), 0)
		a.reportEnd(err)
	})
	a.turn, a.shadowTurns = nil, nil
}

// reportEnd reports the error of ending a hold. A hold that has ended before, by its Settle or by a
// Wait whose context has ended, is none.
func (a *Admission) reportEnd(err error) {
	if !errors.Is(err, ratelimit.ErrEnded) {
		a.gate.report(a.request, ratelimit.Decision{Degraded: true}, err) // only a store fails here
	}
}
