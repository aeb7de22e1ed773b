package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// Reserve implements [Limiter].
func (l *limiter) Reserve(ctx context.Context, key string, n int, opts ...HoldOption) (*Reservation, Decision, error) {
	h, err := newHolding(l.check(ctx, n), ofReserve, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	var a kernel.Answer
	r, err := l.reserve(ctx, key, n, h, opts, &a)
	l.decided(ctx, CallReserve, key, n, &a, err)
	return r, Decision(a.Decision), err
}

// reserve is Reserve without checks. It sets a.
func (l *limiter) reserve(ctx context.Context, key string, n int, h holding, opts []HoldOption, a *kernel.Answer) (*Reservation, error) {
	if n == 0 {
		return &Reservation{l: l, key: key}, l.takeFrom(ctx, key, 0, a)
	}
	if d, ok := l.overtakes(ctx, key, n); ok {
		a.Decision = kernel.Decision(d)
		return nil, nil
	}
	m := l.mark(key)
	t, err := l.transitionOf(ctx, key)
	var as kernel.Handle
	if err == nil {
		as = newHandle(t, h)
		err = l.applyBy(ctx, key, t, &kernel.Request{Op: kernel.OpReserve, N: n, MaxWait: h.longest(), Hold: as, Within: true}, a)
	}
	if err != nil {
		r := &Reservation{l: l, key: key}
		d, err := l.degraded(ctx, n, t, err, func(fallback Limiter) (d Decision, err error) {
			r, d, err = fallback.Reserve(context.WithoutCancel(ctx), key, n, opts...)
			return d, err
		})
		*a = kernel.Answer{Decision: kernel.Decision(d)}
		if !d.Allowed {
			r = nil
		}
		return r, err
	}
	if !a.Allowed {
		return nil, nil
	}
	a.Delay = a.Wait
	return l.reserved(key, n, t, a, as, m), nil
}

// A want is what a Hold or a Wait asks for, and why a Wait was not simply granted.
type want struct {
	ctx   context.Context // of calls of the store
	until context.Context // ends with ctx, or before: then it waits no longer
	key   string
	n     int
	holds bool         // whether the events are held; otherwise, a grant at once leaves no Reservation
	h     holding      // how they are held
	opts  []HoldOption // likewise
	reason
}

// reserveTurn reserves what w wants as t decides, even if that overtakes another Wait. err is the error of the
// lookup of t, or nil. If w is to ask again, because its turn is not near or
// held events may come back, it reserves nothing and returns the denial.
func (l *limiter) reserveTurn(w *want, t *limit.Limit, err error) (_ *Reservation, denied *kernel.Answer, _ error) {
	near, patience := l.farthest(t, w.holds), l.patience(w.until)
	m := l.mark(w.key)
	var res kernel.Answer
	var as kernel.Handle
	if err == nil {
		as = newHandle(t, w.h)
		err = l.applyBy(w.ctx, w.key, t, &kernel.Request{Op: kernel.OpReserve, N: w.n, MaxWait: patience, Near: near, Hold: as, AtOnce: l.local != nil, Yields: true}, &res)
	}
	switch {
	case err != nil && w.ctx.Err() != nil:
		return nil, nil, w.ctx.Err()
	case err != nil:
		r, err := l.degradedWait(w, t, err)
		return r, nil, err
	case !res.Allowed:
		if w.n <= t.Limit() && !res.Full && (res.Ends > 0 || near > 0 && !res.QueueFull && res.Wait <= patience) {
			denial := res // so that other results are not allocated
			return nil, &denial, nil
		}
		w.denial = Decision(res.Decision)
		return nil, nil, refusal(&res, w.n, t, patience)
	}
	if res.Wait == 0 {
		w.grant = Decision(res.Decision)
		if !w.holds {
			return nil, nil, nil
		}
	}
	return l.reserved(w.key, w.n, t, &res, as, m), nil, nil
}

// refusal returns the error of a Wait for n events that t has denied.
func refusal(res *kernel.Answer, n int, t *limit.Limit, maxWait time.Duration) error {
	switch {
	case res.Full:
		return fmt.Errorf("%w: no room for a new key", ErrFull)
	case res.QueueFull:
		return fmt.Errorf("%w: no room for %d", ErrQueueFull, n)
	case n > t.Limit():
		return fmt.Errorf("%w: %d at once with a limit of %d", ErrNever, n, t.Limit())
	case res.Wait == Never:
		return fmt.Errorf("%w: the turn of %d comes after 2116, where time ends", ErrNever, n)
	}
	return &TurnError{N: n, Wait: res.Wait, Left: maxWait}
}

// reserved is held for an kernel.OpReserve. m was taken before it.
func (l *limiter) reserved(key string, n int, t *limit.Limit, res *kernel.Answer, as kernel.Handle, m mark) *Reservation {
	r := l.held(key, n, t, res, as)
	r.resets = m.resets
	if g, ok := res.Grant.(*kernel.Grant); ok {
		r.line, r.waiter = l.enter(key, g, r.due, m)
		if r.waiter != nil {
			r.set(isAhead)
		}
	} else if res.Grant != nil {
		r.set(isAhead)
	}
	return r
}

func (l *limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

func (l *limiter) WaitN(ctx context.Context, key string, n int) error {
	if err := l.check(ctx, n); err != nil {
		return err
	}
	_, _, err := l.waitFor(&want{ctx: ctx, until: ctx, key: key, n: n})
	return err
}

// WaitFor is WaitN or, to hold the events, Hold with Waiting. It also returns the Decision, if the events were granted at
// once or denied without a failure; otherwise, that is zero. Middlewares call it, to know what is left, or when to
// retry, without another call of the store. It waits at most until a context ends that may end before ctx, but does
// not hurry the store.
func (l *limiter) WaitFor(ctx, until context.Context, key string, n int, holds bool, opts ...HoldOption) (r *Reservation, d Decision, err error) {
	h, err := newHolding(l.check(ctx, n), ofHold, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	h.holds = holds
	return l.waitFor(&want{ctx: ctx, until: until, key: key, n: n, holds: holds, h: h, opts: opts})
}

// patience returns the time until the deadline of ctx.
func (l *limiter) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, l.timeline.Clock().Until(deadline)) // a mock may be ahead
	}
	return Never - 1
}

// waitFor is WaitFor without checks.
func (l *limiter) waitFor(w *want) (*Reservation, Decision, error) {
	began := l.began()
	r, err := l.waitAny(w)
	l.waited(w, began, err)
	if err != nil {
		return nil, w.denial, err
	}
	return r, w.grant, nil
}

// waitAny is wait, or that of the fallback if the store fails. The Reservation is nil unless the events are held.
func (l *limiter) waitAny(w *want) (*Reservation, error) {
	r, err := l.wait(w)
	to, falls := errors.AsType[*toFallback](err)
	switch {
	case falls && w.holds:
		r, _, err = l.policy.limiter.Hold(w.ctx, w.key, w.n, slices.Concat(w.opts, []HoldOption{Waiting()})...)
		return r, to.unlessNever(err)
	case falls:
		return nil, to.unlessNever(l.policy.limiter.WaitN(w.ctx, w.key, w.n))
	case err != nil || !w.holds:
		return nil, err
	}
	r.clear(isQuiet | isAhead)
	return r, nil
}
