package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file has what users call to wait: Wait, and Hold with Waiting. A waiter does the waiting.
// Whoever waits sleeps here, by the limiter's clock.

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

// sleep waits until the limiter's clock shows due, or until turn has an element, unless it is nil.
// It returns the error of ctx if that ends first.
func (l *limiter) sleep(ctx context.Context, due kernel.Instant, turn <-chan struct{}) error {
	for d := l.timeline.Until(due); d > 0; d = l.timeline.Until(due) {
		if woken, err := l.sleepOnce(ctx, d, due, turn); woken || err != nil {
			return err
		}
	}
	return nil
}

// sleepOnce is sleep for d, the time until due. It may return early. woken says that turn has had
// an element.
func (l *limiter) sleepOnce(
	ctx context.Context,
	d time.Duration,
	due kernel.Instant,
	turn <-chan struct{},
) (woken bool, err error) {
	var passed, again <-chan time.Time // nil: never
	poll := mockPollInterval
	if d < Never {
		timer := l.timeline.Clock().Timer(d)
		defer timer.Stop()
		passed = timer.C
		if !l.timeline.Flows() {
			if l.timeline.Until(due) != d {
				return false, nil // the clock was moved before the timer was set, which is late now
			}
			again = time.After(poll)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-turn:
			return true, nil
		case <-passed:
			return false, nil
		case <-again:
			if l.timeline.Until(due) == 0 {
				return false, nil
			}
			poll *= 2
			again = nil
			if poll <= longestMockPoll {
				again = time.After(poll)
			}
		}
	}
}

// mockPollInterval is the real time after which a wait looks again at a clock that is moved by
// hand: a mock may have fired its timers just before the wait set one, and show its new time only
// just after. In a busy process that takes longer, so that the wait looks again after twice the
// time, and so on up to longestMockPoll.
const (
	mockPollInterval = 10 * time.Millisecond
	longestMockPoll  = 20 * time.Second
)
