package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

func (l *limiter) Reserve(ctx context.Context, key string, n int) (*Reservation, error) {
	if err := l.check(ctx, n); err != nil {
		return nil, err
	}
	return l.reserveAny(ctx, key, n, nil)
}

// reserveAny is Reserve without checks. It sets why.
func (l *limiter) reserveAny(ctx context.Context, key string, n int, why *reason) (*Reservation, error) {
	if d, ok := l.overtakes(ctx, key, n); ok {
		why.denied(&d)
		return nil, errWaiters(n)
	}
	r, err := l.reserve(ctx, key, n, Never, toReserve, holding{}, why)
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
	return r, res.Decision, err
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
func (l *limiter) reserveWithin(ctx context.Context, key string, n int, maxWait time.Duration, h holding, opts []HoldOption) (r *Reservation, res Result, err error) {
	if n == 0 {
		res, err = l.takeFrom(ctx, key, 0)
		return &Reservation{l: l, key: key}, res, err
	}
	if d, ok := l.overtakes(ctx, key, n); ok {
		return nil, Result{Decision: d}, nil
	}
	m := l.mark(key)
	t, err := l.transitionOf(ctx, key)
	var as Handle
	if err == nil {
		as = t.handle(h)
		err = l.applyBy(ctx, key, t, &Request{Op: OpReserve, N: n, MaxWait: maxWait, Hold: as, within: true}, &res)
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
		return r, Result{Decision: d}, err
	}
	if !res.Decision.Allowed {
		return nil, res, nil
	}
	r = l.reserved(key, n, t, &res, as, m)
	res.Decision.Delay = res.Wait
	return r, res, nil
}

// A purpose is what reserve is called for.
type purpose int

const (
	toReserve purpose = iota
	toWait            // reserve may return nil, and keep no record, if the events may happen at once
	toHold            // by waiting
)

// reserve reserves n events unless the wait for them exceeds maxWait. To wait, it stands in line while
// held events may come back. h says how the events are held. It sets why.
func (l *limiter) reserve(ctx context.Context, key string, n int, maxWait time.Duration, to purpose, h holding, why *reason) (*Reservation, error) {
	if n == 0 {
		return &Reservation{l: l, key: key}, nil
	}
	t, err := l.transitionOf(ctx, key)
	if err == nil && to != toReserve && n <= t.kernel.Limit() && (t.flies || l.waiting.has(key)) {
		if !t.Stateless() {
			return l.standInLine(ctx, key, n, to, h, why)
		}
		l.waiting.released(key) // for those who wait, the limit has changed as well
	}
	r, denial, err := l.reserveBy(ctx, key, n, maxWait, to, t, err, h, why)
	if denial != nil {
		return l.standInLine(ctx, key, n, to, h, why)
	}
	return r, err
}

// reserveBy is reserve as t decides, even if that overtakes a Wait. err is the error of the lookup of t, or
// nil. If this is a Wait that has to stand in line, because held events may come back, it reserves nothing
// and returns the denial.
func (l *limiter) reserveBy(ctx context.Context, key string, n int, maxWait time.Duration, to purpose, t *Transition, err error, h holding, why *reason) (_ *Reservation, denied *Result, _ error) {
	waits := to != toReserve
	m := l.mark(key)
	var res Result
	var as Handle
	if err == nil {
		as = t.handle(h)
		err = l.applyBy(ctx, key, t, &Request{Op: OpReserve, N: n, MaxWait: maxWait, Hold: as, atOnce: waits && l.local != nil, yields: waits}, &res)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case err != nil:
		r, err := l.degradedReserve(ctx, key, n, t, err, why)
		return r, nil, err
	case !res.Decision.Allowed:
		if waits && res.ends > 0 && n <= t.kernel.Limit() && !res.Full {
			denial := res // so that other results are not allocated
			return nil, &denial, nil
		}
		why.denied(&res.Decision)
		return nil, nil, refusal(&res, n, t, maxWait)
	case to == toWait && res.Wait == 0:
		return nil, nil, nil
	}
	return l.reserved(key, n, t, &res, as, m), nil, nil
}

// refusal returns the error of a Wait or Reserve of n events that t has denied.
func refusal(res *Result, n int, t *Transition, maxWait time.Duration) error {
	switch {
	case res.Full:
		return fmt.Errorf("%w: no room for a new key", ErrFull)
	case res.QueueFull:
		return fmt.Errorf("%w: no room for %d", ErrQueueFull, n)
	case n > t.kernel.Limit():
		return fmt.Errorf("%w: %d at once with a limit of %d", ErrNever, n, t.kernel.Limit())
	case res.Wait == Never:
		return fmt.Errorf("%w: the turn of %d comes after 2116, where time ends", ErrNever, n)
	}
	return &TurnError{N: n, Wait: res.Wait, Left: maxWait}
}

// reserved is held for an OpReserve. m was taken before it.
func (l *limiter) reserved(key string, n int, t *Transition, res *Result, as Handle, m mark) *Reservation {
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
	return l.waitN(ctx, key, n, nil)
}

// waitN is WaitN without checks. It sets why.
func (l *limiter) waitN(ctx context.Context, key string, n int, why *reason) error {
	r, err := l.reserve(ctx, key, n, l.patience(ctx), toWait, holding{}, why)
	if to, ok := errors.AsType[*toFallback](err); ok {
		return to.unlessNever(l.policy.limiter.WaitN(ctx, key, n))
	}
	if err != nil || r == nil {
		return err
	}
	r.set(isQuiet)
	return r.wait(ctx)
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
	return l.waitHold(ctx, key, n, h, opts, nil)
}

// waitHold is WaitHold without checks. It sets why.
func (l *limiter) waitHold(ctx context.Context, key string, n int, h holding, opts []HoldOption, why *reason) (*Reservation, error) {
	r, err := l.reserve(ctx, key, n, l.patience(ctx), toHold, h, why)
	if to, ok := errors.AsType[*toFallback](err); ok {
		r, err = l.policy.limiter.WaitHold(ctx, key, n, opts...)
		return r, to.unlessNever(err)
	}
	if err != nil {
		return nil, err
	}
	r.set(isQuiet)
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	r.clear(isQuiet | isAhead)
	return r, nil
}
