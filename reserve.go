package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

func (l *limiter) Reserve(ctx context.Context, key string, n int) (*Reservation, error) {
	if err := l.check(ctx, n); err != nil {
		return nil, err
	}
	var why reason
	r, err := l.reserveAny(ctx, key, n, &why)
	if l.observers != nil {
		l.ended(ctx, CallReserve, key, n, r.Delay(), &why, err)
	}
	return r, err
}

// reserveAny is Reserve without checks. It sets why.
func (l *limiter) reserveAny(ctx context.Context, key string, n int, why *reason) (*Reservation, error) {
	if d, ok := l.overtakes(ctx, key, n); ok {
		why.denied(d)
		return nil, errWaiters(n)
	}
	if n == 0 {
		return &Reservation{l: l, key: key}, nil
	}
	t, err := l.transitionOf(ctx, key)
	r, _, err := l.reserveBy(ctx, key, n, Never, toReserve, t, err, holding{}, why)
	if to, ok := errors.AsType[*toFallback](err); ok {
		r, err = l.policy.limiter.Reserve(ctx, key, n)
		err = to.unlessNever(err)
	}
	return r, err
}

// ReserveWithin implements [Limiter].
func (l *limiter) ReserveWithin(ctx context.Context, key string, n int, maxWait time.Duration, opts ...HoldOption) (*Reservation, Decision, error) {
	h, err := checkWithin(l.check(ctx, n), maxWait, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	r, res, err := l.reserveWithin(ctx, key, n, maxWait, h, opts)
	l.decided(ctx, CallReserve, key, n, &res, err)
	return r, Decision(res.Decision), err
}

// checkWithin returns err, or the values of the options, and an error if maxWait or an option cannot be
// used.
func checkWithin(err error, maxWait time.Duration, opts []HoldOption) (h holding, _ error) {
	switch {
	case err != nil:
		return h, err
	case maxWait < 0:
		return h, param.Invalid("maxWait", maxWait, "must be at least 0, which means not to wait, or Never for any wait")
	}
	return newHolding(false, opts)
}

// reserveWithin is ReserveWithin without checks.
func (l *limiter) reserveWithin(ctx context.Context, key string, n int, maxWait time.Duration, h holding, opts []HoldOption) (r *Reservation, res kernel.Answer, err error) {
	if n == 0 {
		err = l.takeFrom(ctx, key, 0, &res)
		return &Reservation{l: l, key: key}, res, err
	}
	if d, ok := l.overtakes(ctx, key, n); ok {
		return nil, kernel.Answer{Decision: kernel.Decision(d)}, nil
	}
	m := l.mark(key)
	t, err := l.transitionOf(ctx, key)
	var as kernel.Handle
	if err == nil {
		as = newHandle(t, h)
		err = l.applyBy(ctx, key, t, &kernel.Request{Op: kernel.OpReserve, N: n, MaxWait: maxWait, Hold: as, Within: true}, &res)
	}
	if err != nil {
		r = &Reservation{l: l, key: key}
		d, err := l.degraded(ctx, n, t, err, func(fallback Limiter) (d Decision, err error) {
			r, d, err = fallback.ReserveWithin(context.WithoutCancel(ctx), key, n, maxWait, opts...)
			return d, err
		})
		if !d.Allowed {
			r = nil
		}
		return r, kernel.Answer{Decision: kernel.Decision(d)}, err
	}
	if !res.Allowed {
		return nil, res, nil
	}
	r = l.reserved(key, n, t, &res, as, m)
	res.Delay = res.Wait
	return r, res, nil
}

// A purpose is what events are reserved for.
type purpose int

const (
	toReserve purpose = iota
	toWait            // reserveBy may return nil, and keep no record, if the events may happen at once
	toHold            // by waiting
)

// reserveBy reserves n events as t decides, even if that overtakes a Wait. err is the error of the lookup of t,
// or nil. h says how the events are held. If this is a Wait that is to ask again, because its turn is not near or
// held events may come back, it reserves nothing and returns the denial. It sets why.
func (l *limiter) reserveBy(ctx context.Context, key string, n int, maxWait time.Duration, to purpose, t *limit.Limit, err error, h holding, why *reason) (_ *Reservation, denied *kernel.Answer, _ error) {
	waits, near := to != toReserve, l.farthest(t, to)
	m := l.mark(key)
	var res kernel.Answer
	var as kernel.Handle
	if err == nil {
		as = newHandle(t, h)
		err = l.applyBy(ctx, key, t, &kernel.Request{Op: kernel.OpReserve, N: n, MaxWait: maxWait, Near: near, Hold: as, AtOnce: waits && l.local != nil, Yields: waits}, &res)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case err != nil:
		r, err := l.degradedReserve(ctx, key, n, t, err, why)
		return r, nil, err
	case !res.Allowed:
		if waits && n <= t.Limit() && !res.Full && (res.Ends > 0 || near > 0 && !res.QueueFull && res.Wait <= maxWait) {
			denial := res // so that other results are not allocated
			return nil, &denial, nil
		}
		why.denied(Decision(res.Decision))
		return nil, nil, refusal(&res, n, t, maxWait)
	}
	if res.Wait == 0 {
		why.granted(Decision(res.Decision))
		if to == toWait {
			return nil, nil, nil
		}
	}
	return l.reserved(key, n, t, &res, as, m), nil, nil
}

// refusal returns the error of a Wait or Reserve of n events that t has denied.
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
	began := l.began()
	var why reason
	err := l.waitN(ctx, ctx, key, n, &why)
	l.waited(ctx, key, n, began, &why, err)
	return err
}

// waitN is WaitN without checks, and waits at most until a context ends that may end before ctx. It sets why.
func (l *limiter) waitN(ctx, until context.Context, key string, n int, why *reason) error {
	_, err := l.wait(ctx, until, key, n, toWait, holding{}, why)
	if to, ok := errors.AsType[*toFallback](err); ok {
		return to.unlessNever(l.policy.limiter.WaitN(ctx, key, n))
	}
	return err
}

// WaitFor is WaitN or, to hold the events, WaitHold. It also returns the Decision, if the events were granted at
// once or denied without a failure; otherwise, that is zero. Middlewares call it, to know what is left, or when to
// retry, without another call of the store. It waits at most until a context ends that may end before ctx, but does
// not hurry the store.
func (l *limiter) WaitFor(ctx, until context.Context, key string, n int, holds bool, opts ...HoldOption) (r *Reservation, d Decision, err error) {
	h, err := checkHold(l.check(ctx, n), opts)
	if err != nil {
		return nil, Decision{}, err
	}
	began := l.began()
	var why reason
	if holds {
		r, err = l.waitHold(ctx, until, key, n, h, opts, &why)
	} else {
		err = l.waitN(ctx, until, key, n, &why)
	}
	l.waited(ctx, key, n, began, &why, err)
	return r, why.decision(err), err
}

// patience returns the time until the deadline of ctx.
func (l *limiter) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, l.timeline.Clock().Until(deadline)) // a mock may be ahead
	}
	return Never - 1
}

// WaitHold implements [Limiter].
func (l *limiter) WaitHold(ctx context.Context, key string, n int, opts ...HoldOption) (*Reservation, error) {
	h, err := checkHold(l.check(ctx, n), opts)
	if err != nil {
		return nil, err
	}
	began := l.began()
	var why reason
	r, err := l.waitHold(ctx, ctx, key, n, h, opts, &why)
	l.waited(ctx, key, n, began, &why, err)
	return r, err
}

// waitHold is WaitHold without checks, and waits like waitN. It sets why.
func (l *limiter) waitHold(ctx, until context.Context, key string, n int, h holding, opts []HoldOption, why *reason) (*Reservation, error) {
	r, err := l.wait(ctx, until, key, n, toHold, h, why)
	if to, ok := errors.AsType[*toFallback](err); ok {
		r, err = l.policy.limiter.WaitHold(ctx, key, n, opts...)
		return r, to.unlessNever(err)
	}
	if err != nil {
		return nil, err
	}
	r.clear(isQuiet | isAhead)
	return r, nil
}
