package ratelimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// TakeUpTo implements [Limiter].
func (l *limiter) TakeUpTo(ctx context.Context, key string, n int) (granted int, _ Decision, _ error) {
	if err := l.check(ctx, n); err != nil {
		return 0, Decision{}, err
	}
	res, err := l.takeUpTo(ctx, key, n)
	return res.granted, res.Decision, err
}

// takeUpTo is TakeUpTo without checks.
func (l *limiter) takeUpTo(ctx context.Context, key string, n int) (res Result, _ error) {
	if d, ok := l.overtakes(ctx, key, n); ok {
		return Result{Decision: d}, nil
	}
	if l.local != nil && l.own == nil { // a shortcut: nothing can fail
		req := kernel.Request{Op: kernel.OpTakeUpTo, N: n, Clock: l.timeline}
		var a kernel.Answer
		l.local.apply(key, &req, &a)
		res.took(&a)
		return res, nil
	}
	t, res, err := l.apply(ctx, key, Request{Op: OpTakeUpTo, N: n})
	if err == nil {
		return res, nil
	}
	granted := n
	d, err := l.degraded(ctx, 1, t, err, func(fallback Limiter) (d Decision, err error) {
		granted, d, err = fallback.TakeUpTo(context.WithoutCancel(ctx), key, n)
		return d, err
	})
	if !d.Allowed {
		granted = 0
	}
	return Result{Decision: d, granted: granted}, err
}

// Hold implements [Limiter].
func (l *limiter) Hold(ctx context.Context, key string, n int) (r *Reservation, d Decision, _ error) {
	if err := l.check(ctx, n); err != nil {
		return nil, Decision{}, err
	}
	if l.waiting.any() {
		if d, ok := l.overtakes(ctx, key, n); ok {
			return nil, d, nil
		}
	}
	t, err := l.transitionOf(ctx, key)
	r, res, err := l.hold(ctx, key, n, t, err)
	return r, res.Decision, err
}

// hold holds n events as t decides, even if that overtakes a Wait. err is the error of the
// lookup of t, or nil.
func (l *limiter) hold(ctx context.Context, key string, n int, t *Transition, err error) (_ *Reservation, res Result, _ error) {
	resets := l.resets.count.Load()
	if err == nil {
		res, err = l.applyBy(ctx, key, t, Request{Op: OpHold, N: n})
	}
	if err != nil {
		r := l.newReservation(0, 0, claim{key: key})
		d, err := l.degraded(ctx, n, t, err, func(fallback Limiter) (d Decision, err error) {
			r, d, err = fallback.Hold(context.WithoutCancel(ctx), key, n)
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
	return l.holding(key, n, t, &res, resets), res, nil
}

// holding returns the Reservation of n events that t has granted to an OpHold.
func (l *limiter) holding(key string, n int, t *Transition, res *Result, resets uint64) *Reservation {
	due := res.due
	if due == 0 { // the store has a clock of its own
		due = l.timeline.In(res.Decision.Delay)
	}
	return l.newReservation(n, due, claim{key: key, by: t, grant: res.Grant, resets: resets})
}

// Charge implements [Limiter].
func (l *limiter) Charge(ctx context.Context, key string, n int) (Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	if l.local != nil && l.own == nil { // a shortcut: the store cannot fail
		var d Decision
		err := l.countLocal(ctx, key, n, &d)
		return d, err
	}
	t, res, err := l.apply(ctx, key, Request{Op: OpCharge, N: n})
	if err != nil {
		return l.degraded(ctx, 1, t, err, func(fallback Limiter) (Decision, error) {
			return fallback.Charge(context.WithoutCancel(ctx), key, n)
		})
	}
	return l.behind(ctx, key, res.Decision), res.uncounted(n)
}

// countLocal applies an OpCharge of n events in memory, if all keys have the same limit. It sets d.
func (l *limiter) countLocal(ctx context.Context, key string, n int, d *Decision) error {
	req := kernel.Request{Op: kernel.OpCharge, N: n, Clock: l.timeline}
	var a kernel.Answer
	l.local.apply(key, &req, &a)
	d.set(&a)
	if a.Excess || a.Full {
		res := result(&a)
		return res.uncounted(n)
	}
	if l.waiting.any() {
		*d = l.behind(ctx, key, *d)
	}
	return nil
}

// uncounted returns the error of n events that could not be counted.
func (r *Result) uncounted(n int) error {
	switch {
	case r.excess:
		return fmt.Errorf("%w: %d more, and the state of the key can hold %d more", ErrDebt, n, r.most)
	case r.Full:
		return fmt.Errorf("%w: no room for a new key", ErrFull)
	}
	return nil
}

// Settle says that n of the held events have happened, which may be fewer or more. It counts
// once: afterwards, or after Cancel, it returns [ErrSettled] and changes nothing.
//
// If n is the number held, nothing changes. If n is greater, Settle counts the rest as
// [Limiter.Charge] does. If n is less, Settle gives the others back. The key is then as if only
// n events had been taken at the time of the hold, if nothing was granted on it since.
// Otherwise, it is never more generous than that, so that in no span more events happen than
// the algorithm bounds:
//
//   - Windows and logs always give all of them back, in the window or segment of the hold, or
//     at its instant, as long as it counts. A window, segment or period that a reservation has
//     pushed out gives nothing back.
//   - A [TokenBucket] gives back as much as would be missing now if only the hold had been
//     taken from a full bucket: the rest may have come back already. While reservations are
//     pending, or the bucket is in debt, it gives back nothing. (In debt, it does so with
//     RefillInterval, and it may if all others were granted at the very instant of the hold.)
//   - A [LeakyBucket] that has queued other events since, and a [WarmingUp] that has granted
//     others since, give back nothing, and a [SlidingLog] with CountDenied never does.
//   - In an [InFlight], all events are over, whatever n is.
//   - In an [All], each part does what it does alone. While reservations are pending, or one
//     part of the All is a WarmingUp that grants nothing yet, a TokenBucket with continuous
//     refill gives nothing back unless nothing was granted since.
//
// A window of StartOnFirstEvent and an interval of RefillInterval that the hold began last
// as long as they would have, if others were granted in them.
//
// If the turn of a reservation has not come, Settle with 0 is Cancel, and TokenBucket
// and WarmingUp give nothing back to a greater n. After its turn, Settle treats it like a hold.
// If the key was evicted or reset since, or its limit is another one (see [WithLimits]), Settle
// gives nothing back. In a [MemoryStore], it may also give nothing back if another key of the limiter
// was evicted since, or more than a hundred others were reset. In other stores, if another limiter
// called Reset, Settle may give back events that others have spent since; but that of package
// redisstore learns of it, with the exceptions listed there. An
// [InFlight] finds its events by their time: it releases them even if its limit has changed or
// other keys were forgotten. A reservation that the [FailurePolicy] allowed holds nothing, so that
// Settle counts all of n, except in an InFlight.
//
// The Decision is what Peek returns afterwards. If the limit of the key has changed, WithLimits says
// whose decision it is. If ctx has ended, n is negative, or the error matches [ErrDebt] or
// [ErrFull], nothing was settled, and Settle can be called again. A handler whose client may have
// left passes [context.WithoutCancel] of the request's context. If the store fails, the
// [FailurePolicy] makes the Decision, the error says so, and it is unknown whether Settle took
// effect; it cannot be called again.
//
// In memory, settling a hold allocates nothing, except if a log grows; settling one of [HoldAll]
// allocates once.
func (r *Reservation) Settle(ctx context.Context, n int) (d Decision, err error) {
	if r == nil {
		r = new(Reservation)
	}
	if r.parts().of != nil {
		return r.settleAll(ctx, n, func(_ int, p *part) int { return times(p.times, n) })
	}
	if err := r.l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	if r.set(isOver) {
		return Decision{}, ErrSettled
	}
	if err = r.settleNow(ctx, n, &d); err != nil && isUncounted(err) {
		r.clear(isOver)
	}
	if r.l != nil && r.l.observers != nil {
		r.observe(ctx, CallSettle, n, d, err)
	}
	return d, err
}

// settleNow is Settle without checks. It sets d.
func (r *Reservation) settleNow(ctx context.Context, n int, d *Decision) (err error) {
	if r.claim == nil {
		d.Allowed = true
		return nil
	}
	return r.settleClaim(ctx, r.claim, n, d)
}

// giveBack settles a Reservation that nobody was given.
func (r *Reservation) giveBack(ctx context.Context) (Decision, error) {
	r.set(isQuiet)
	return r.Settle(ctx, 0)
}

// settleClaim is Settle of a claim. It sets d.
func (r *Reservation) settleClaim(ctx context.Context, c *claim, n int, d *Decision) (err error) {
	l := r.l
	if c.waiter != nil && n < r.n {
		if n == 0 && r.Delay() > 0 {
			if err = l.cancelClaim(c); err != nil {
				*d, err = l.unsettled(ctx, c.by, err)
			} else {
				*d, err = l.Peek(ctx, c.key)
			}
			return err
		}
		if err = l.leave(ctx, c.key, c.line, c.waiter); err != nil {
			r.clear(isOver)
			return err
		}
	}
	switch {
	case c.grant != nil:
		return r.settle(ctx, c, c.by, c.grant, n, d)
	case c.by != nil && c.by.Stateless():
		*d, err = l.Peek(ctx, c.key) // it was held while the key was unlimited, and never counts
		return err
	}
	t, err := l.transitionOf(ctx, c.key)
	if err != nil || !t.flies {
		*d, err = l.Charge(ctx, c.key, n) // it holds nothing, because the store failed
		return err
	}
	return r.settle(ctx, c, t, kernel.Nothing, n, d) // what it was for is over, so nothing is in flight
}

// isUncounted reports whether err is that of events that could not be counted.
func isUncounted(err error) bool { return errors.Is(err, ErrDebt) || errors.Is(err, ErrFull) }

// settle is Settle of a Grant that by has left. It sets d.
func (r *Reservation) settle(ctx context.Context, c *claim, by *Transition, grant any, n int, d *Decision) error {
	l := r.l
	defer l.waiting.released(c.key) // even if the store fails: it may have released them
	lost, doubt := l.resets.of(c.resets, c.key)
	doubt = doubt && l.local == nil // a store in memory knows
	res, err := l.applyBy(ctx, c.key, by, Request{Op: OpSettle, N: n, Grant: grant, lost: lost, doubt: doubt})
	if err != nil {
		*d, err = l.unsettled(ctx, by, err)
		return err
	}
	*d = l.behind(ctx, c.key, res.Decision)
	return res.uncounted(n - r.n)
}

// unsettled is degraded after the store failed to settle what it had held, which a fallback does
// not know: that denies.
func (l *limiter) unsettled(ctx context.Context, by *Transition, err error) (Decision, error) {
	return l.degraded(ctx, 1, by, err, func(Limiter) (Decision, error) { return Decision{}, nil })
}

// Release says that what the events were held for is over. The events of an [InFlight] are
// released; all other algorithms, also in the same [All], keep them, because they have
// happened. Release is Settle with the number of events held, and has its errors. Pass
// [context.WithoutCancel] of a request's context, because Release does nothing after ctx has
// ended.
func (r *Reservation) Release(ctx context.Context) error {
	if r == nil {
		return nil
	}
	if r.parts().of != nil {
		_, err := r.settleAll(ctx, 0, func(_ int, p *part) int { return p.n })
		return err
	}
	_, err := r.Settle(ctx, r.n)
	return err
}
