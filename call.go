package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file has the way of a call that does not wait: past the line of its key (spend, tell), to
// the store (apply) and, if the store fails, to the FailurePolicy.

// A call is a request to a limiter for one key, and the answer of the store.
type call struct {
	// Call.Limit is nil until it is looked up. Call.Err says that the store failed, or that ctx
	// ended before the call.
	limit.Call
	ctx context.Context
	// unknown says why Limit is not that of the key, but the one that New was given. See limitFor.
	unknown error

	// For OpHold and OpReserve:
	hold           holdOptions     // how the events are held
	holdOptions    []HoldOption    // likewise, of an OpHold, for a fallback
	reserveOptions []ReserveOption // likewise, of an OpReserve
	// Whether the events are never given back, because their turn has come and they are not held.
	isFinal bool

	// For OpSettle:
	presentLimit *limit.Limit // the limit of the key, if it need not be looked up
	isUnseen     bool         // whether nobody sees the Decision
}

func newCall(ctx context.Context, op step.Op, key string, n int) call {
	return call{Call: limit.Call{Key: key, Request: step.Request{Op: op, N: n}}, ctx: ctx}
}

// events returns how many events the Decision is about: of a TakeUpTo, at least as many. That of a
// Peek, Charge or Settle is the Decision of a Take of one event, which spends nothing.
func (c *call) events() int {
	switch c.Request.Op {
	case step.OpTake, step.OpHold, step.OpReserve:
		return c.Request.Least()
	}
	return 1
}

// makesReservation reports whether a Reservation is asked for.
func (c *call) makesReservation() bool {
	return c.Request.Op == step.OpHold || c.Request.Op == step.OpReserve
}

// spends reports whether the call spends events by its own limit, which then becomes that of the
// state. An OpSettle spends by the limit that has granted the hold.
func (c *call) spends() bool {
	return c.makesReservation() || c.Request.Op == step.OpTake || c.Request.Op == step.OpCharge
}

// spend makes a call that spends events if they are granted: a Take, Hold or Reserve. A call that
// would overtake a line is denied. Other calls go to the store. spend sets the Answer, and returns
// what is held. The error says why the decision is not that of the key's own limit.
//
// Not all calls come here. AllowN, Take, TakeUpTo and Peek ask the engine in memory directly if
// that alone decides (see fast). Wait, Extend, TakeAll, HoldAll and TakeEach have ways of their
// own to the same store and FailurePolicy.
func (l *limiter) spend(c *call) (r *Reservation, err error) {
	if d, ok := l.denialInLine(c, c.events()); ok {
		c.Answer.Decision = step.Decision(d)
		return nil, c.markStandIn()
	}
	return l.decide(c)
}

// tell makes a call that spends nothing: a Charge or Settle, which tells the store what has
// happened, or a Peek. The store comes first, and then the line, which is told what was counted or
// given back, and which may deny the next event.
func (l *limiter) tell(c *call) error {
	_, err := l.decide(c)
	switch c.Request.Op {
	case step.OpCharge:
		l.noteCharge(c.Key)
	case step.OpSettle:
		l.wakeAfterSettlement(c) // even if the store failed, which may have given events back
	}
	if c.Err != nil || c.isUnseen {
		return err // the FailurePolicy has decided, or nobody sees the Decision
	}
	if d, ok := l.denialInLine(c, c.events()); ok {
		c.Answer.Decision = step.Decision(d)
		err = c.markStandIn()
	}
	return err
}

// decide has the store answer a call or, if that fails, the FailurePolicy, also if that overtakes a
// Wait.
func (l *limiter) decide(c *call) (r *Reservation, err error) {
	l.apply(c)
	return l.conclude(c)
}

// conclude makes the decision of what the store has answered, or has the FailurePolicy make it. It
// returns what is held.
func (l *limiter) conclude(c *call) (r *Reservation, err error) {
	if c.Err != nil {
		return l.degraded(c)
	}
	if c.makesReservation() && c.Answer.Allowed {
		if c.Request.Op == step.OpReserve {
			c.Answer.Delay = c.Answer.Wait
		}
		r = l.newReservation(&c.Call)
	}
	return r, c.markStandIn()
}

// markStandIn marks a decision of the limit that stands in for that of the key, and returns the
// error that says why. Events that the stand-in could never grant are refused as by FailClosed,
// because the limit of the key may grant them.
func (c *call) markStandIn() error {
	if c.unknown == nil {
		return nil
	}
	if c.events() > c.Limit.Limit() {
		c.Answer.Decision = step.Decision(closedDecision(c.Limit))
	} else {
		c.Answer.Degraded, c.Answer.StandIn = true, true
	}
	return c.unknown
}

// apply looks up the limit of the key, and has the store answer a call. If the store fails, it sets
// Err.
func (l *limiter) apply(c *call) {
	req := &c.Request
	req.Clock = l.timeline
	if c.Limit == nil && c.Err == nil {
		if answered := l.lookUp(c); answered {
			return
		}
	}
	if c.Err != nil {
		return
	}
	if l.ownLimits != nil && c.spends() {
		l.renewTurns(c.Key, c.Limit)
	}
	if c.makesReservation() && !c.isFinal {
		req.Hold = newHandle(c.Limit, c.hold)
	}
	switch lim := c.Limit; {
	case lim.Stateless():
		lim.Decide(req, &c.Answer)
	case l.local != nil:
		l.local.Space.Apply(c.Key, l.local.LimitOf(lim), req, &c.Answer)
	default:
		if req.Op == step.OpSettle {
			l.strays.Forget(req.Hold.ID)
		}
		c.Answer, c.Err = l.states.Apply(c.ctx, c.Key, lim, *req)
		switch {
		case c.Err != nil:
			l.noteFailure(&c.Call, c.Err)
		case !c.Answer.Unasked:
			l.logAnswer(c.ctx, l.storeFailures)
		}
	}
}

// lookUp sets the limit of the key, or Err. Most keys in memory have the limit that they had
// before: then the store answers at once, and lookUp returns true.
func (l *limiter) lookUp(c *call) (answered bool) {
	if l.ownLimits == nil {
		c.Limit = l.limit
		return false
	}
	alg, err := l.ownLimits.lookup(c.ctx, c.Key)
	if err == nil && l.local != nil && c.Request.Op <= step.OpPeek &&
		l.local.Space.ApplyAs(c.Key, alg, &c.Request, &c.Answer) {
		l.logAnswer(c.ctx, l.lookupFailures)
		return true
	}
	c.Limit, c.unknown, c.Err = l.limitBy(c.ctx, c.Key, alg, err)
	return false
}
