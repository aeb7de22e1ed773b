package httplimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/handback"
)

// An Admission is what a [Gate] has decided about a request. Its methods are for whoever has got it
// from [Gate.Admit], who calls Refuse or, when the request is done, Done. Of the zero Admission,
// SetHeader, Refuse and Done do nothing, and Context returns [context.Background].
type Admission struct {
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

	question
	gate        *Gate
	request     *http.Request
	isCopy      bool                     // whether AdmissionOf has returned it
	isOver      bool                     // whether the context of the request has ended
	turn        *ratelimit.Reservation   // what the enforced limits hold, if anything
	shadowTurns []*ratelimit.Reservation // what the others hold
	account     *account                 // nil if the request is not settled

	// The durations of the decision start at a reading between these two, which are of [Legacy].
	asked, answered time.Time

	policies *policies          // nil if nothing is told to the client
	told     ratelimit.Decision // as the client is told
}

// SetHeader adds to h the header fields that the client is told, as [WithHeaders] says. Refuse does
// so by itself.
func (a *Admission) SetHeader(h http.Header) {
	if a.policies != nil {
		a.gate.setHeaders(h, a)
	}
}

// Refuse answers a request that has not passed, as [Middleware] does. r is the request. Refuse does
// nothing if the request has passed.
func (a *Admission) Refuse(w http.ResponseWriter, r *http.Request) {
	if a.Passed || a.isCopy || a.gate == nil {
		return
	}
	h := w.Header()
	if a.Err == nil {
		a.SetHeader(h)
	}
	prepareRefusal(h)
	switch {
	case a.gate.refusal != nil:
		inner := r.WithContext(a.inContext(r.Context()))
		defer handback.Set(r, inner)
		a.gate.refusal.ServeHTTP(w, inner)
	case a.isOver:
		w.WriteHeader(a.Status())
	case a.Err != nil:
		http.Error(w, a.Explain(), a.Status())
	default:
		a.policies.refusal.answer(w, r, a)
	}
}

// Status returns the status of the answer to a request that is refused: 400 if its key or cost
// cannot be determined, 503 if its context has ended or no limit was checked, and otherwise that of
// [WithStatus]. It is 0 if the request has passed.
func (a *Admission) Status() int {
	switch {
	case a.Passed || a.gate == nil:
		return 0
	case a.isOver || a.Err == nil && !a.Decision.Checked():
		return http.StatusServiceUnavailable
	case a.Err != nil:
		return http.StatusBadRequest
	}
	return a.gate.status
}

// Explain returns what to tell a client whose request is refused with an Err. If its key or cost
// cannot be determined, that is why, if Err matches [key.ErrNone]. Other errors may contain what
// the client must not see. Explain logs those with slog, at most one line a second for each Gate;
// the attribute left_out is the number of errors omitted since the previous line.
func (a *Admission) Explain() string {
	if a.isOver {
		return "the request has ended before it was handled"
	}
	const text = "cannot determine the client of this request"
	if errors.Is(a.Err, key.ErrNone) {
		return text + ": " + a.Err.Error()
	}
	if a.Err != nil && a.gate != nil {
		a.gate.keyWarnings.warn(a.request.Context(), "httplimit: "+text, a.Err)
	}
	return text
}

// Context returns the context for whoever handles the request. In it, [Cost] finds the request that
// is to be settled and, with [WithAdmission], [AdmissionOf] finds the Admission.
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

// isTold reports whether the handler of the request gets the Admission.
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
	if a.gate == nil || !a.isHeld() || a.account != nil && !a.account.close() {
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

// WithAdmission lets the handler of a request that passes get its Admission from [AdmissionOf],
// such as to say in the body how much is left, or to serve less when little is. It costs three
// allocations.
func WithAdmission() Option { return func(c *config) { c.isTold = true } }

// AdmissionOf returns the Admission of the request whose context is ctx. It is for the handler
// given to [WithRefusal] and, with [WithAdmission], for the handlers of requests that pass; if
// several such middlewares are around a handler, the innermost counts. ok is false if there is
// none: without WithAdmission, and if the Decision says nothing, because no limit was asked.
// SetHeader, Refuse and Done of this Admission do nothing, because the middleware calls those of
// its own.
func AdmissionOf(ctx context.Context) (a Admission, ok bool) {
	a, ok = ctx.Value(admissionKey{}).(Admission)
	return a, ok
}

type admissionKey struct{}

// inContext returns a context in which AdmissionOf finds a.
func (a *Admission) inContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, admissionKey{}, Admission{
		Passed: a.Passed, Decision: a.Decision, Policy: a.Policy,
		RetryAfter: a.RetryAfter, Detail: a.Detail, Err: a.Err,
		isCopy: true, isOver: a.isOver, gate: a.gate, request: a.request,
	})
}
