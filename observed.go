package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/memory"
)

// An observed is a limiter with observers. It is a type of its own so that other limiters need
// not ask whether they have any. Reservations belong to the limiter in it.
type observed struct{ *limiter }

// observers are those of a limiter, which has only a pointer to them.
type observers []Observer

// newObservers returns nil if there are none.
func newObservers(of []Observer) *observers {
	if len(of) == 0 {
		return nil
	}
	return (*observers)(&of)
}

// bare returns the limiter that New has made, without observers.
func bare(l Limiter) (*limiter, bool) {
	switch l := l.(type) {
	case *limiter:
		return l, true
	case *observed:
		return l.limiter, true
	}
	return nil, false
}

// observe tells the observers, and completes o.
func (l *limiter) observe(ctx context.Context, o Observation) {
	o.Limiter = l.name
	if o.Outcome == Granted && o.Waited > 0 {
		o.Outcome = Delayed
	}
	for _, observer := range *l.observers {
		observer(ctx, o)
	}
}

// left reports whether err says that ctx ended while the caller waited for the store.
func left(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return false
	}
	_, late := errors.AsType[*TurnError](err)
	return !late
}

// outcome returns what came of a request that was answered with res and err.
func outcome(ctx context.Context, res *kernel.Answer, err error) Outcome {
	switch {
	case err != nil && !res.Degraded && left(ctx, err):
		return Abandoned
	case err != nil || res.Full:
		return Failed
	case res.Allowed:
		return Granted
	}
	return Denied
}

// decided tells the observers of a request for n events that was answered with res and err.
func (l *observed) decided(ctx context.Context, call Call, key string, n int, res *kernel.Answer, err error) {
	o := Observation{Key: key, Call: call, N: n, Outcome: outcome(ctx, res, err), Decision: Decision(res.Decision), Waited: res.Delay, Err: err}
	if o.Decision.Allowed {
		o.Granted = n
	}
	l.observe(ctx, o)
}

func (l *observed) Allow(key string) bool { return l.AllowN(key, 1) }

func (l *observed) AllowN(key string, n int) bool {
	d, _ := l.take(context.Background(), CallAllow, key, n)
	return d.Allowed
}

func (l *observed) Take(ctx context.Context, key string, n int) (Decision, error) {
	return l.take(ctx, CallTake, key, n)
}

func (l *observed) take(ctx context.Context, call Call, key string, n int) (Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	var res kernel.Answer
	var err error
	if d, ok := l.overtakes(ctx, key, n); ok {
		res.Decision = kernel.Decision(d)
	} else {
		res, err = l.takeFrom(ctx, key, n)
	}
	l.decided(ctx, call, key, n, &res, err)
	return Decision(res.Decision), err
}

// TakeEach is what the function TakeEach calls.
func (l *observed) TakeEach(ctx context.Context, keys []string, n int, out []Decision) ([]Decision, error) {
	if _, ok := l.states.(limit.EachStates); !ok || l.check(ctx, n) != nil {
		return takeInTurn(ctx, l, keys, n, out)
	}
	before := len(out)
	out, err := l.limiter.TakeEach(ctx, keys, n, out)
	failed, _ := errors.AsType[*eachError](err)
	for i, key := range keys {
		l.decided(ctx, CallTake, key, n, &kernel.Answer{Decision: kernel.Decision(out[before+i])}, failed.of(i))
	}
	return out, err
}

func (l *observed) Hold(ctx context.Context, key string, n int, opts ...HoldOption) (*Reservation, Decision, error) {
	h, err := checkHold(l.check(ctx, n), opts)
	if err != nil {
		return nil, Decision{}, err
	}
	var res kernel.Answer
	r, err := l.holdAny(ctx, key, n, h, opts, &res)
	l.decided(ctx, CallHold, key, n, &res, err)
	return r, Decision(res.Decision), err
}

func (l *observed) Charge(ctx context.Context, key string, n int) (Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	d, err := l.limiter.Charge(ctx, key, n)
	l.observe(ctx, Observation{Key: key, Call: CallCharge, N: n, Outcome: counted(ctx, d, err), Decision: d, Err: err})
	return d, err
}

// counted returns what came of a Charge or Settle.
func counted(ctx context.Context, d Decision, err error) Outcome {
	switch {
	case err == nil:
		return Counted
	case !d.Degraded && left(ctx, err):
		return Abandoned
	}
	return Failed
}

func (l *observed) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

func (l *observed) WaitN(ctx context.Context, key string, n int) error {
	if err := l.check(ctx, n); err != nil {
		return err
	}
	began, _ := l.timeline.Now()
	var why reason
	err := l.waitN(ctx, ctx, key, n, &why)
	l.waited(ctx, key, n, began, &why, err)
	return err
}

// WaitHold implements [Limiter].
func (l *observed) WaitHold(ctx context.Context, key string, n int, opts ...HoldOption) (*Reservation, error) {
	h, err := checkHold(l.check(ctx, n), opts)
	if err != nil {
		return nil, err
	}
	began, _ := l.timeline.Now()
	var why reason
	r, err := l.waitHold(ctx, ctx, key, n, h, opts, &why)
	l.waited(ctx, key, n, began, &why, err)
	return r, err
}

// WaitFor is that of limiter.
func (l *observed) WaitFor(ctx, until context.Context, key string, n int, holds bool, opts ...HoldOption) (*Reservation, Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return nil, Decision{}, err
	}
	began, _ := l.timeline.Now()
	var why reason
	r, err := l.waitFor(ctx, until, key, n, holds, opts, &why)
	l.waited(ctx, key, n, began, &why, err)
	return r, why.decision(err), err
}

// waited tells the observers of a wait since began, which returns err.
func (l *observed) waited(ctx context.Context, key string, n int, began kernel.Instant, why *reason, err error) {
	now, _ := l.timeline.Now()
	if why.grant.Allowed {
		now = began // it did not wait
	}
	l.ended(ctx, CallWait, key, n, time.Duration(now-min(now, began)), why, err)
}

// A reason is why a Wait or Reserve was not simply granted, which its results do not say. Without
// observers, it is nil, and its methods do nothing.
type reason struct {
	failure error    // of the store, even if FailOpen allowed the events
	denial  Decision // if they were denied
	grant   Decision // if they were granted at once
}

// are sets r to the reasons that are known of a Wait in line.
func (r *reason) are(of *reason) {
	if r != nil {
		*r = *of
	}
}

// decision returns that of a Wait that returns err, or a zero one if it is not known.
func (r *reason) decision(err error) Decision {
	if err != nil {
		return r.denial
	}
	return r.grant
}

func (r *reason) granted(d Decision) {
	if r != nil {
		r.grant = d
	}
}

func (r *reason) failed(err error) {
	if r != nil {
		r.failure = err
	}
}

func (r *reason) denied(d Decision) {
	if r != nil {
		r.denial = d
	}
}

// ended tells the observers of a call that returns err and no Decision.
func (l *observed) ended(ctx context.Context, call Call, key string, n int, wait time.Duration, why *reason, err error) {
	o := Observation{Key: key, Call: call, N: n, Decision: why.denial, Waited: wait, Err: err}
	switch {
	case why.failure != nil:
		o.Outcome, o.Err, o.Decision.Degraded = Failed, why.failure, true
	case errors.Is(err, ErrFull):
		o.Outcome = Failed
	case left(ctx, err) && (call != CallWait || !errors.Is(err, context.DeadlineExceeded)):
		o.Outcome = Abandoned
	case err != nil: // also a Wait whose deadline has passed: what it asked for was not granted in time
		o.Outcome = Denied
	}
	if err == nil {
		o.Granted, o.Decision.Allowed = n, true
	}
	l.observe(ctx, o)
}

func (l *observed) Reserve(ctx context.Context, key string, n int) (*Reservation, error) {
	if err := l.check(ctx, n); err != nil {
		return nil, err
	}
	var why reason
	r, err := l.reserveAny(ctx, key, n, &why)
	var wait time.Duration
	if r != nil {
		wait = r.Delay()
	}
	l.ended(ctx, CallReserve, key, n, wait, &why, err)
	return r, err
}

// ReserveWithin implements [Limiter].
func (l *observed) ReserveWithin(ctx context.Context, key string, n int, maxWait time.Duration, opts ...HoldOption) (*Reservation, Decision, error) {
	h, err := checkWithin(l.check(ctx, n), maxWait, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	r, res, err := l.reserveWithin(ctx, key, n, maxWait, h, opts)
	l.decided(ctx, CallReserve, key, n, &res, err)
	return r, Decision(res.Decision), err
}

// observe tells the observers of the limiter of a Settle or Cancel.
func (r *Reservation) observe(ctx context.Context, call Call, n int, d Decision, err error) {
	if r.is(isQuiet) {
		return
	}
	o := Observation{Key: r.key, Call: call, N: n, Outcome: counted(ctx, d, err), Decision: d, Err: err}
	if call == CallSettle {
		o.Granted = r.n
	}
	r.l.observe(ctx, o)
}

// observe tells the observers of the limiter, if there are any, that TakeAll has asked its key
// for n events together with others, and what it answered for itself. granted says whether all
// of them have granted.
func (b Bound) observe(ctx context.Context, n int, res *kernel.Answer, granted bool, err error) {
	l, ok := b.limiter.(*observed)
	if !ok {
		return
	}
	o := Observation{Key: b.key, Call: CallTakeAll, N: n, Outcome: outcome(ctx, res, err), Decision: Decision(res.Decision), Err: err}
	switch {
	case granted:
		o.Granted, o.Waited = n, res.Delay
	case o.Outcome == Granted:
		o.Outcome = Withheld
	}
	l.observe(ctx, o)
}

// toldJoint is observe for a key in memory.
func (b Bound) toldJoint(ctx context.Context, e *memory.Asked, granted bool, err error) {
	if _, ok := b.limiter.(*observed); ok && e.Times > 0 {
		b.observe(ctx, e.Sum, &e.Answer, granted, err)
	}
}
