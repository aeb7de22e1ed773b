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
	r, err := l.reserve(ctx, key, n, Never, toReserve, why)
	if to, ok := errors.AsType[*toFallback](err); ok {
		r, err = l.policy.limiter.Reserve(ctx, key, n)
		err = to.unlessNever(err)
	}
	return r, err
}

// ReserveWithin implements [Limiter].
func (l *limiter) ReserveWithin(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, Decision, error) {
	if err := checkWithin(l.check(ctx, n), maxWait); err != nil {
		return nil, Decision{}, err
	}
	r, res, err := l.reserveWithin(ctx, key, n, maxWait)
	return r, res.Decision, err
}

// checkWithin returns err, or an error if maxWait cannot be used.
func checkWithin(err error, maxWait time.Duration) error {
	if err == nil && maxWait < 0 {
		err = param.Invalid("maxWait", maxWait, "must be at least 0, which means not to wait, or Never for any wait")
	}
	return err
}

// reserveWithin is ReserveWithin without checks.
func (l *limiter) reserveWithin(ctx context.Context, key string, n int, maxWait time.Duration) (r *Reservation, res Result, err error) {
	r = l.newReservation(0, 0, claim{key: key})
	if n == 0 {
		res, err = l.takeFrom(ctx, key, 0)
		return r, res, err
	}
	if d, ok := l.overtakes(ctx, key, n); ok {
		return nil, Result{Decision: d}, nil
	}
	m := l.mark(key)
	t, res, err := l.apply(ctx, key, Request{Op: OpReserve, N: n, MaxWait: maxWait, within: true})
	if err != nil {
		d, err := l.degraded(ctx, n, t, err, func(fallback Limiter) (d Decision, err error) {
			r, d, err = fallback.ReserveWithin(context.WithoutCancel(ctx), key, n, maxWait)
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
	r = l.reserved(key, n, t, res, m)
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

// reserve reserves n events unless the wait for them exceeds maxWait. To wait for events in
// flight, it holds them instead. It sets why.
func (l *limiter) reserve(ctx context.Context, key string, n int, maxWait time.Duration, to purpose, why *reason) (*Reservation, error) {
	if n == 0 {
		return l.newReservation(0, 0, claim{key: key}), nil
	}
	t, err := l.transitionOf(ctx, key)
	if err == nil && to != toReserve && n <= t.kernel.Limit() && (t.flies || l.waiting.has(key)) {
		if !t.Stateless() {
			return l.waitForRelease(ctx, key, n, why)
		}
		l.waiting.released(key) // for those who wait, the limit has changed as well
	}
	atOnce := to == toWait
	m := l.mark(key)
	var res Result
	if err == nil {
		res, err = l.applyBy(ctx, key, t, Request{Op: OpReserve, N: n, MaxWait: maxWait, atOnce: atOnce && l.local != nil})
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return l.degradedReserve(ctx, key, n, t, err, why)
	case !res.Decision.Allowed:
		why.denied(&res.Decision)
		return nil, refusal(&res, n, t, maxWait)
	case atOnce && res.Wait == 0:
		return nil, nil
	}
	return l.reserved(key, n, t, res, m), nil
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

// reserved returns the reservation of n events by t that res describes. m was taken before it
// was made.
func (l *limiter) reserved(key string, n int, t *Transition, res Result, m mark) *Reservation {
	due := res.due
	if due == 0 { // the store has a clock of its own
		due = l.timeline.In(res.Wait)
	}
	r := l.newReservation(n, due, claim{key: key, by: t, grant: res.Grant, resets: m.resets})
	c := r.claim
	if g, ok := res.Grant.(*kernel.Grant); ok {
		c.line, c.waiter = l.enter(key, g, due, m)
		if c.waiter != nil {
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
	r, err := l.reserve(ctx, key, n, l.patience(ctx), toWait, why)
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
func (l *limiter) WaitHold(ctx context.Context, key string, n int) (*Reservation, error) {
	if err := l.check(ctx, n); err != nil {
		return nil, err
	}
	return l.waitHold(ctx, key, n, nil)
}

// waitHold is WaitHold without checks. It sets why.
func (l *limiter) waitHold(ctx context.Context, key string, n int, why *reason) (*Reservation, error) {
	r, err := l.reserve(ctx, key, n, l.patience(ctx), toHold, why)
	if to, ok := errors.AsType[*toFallback](err); ok {
		r, err = l.policy.limiter.WaitHold(ctx, key, n)
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
