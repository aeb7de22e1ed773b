package ratelimit

import (
	"context"
	"fmt"
	"time"
)

// An Observer is told what limiters decide: to count it, to log it, or to find the keys that
// are denied most. See [WithObserver]; package observe has some. It is called once for each decision,
// after it, by the goroutine that asked for it, which waits until the Observer returns. ctx is the
// context of the call; that of Allow is [context.Background]. Any number of goroutines call it at once.
type Observer func(ctx context.Context, o Observation)

// WithObserver makes the limiter tell o of each of its decisions. It may be given several times;
// the observers are called in that order.
//
// An observer sees Allow, Take, Hold, Reserve, ReserveWithin, Charge, Wait, WaitHold
// (when they return), Settle, Release and Cancel of their reservations, and for each key that they
// ask [TakeEach], [TakeAll] and [HoldAll]. It does not see Peek and Reset, which decide nothing, nor
// calls that are refused before anything is decided, because n is negative, ctx has ended, or a
// reservation was settled before. [Reservation.Wait] is seen only if it cancels. An observer of a
// limiter inside one that New has not made sees what that calls: TakeAll calls its Take, and
// HoldAll its Hold, and perhaps Settle.
//
// A limiter that is only tried, as with WithShadow of packages httplimit and grpclimit, is seen to
// deny what then happens anyway. Give it a name of its own: WithName("api, shadow").
//
// Without an observer, this costs nothing. With one, Allow takes about twice as long, and then as
// long as the observer, and TakeEach asks for the keys in a MemoryStore one after the other. No call
// makes more allocations than without one.
func WithObserver(o Observer) Option {
	return func(c *config) { c.observers = append(c.observers, o) }
}

// An Observation is what an [Observer] is told of one decision.
type Observation struct {
	Limiter string  // the name of the limiter; see WithName
	Key     string  // may be personal data
	Call    Call    // what was called
	N       int     // how many events it was called for; of CallCancel, how many were reserved or held
	Outcome Outcome // whether it was granted, denied, and so on

	// Granted is how many of the N events may happen, even if only the [FailurePolicy] says so.
	// It is 0 if another key of TakeAll or HoldAll refused, and for CallCharge and CallCancel,
	// which grant nothing. Of CallSettle, it is how many had been held.
	Granted int

	// Decision is the one that the call returned. Of Allow, it is that of Take; of the keys of
	// TakeAll and HoldAll, that of the key alone. If Wait or Reserve is refused, it is that of
	// ReserveWithin with as long a wait; otherwise, only Allowed and Degraded are set. Cancel has
	// none.
	Decision Decision

	// Waited is how long Wait or WaitHold waited, by the limiter's clock. Of other calls, it is
	// the wait that they ask of the caller: the Delay of a Decision or a Reservation.
	Waited time.Duration

	// Err is the error that the call returned. If the store failed, it is that failure, even
	// if FailOpen returned none.
	Err error
}

// A Call is a method or function that decides.
type Call uint8

// The calls that observers see.
const (
	CallAllow   Call = iota // Allow and AllowN
	CallTake                // Take and TakeEach
	CallTakeAll             // TakeAll and HoldAll, for one of the keys
	CallHold                // Hold
	CallWait                // Wait, WaitN and WaitHold
	CallReserve             // Reserve and ReserveWithin
	CallCharge              // Charge
	CallSettle              // Settle and Release of a Reservation
	CallCancel              // Cancel of a Reservation
	calls
)

var callNames = [calls]string{"allow", "take", "take_all", "hold", "wait", "reserve", "charge", "settle", "cancel"}

// String returns the name of the call in lower case, with underscores: "take_all".
func (c Call) String() string {
	if c >= calls {
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

	// Withheld: this key would have granted them, but another key of TakeAll or HoldAll
	// refused.
	Withheld

	// Abandoned: the context ended during the call, so that nothing is granted. If a store was
	// asked, it may have spent the events.
	Abandoned

	// Counted: a Charge, Settle or Cancel took effect.
	Counted

	// Failed: the store failed or the limit could not be looked up, so that the FailurePolicy
	// decided (Decision.Degraded, and Allowed says what); the store failed to cancel; a full
	// store had no room for the key; or the state of the key had no room for a debt (ErrDebt).
	Failed
	outcomes
)

var outcomeNames = [outcomes]string{"granted", "delayed", "denied", "withheld", "abandoned", "counted", "failed"}

// String returns the outcome in lower case.
func (o Outcome) String() string {
	if o >= outcomes {
		return fmt.Sprintf("Outcome(%d)", uint8(o))
	}
	return outcomeNames[o]
}
