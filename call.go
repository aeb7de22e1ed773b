package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file is the way of a call to the store: past those who wait for the key, to the store, and
// to the FailurePolicy if the store failed.

// A call is what somebody asks of a limiter for one key, and what the store answers.
type call struct {
	// Limit is nil until it is looked up. Err says that the store failed, or that ctx ended before.
	limit.Call
	// Why Limit is not that of the key, but the one that New was given; see limitFor.
	unknown error
	ctx     context.Context
	hold    holdOptions // how the events are held: for OpHold and OpReserve
	// Whether what is reserved is never given back, because its turn has come, and it is not held.
	isFinal bool
	options []HoldOption

	// Of an OpSettle: the present limit of the key, if that need not be looked up.
	presentLimit *limit.Limit
	isUnseen     bool // of an OpSettle: whether nobody sees the Decision
}

func newCall(ctx context.Context, op step.Op, key string, n int) call {
	return call{Call: limit.Call{Key: key, Request: step.Request{Op: op, N: n}}, ctx: ctx}
}

// decidesOn returns how many events the Decision is about, and whether it spends them. It does not
// after a Peek, Charge or Settle: then it is what Take of one event would return.
func (c *call) decidesOn() (n int, spends bool) {
	switch c.Request.Op {
	case step.OpTake, step.OpHold, step.OpReserve:
		return c.Request.N, true
	}
	return 1, false
}

// makesReservation reports whether a Reservation is asked for.
func (c *call) makesReservation() bool {
	return c.Request.Op == step.OpHold || c.Request.Op == step.OpReserve
}

// spends reports whether the events are spent if the limit allows it, which then becomes that of
// the state. Those of an OpSettle are of the limit that has granted them.
func (c *call) spends() bool {
	return c.makesReservation() || c.Request.Op == step.OpTake || c.Request.Op == step.OpCharge
}

// do makes a call that does not wait: past those who stand in line, to the store or the
// FailurePolicy. It sets the Answer, and returns what is held. The error says why the decision is
// not that of the key's own limit.
//
// Not all calls come here. AllowN, Take and Peek ask the engine in memory directly if that alone
// decides (see fast). Wait, Extend, TakeAll, HoldAll and TakeEach have ways of their own to the
// same store and FailurePolicy.
func (l *limiter) do(c *call) (r *Reservation, err error) {
	n, spends := c.decidesOn()
	if !spends {
		r, err = l.decide(c)
	}
	switch c.Request.Op { // tell the line of the key what was counted or given back
	case step.OpCharge:
		l.noteCharge(c.Key)
	case step.OpSettle:
		l.wakeAfterSettlement(c) // even if the store failed, which may have given events back
	}
	if c.Err != nil && !spends || c.isUnseen {
		return r, err // the FailurePolicy has decided, or who stands in line makes no difference
	}
	if d, ok := l.denialInLine(c, n); ok {
		c.Answer.Decision = step.Decision(d)
		err = c.markStandIn()
	} else if spends {
		r, err = l.decide(c)
	}
	return r, err
}

// decide is do, even if that overtakes a Wait.
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

// markStandIn marks a decision that is not by the limit of the key, and returns the error that says
// why. What the limit that stands in could never grant is refused, because the limit of the key may
// grant it.
func (c *call) markStandIn() error {
	if c.unknown == nil {
		return nil
	}
	if n, _ := c.decidesOn(); n > c.Limit.Limit() {
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
	if c.Limit == nil && c.Err == nil && l.applyOwnLimit(c) || c.Err != nil {
		return
	}
	if l.ownLimits != nil && c.spends() {
		l.renewTurns(c.Key, c.Limit)
	}
	if c.makesReservation() && req.Hold.ID == 0 && !c.isFinal {
		req.Hold = newHandle(c.Limit, c.hold)
	}
	switch lim := c.Limit; {
	case lim.Stateless():
		lim.Decide(req, &c.Answer)
	case l.local != nil:
		l.local.Space.Apply(c.Key, l.local.LimitOf(lim), req, &c.Answer)
	case lim.Releases() && c.makesReservation() && c.ctx.Done() != nil:
		one := []limit.Call{c.Call}
		_, c.Err = applyOrRelease(c.ctx, one, []*limiter{l}, l.applyAlone)
		c.Answer = one[0].Answer
	default:
		c.Answer, c.Err = l.states.Apply(c.ctx, c.Key, lim, *req)
	}
}

// applyAlone makes the only one of calls.
func (l *limiter) applyAlone(ctx context.Context, calls []limit.Call) (decided bool, err error) {
	c := &calls[0]
	c.Answer, err = l.states.Apply(ctx, c.Key, c.Limit, c.Request)
	return true, err
}

// applyOwnLimit sets the limit of the key. Most keys in memory have the one that they had before: then
// it also has the store answer, and returns true.
func (l *limiter) applyOwnLimit(c *call) (done bool) {
	if l.ownLimits == nil {
		c.Limit = l.limit
		return false
	}
	alg, err := l.ownLimits.lookup(c.ctx, c.Key)
	if err == nil && l.local != nil && c.Request.Op <= step.OpPeek &&
		l.local.Space.ApplyAs(c.Key, alg, &c.Request, &c.Answer) {
		return true
	}
	c.Limit, c.unknown, c.Err = l.limitBy(c.ctx, c.Key, alg, err)
	return false
}
