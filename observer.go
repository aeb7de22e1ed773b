package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// An Observer is told what limiters decide: to count it, to log it, or to find the keys that are
// denied most. See [WithObserver]; package observe has some. It is called once for each decision,
// after it, by the goroutine that asked for it, which waits until the Observer returns. ctx is the
// context of the call; that of Allow is [context.Background]. Any number of goroutines call it at
// once.
type Observer func(ctx context.Context, o Observation)

// WithObserver makes the limiter tell o of each of its decisions. It may be given several times;
// the observers are called in that order.
//
// An observer sees Allow, Take, TakeUpTo, Hold, Reserve, Charge, Wait (when they return),
// Settle, Release and Cancel of their reservations, and for each key that they ask TakeEach,
// [TakeAll] and [HoldAll]. It does not see Peek and Reset, nor calls that are refused before
// anything is decided, because n is negative, ctx has ended, or a reservation was settled before.
// [Reservation.Wait] is seen only if it cancels. A limiter that is only tried, as with WithShadow
// of packages httplimit and grpclimit, is seen to deny what then happens anyway: give it a name of
// its own.
//
// If an observer panics, so does the call, in its caller's goroutine, and what it holds is given
// back, because nobody gets its Reservation; what it has spent stays spent. A HoldAll has settled
// or cancelled all keys by then.
//
// Without an observer, this costs nothing. With one, Allow takes about twice as long, and then as
// long as the observer, and TakeEach asks for the keys in a MemoryStore one after the other. No
// call makes more allocations.
func WithObserver(o Observer) Option {
	return func(c *config) { c.observers = append(c.observers, o) }
}

// An Observation is what an [Observer] is told of one decision.
type Observation struct {
	Limiter string  // the name of the limiter; see WithName
	Key     string  // may be personal data
	Call    Call    // what was called
	N       int     // how many events it was called for, of CallTakeUpTo at most; of a Cancel, 0
	Outcome Outcome // whether it was granted, denied, and so on

	// Granted is how many of the N events may happen, even if only the [FailurePolicy] says so:
	// all, none or, of CallTakeUpTo, some. It is 0 if another key of TakeAll or HoldAll refused,
	// and for CallCharge, which grants nothing. Of CallSettle, it is how many had been held or
	// reserved.
	Granted int

	// Decision is the one that the call returned. Of Allow, it is that of Take; of the keys of
	// TakeAll and HoldAll, that of the key alone. If a Wait is granted at once, it is that of Take;
	// if a Wait is refused, that of a Reserve [Within] as long a wait; otherwise, only Allowed,
	// Degraded and StandIn are set. Cancel has none.
	Decision Decision

	// Waited is how long a Wait waited, by the limiter's clock. Of other calls, it is the wait that
	// they ask of the caller: the Delay of a Decision or a Reservation.
	Waited time.Duration

	// Err is the error that the call returned. If the store or the lookup of the limit failed, it
	// is that failure, even if FailOpen, or a Wait by the limit of New, returned none.
	Err error
}

// A Call is a method or function that decides.
type Call uint8

// The calls that observers see.
const (
	CallAllow    Call = iota // Allow and AllowN
	CallTake                 // Take and TakeEach
	CallTakeAll              // TakeAll and HoldAll, for one of the keys
	CallHold                 // Hold
	CallWait                 // Wait, WaitN, and Hold with Waiting
	CallReserve              // Reserve
	CallCharge               // Charge
	CallSettle               // Settle, Release and Cancel of a Reservation
	CallTakeUpTo             // TakeUpTo
)

var callNames = [...]string{
	"allow",
	"take",
	"take_all",
	"hold",
	"wait",
	"reserve",
	"charge",
	"settle",
	"take_up_to",
}

// String returns the name of the call in lower case, with underscores: "take_all".
func (c Call) String() string {
	if int(c) >= len(callNames) {
		return fmt.Sprintf("Call(%d)", uint8(c))
	}
	return callNames[c]
}

// An Outcome is what came of a call. Each call has one.
type Outcome uint8

// The outcomes.
const (
	// Granted: the events may happen now.
	Granted Outcome = iota

	// Delayed: they may happen, and had to wait or have to.
	Delayed

	// Denied: the limit does not allow them, or not before the deadline of a Wait.
	Denied

	// Withheld: this key would have granted them, but another key of TakeAll or HoldAll refused.
	Withheld

	// Abandoned: the context ended during the call, so that nothing is granted. If a store was
	// asked, it may have spent the events.
	Abandoned

	// Counted: a Charge, Settle or Cancel took effect.
	Counted

	// Failed: the store failed, so that the FailurePolicy decided, or the limit of the key could
	// not be looked up, so that the limit of New did (Decision.Degraded; Allowed says what, and
	// Checked whether by a limit); the store failed to cancel; a full store had no room for the
	// key; or the state of the key had no room for a debt (ErrDebt).
	Failed
)

var outcomeNames = [...]string{
	"granted",
	"delayed",
	"denied",
	"withheld",
	"abandoned",
	"counted",
	"failed",
}

// String returns the outcome in lower case.
func (o Outcome) String() string {
	if int(o) >= len(outcomeNames) {
		return fmt.Sprintf("Outcome(%d)", uint8(o))
	}
	return outcomeNames[o]
}

// observe tells the observers, and completes o.
func (l *limiter) observe(ctx context.Context, o Observation) {
	o.Limiter = l.name
	if o.Outcome == Granted && o.Waited > 0 {
		o.Outcome = Delayed
	}
	for _, observer := range l.observers {
		observer(ctx, o)
	}
}

// hasLeft reports whether err says that ctx ended while the caller waited.
func hasLeft(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return false
	}
	_, late := errors.AsType[*TurnError](err)
	return !late
}

// outcome returns what came of a request that was answered with ans and err.
func outcome(ctx context.Context, ans *step.Answer, err error) Outcome {
	switch {
	case err != nil:
		return countOutcome(ctx, Decision(ans.Decision), err)
	case ans.Full:
		return Failed
	case ans.Allowed:
		return Granted
	}
	return Denied
}

// observeOrGiveBack tells the observers of the call that made r, or of one that holds nothing, if r
// is nil. If one of them panics, nobody is given r, and so what it holds is given back.
func (l *limiter) observeOrGiveBack(ctx context.Context, o Observation, r *Reservation) {
	told := false
	defer func() {
		if !told && r != nil {
			r.giveBack(context.WithoutCancel(ctx))
		}
	}()
	l.observe(ctx, o)
	told = true
}

// observeCall tells the observers of a call that returns r and err.
func (l *limiter) observeCall(
	ctx context.Context,
	name Call,
	c *limit.Call,
	r *Reservation,
	err error,
) {
	if l.observers == nil {
		return
	}
	ans := &c.Answer
	o := Observation{
		Key:      c.Key,
		Call:     name,
		N:        c.Request.N,
		Outcome:  outcome(ctx, ans, err),
		Decision: Decision(ans.Decision),
		Granted:  c.Granted(),
		Waited:   ans.Delay,
		Err:      err,
	}
	l.observeOrGiveBack(ctx, o, r)
}

// countOutcome returns what came of a Charge or Settle.
func countOutcome(ctx context.Context, d Decision, err error) Outcome {
	switch {
	case err == nil:
		return Counted
	case !d.Degraded && hasLeft(ctx, err):
		return Abandoned
	}
	return Failed
}

// beginObserving returns the time at which a wait begins, if there are observers.
func (l *limiter) beginObserving() (now kernel.Instant) {
	if l.observers != nil {
		now, _ = l.timeline.Now()
	}
	return now
}

// observeWait tells the observers of a wait since began, and of what came of it.
func (l *limiter) observeWait(w *waiter, began kernel.Instant, came *waitResult) {
	if l.observers == nil {
		return
	}
	now, _ := l.timeline.Now()
	if came.decision.Allowed {
		now = began // it did not wait
	}
	o := Observation{
		Key:      w.key,
		Call:     CallWait,
		N:        w.n,
		Decision: came.decision,
		Waited:   time.Duration(now - min(now, began)),
		Err:      came.err,
	}
	switch err := came.err; {
	case came.failure != nil:
		o.Outcome, o.Err, o.Decision.Degraded = Failed, came.failure, true
	case errors.Is(err, ErrFull):
		o.Outcome = Failed
	case hasLeft(w.ctx, err) && !errors.Is(err, context.DeadlineExceeded):
		o.Outcome = Abandoned
	case came.unknown != nil:
		o.Outcome, o.Err = Failed, came.unknown
	case err != nil: // also if the deadline has passed: what it asked for was not granted in time
		o.Outcome = Denied
	}
	if came.err == nil {
		o.Granted, o.Decision.Allowed = w.n, true
	}
	var held *Reservation
	if w.hold.isHeld { // else the turn has come, and its events count
		held = came.turn
	}
	l.observeOrGiveBack(w.ctx, o, held)
}

// observeSettlement tells the observers of the limiter that r was settled for n.
func (r *Reservation) observeSettlement(ctx context.Context, n int, d Decision, err error) {
	if r.l == nil || r.l.observers == nil || r.is(isQuiet) {
		return
	}
	r.l.observe(
		ctx,
		Observation{
			Key:      r.key,
			Call:     CallSettle,
			N:        n,
			Granted:  r.n,
			Outcome:  countOutcome(ctx, d, err),
			Decision: d,
			Err:      err,
		},
	)
}

// observeKey tells the observers of the limiter, if there are any, that TakeAll has asked the key,
// and what it answered for itself. granted says whether all keys have granted.
func (k *jointKey) observeKey(ctx context.Context, granted bool) {
	if k.l == nil || k.l.observers == nil {
		return
	}
	o := Observation{
		Key:      k.bound.key,
		Call:     CallTakeAll,
		N:        k.n,
		Outcome:  outcome(ctx, &k.Answer, k.err),
		Decision: Decision(k.Answer.Decision),
		Err:      k.err,
	}
	switch {
	case granted:
		o.Granted, o.Waited = k.n, k.Answer.Delay
	case o.Outcome == Granted:
		o.Outcome = Withheld
	}
	k.l.observe(ctx, o)
}
