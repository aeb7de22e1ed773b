package ratelimit

import (
	"context"
	"errors"
)

// This file has what users call to wait: Wait, and Hold with Waiting. A waiter does the waiting.

func (l *limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

func (l *limiter) WaitN(ctx context.Context, key string, n int) error {
	if err := l.check(ctx, n); err != nil {
		return err
	}
	_, _, err := l.waitFor(&waiter{l: l, ctx: ctx, until: ctx, key: key, n: n})
	return err
}

// waitFor waits, and returns what is held, if anything. It also returns the Decision, if the events
// were granted at once or denied without a failure; otherwise, the Decision is zero. If the store
// fails, a fallback waits instead.
func (l *limiter) waitFor(w *waiter) (*Reservation, Decision, error) {
	began := l.beginObserving()
	o := w.wait()
	switch {
	case o.err != nil && o.failure != nil && l.policy.kind == fallback:
		w.fallBack(l.policy.limiter, &o)
	case o.turn != nil:
		o.turn.clear(isQuiet | isAhead)
	}
	if o.mayGrant && errors.Is(o.err, ErrNever) {
		o.err = o.failure
	}
	if o.unknown != nil && o.failure == nil {
		o.markStandIn()
	}
	l.observeWait(w, began, &o)
	if o.err != nil || !w.hold.isHeld {
		o.turn = nil
	}
	return o.turn, o.decision, o.err
}

// fallBack has a fallback wait, no longer than w does, and sets what came of that. If New has made
// the fallback, it is asked even if that time is over, because the failing store took it: then the
// fallback grants what may happen now.
func (w *waiter) fallBack(to Limiter, o *waitResult) {
	o.turn, o.decision = nil, Decision{}
	if w.options == nil {
		o.err = to.WaitN(w.ctx, w.key, w.n)
		return
	}
	r, d, err := to.Hold(w.ctx, w.key, w.n, w.options...)
	o.turn, o.err = r, err
	if err == nil && !d.Allowed { // of a limiter that New has not made
		o.decision, o.err = d, &TurnError{N: w.n, Wait: d.RetryAfter}
	}
}
