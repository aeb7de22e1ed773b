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
	r, err := w.wait()
	switch fallsBack := err != nil && w.failure != nil && l.policy.kind == fallback; {
	case fallsBack:
		r, err = w.fallBack(l.policy.limiter)
	case r != nil:
		r.clear(isQuiet | isAhead)
	}
	if w.mayGrant && errors.Is(err, ErrNever) {
		err = w.failure
	}
	if w.unknown != nil && w.failure == nil {
		w.markStandIns()
	}
	l.observeWait(w, began, r, err)
	switch {
	case err != nil:
		return nil, w.denial, err
	case !w.hold.isHeld:
		r = nil
	}
	return r, w.grant, nil
}

// fallBack has a fallback wait, no longer than w does. If New has made the fallback, it is asked
// even if that time is over, because the failing store took it: then the fallback grants what may
// happen now.
func (w *waiter) fallBack(to Limiter) (r *Reservation, err error) {
	if w.options == nil {
		return nil, to.WaitN(w.ctx, w.key, w.n)
	}
	r, d, err := to.Hold(w.ctx, w.key, w.n, w.options...)
	if err == nil && !d.Allowed { // of a limiter that New has not made
		w.denial, err = d, &TurnError{N: w.n, Wait: d.RetryAfter}
	}
	return r, err
}
