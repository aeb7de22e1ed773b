package ratelimit

import (
	"context"
	"errors"
	"slices"
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

// WaitFor is WaitN or, to hold the events, Hold with Waiting. It also returns the Decision, if the
// events were granted at once or denied without a failure; otherwise, the Decision is zero.
// Middlewares call it, to know what is left, or when to retry, without another call of the store.
// It waits until the context until ends, which may end before ctx. ctx is the context of calls of
// the store.
func (l *limiter) WaitFor(
	ctx, until context.Context,
	key string,
	n int,
	holds bool,
	opts ...HoldOption,
) (r *Reservation, d Decision, err error) {
	if err := l.check(ctx, n); err != nil {
		return nil, Decision{}, err
	}
	h, err := optionsOfHold(opts)
	if err != nil {
		return nil, Decision{}, err
	}
	h.isHeld = holds
	return l.waitFor(&waiter{
		l: l, ctx: ctx, until: until, key: key, n: n, hold: h, options: opts,
	})
}

// waitFor is WaitFor without checks. If the store fails, a fallback waits instead.
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
	l, ok := to.(*limiter)
	switch {
	case ok:
		r, _, err = l.WaitFor(w.ctx, w.until, w.key, w.n, w.hold.isHeld, w.options...)
	case w.hold.isHeld:
		opts := slices.Concat(w.options, []HoldOption{Waiting()})
		r, _, err = to.Hold(w.until, w.key, w.n, opts...)
	default:
		err = to.WaitN(w.until, w.key, w.n)
	}
	return r, err
}
