package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// Hold implements [Limiter].
func (l *limiter) Hold(ctx context.Context, key string, n int, opts ...HoldOption) (r *Reservation, d Decision, _ error) {
	h, err := newHolding(l.check(ctx, n), ofHold, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	w := want{ctx: ctx, until: ctx, key: key, n: n, holds: true, h: h, opts: opts}
	if h.waits {
		r, d, err = l.waitFor(&w)
		d.Allowed = err == nil
		return r, d, err
	}
	var res kernel.Answer
	if d, ok := l.overtakes(ctx, key, n); ok {
		res.Decision = kernel.Decision(d)
	} else {
		t, unknown := l.transitionOf(ctx, key)
		r, err = l.hold(&w, t, unknown, &res)
	}
	l.decided(ctx, CallHold, key, n, &res, err)
	return r, Decision(res.Decision), err
}

// hold holds what w wants as t decides, even if that overtakes a Wait. err is the error of the
// lookup of t, or nil. It sets res.
func (l *limiter) hold(w *want, t *limit.Limit, err error, res *kernel.Answer) (*Reservation, error) {
	var as kernel.Handle
	if err == nil {
		as = newHandle(t, w.h)
		err = l.applyBy(w.ctx, w.key, t, &kernel.Request{Op: kernel.OpHold, N: w.n, Hold: as}, res)
	}
	if err != nil {
		r := &Reservation{l: l, key: w.key}
		d, err := l.degraded(w.ctx, w.n, t, err, func(fallback Limiter) (d Decision, err error) {
			r, d, err = fallback.Hold(context.WithoutCancel(w.ctx), w.key, w.n, w.opts...)
			return d, err
		})
		if !d.Allowed {
			r = nil
		}
		*res = kernel.Answer{Decision: kernel.Decision(d)}
		return r, err
	}
	if !res.Allowed {
		return nil, nil
	}
	return l.held(w.key, w.n, t, res, as), nil
}

// held returns the Reservation of n events that t has granted.
func (l *limiter) held(key string, n int, t *limit.Limit, res *kernel.Answer, as kernel.Handle) *Reservation {
	due := res.Due
	if due == 0 { // the store has a clock of its own
		due = l.timeline.In(max(res.Wait, res.Delay))
	}
	r := &Reservation{l: l, n: n, due: due, key: key, by: t, grant: res.Grant}
	if res.Held {
		r.hold, r.lasts = as.ID, as.For
	}
	return r
}

// Charge implements [Limiter].
func (l *limiter) Charge(ctx context.Context, key string, n int) (Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	d, err := l.charge(ctx, key, n)
	if l.observers != nil {
		l.observe(ctx, Observation{Key: key, Call: CallCharge, N: n, Outcome: counted(ctx, d, err), Decision: d, Err: err})
	}
	return d, err
}

// charge is Charge without checks.
func (l *limiter) charge(ctx context.Context, key string, n int) (Decision, error) {
	var a kernel.Answer
	t, err := l.apply(ctx, key, &kernel.Request{Op: kernel.OpCharge, N: n}, &a)
	if err != nil {
		return l.degraded(ctx, 1, t, err, func(fallback Limiter) (Decision, error) {
			return fallback.Charge(context.WithoutCancel(ctx), key, n)
		})
	}
	return l.charged(ctx, key, Decision(a.Decision)), uncounted(&a, n)
}

// uncounted returns the error of n events that could not be counted.
func uncounted(res *kernel.Answer, n int) error {
	switch {
	case res.Excess:
		return fmt.Errorf("%w: %d more, and the state of the key can hold %d more", ErrDebt, n, res.Most)
	case res.Full:
		return fmt.Errorf("%w: no room for a new key", ErrFull)
	}
	return nil
}

// Settle says that n of the held events have happened, which may be fewer or more. It counts
// once: afterwards, or after Cancel, the error matches [ErrEnded], and nothing changes. For a Reservation of
// [HoldAll], ns has a number for each Bound, in the order in which they were given, or one for all.
//
// The key is then as if n events had been taken at the time of the hold, and not as many as were held:
// exactly, whatever else was granted, held and settled since. If n exceeds the number held, Settle
// counts the rest as [Limiter.Charge] does, at the present time. What is not exact:
//
//   - A [WarmingUp] gives events back only if it has granted nothing since.
//   - A [SlidingLog] with CountDenied keeps the denials that it has noted meanwhile.
//   - A window of StartOnFirstEvent and the refills of RefillInterval that the hold began go on as they
//     would have, while anything counts in them.
//   - In an [InFlight], all events are over, whatever n is.
//   - What a [LeakyBucket] has queued behind the held events keeps its Delay.
//
// If the hold is not open any more, what it held counts as it did, or was given back: because it has
// ended by itself (see [HoldFor]), because the key was evicted or reset, or has got another kind of limit
// ([WithLimits]), or because another process has settled the hold. Then Settle counts only what exceeds
// the number held. So it does if nothing is held: of a reservation of Reserve without
// HoldFor and GiveBack, except that Settle with 0 before its turn is Cancel. A reservation that the [FailurePolicy]
// allowed holds nothing, so that Settle counts all of n, except in an InFlight.
//
// The Decision is what Peek returns afterwards. If the limit of the key has changed, WithLimits says
// whose decision it is. If ctx has ended, n is negative, or the error matches [ErrDebt] or
// [ErrFull], nothing was settled, and Settle can be called again. A handler whose client may have
// left passes [context.WithoutCancel] of the request's context. If the store fails, the
// [FailurePolicy] makes the Decision, the error says so, and it is unknown whether Settle took
// effect; it cannot be called again, and unless it did, the hold ends by itself.
//
// Settle costs a call of the store, and takes time in proportion to the number of open holds of the key. In
// memory, it allocates nothing, except if a log grows; settling a Reservation of [HoldAll] allocates once.
func (r *Reservation) Settle(ctx context.Context, ns ...int) (Decision, error) {
	if r == nil && len(ns) > 1 {
		return r.settle(ctx, slices.Min(ns))
	}
	all := r.parts()
	if want := max(1, len(all.of)); len(ns) != want && len(ns) != 1 {
		return Decision{}, param.Invalid("the count of Settle's numbers", len(ns), fmt.Sprintf("must be %d, one for each Bound of HoldAll, or 1 for all", want))
	}
	if len(ns) == 1 {
		return r.settle(ctx, ns[0])
	}
	return r.settleAll(ctx, slices.Min(ns), func(i int, _ *part) int {
		n := 0
		for k := range ns {
			if all.of[k].first == i {
				n = sum(n, ns[k])
			}
		}
		return n
	})
}

// settle is Settle with one number.
func (r *Reservation) settle(ctx context.Context, n int) (d Decision, err error) {
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
		return Decision{}, errSettled
	}
	if err = r.settleNow(ctx, n, &d); err != nil && isUncounted(err) {
		r.clear(isOver)
	}
	r.observe(ctx, n, d, err)
	return d, err
}

// giveBack settles a Reservation that nobody was given.
func (r *Reservation) giveBack(ctx context.Context) (Decision, error) {
	r.set(isQuiet)
	return r.settle(ctx, 0)
}

// settleNow is Settle without checks. It sets d.
func (r *Reservation) settleNow(ctx context.Context, n int, d *Decision) (err error) {
	l, by := r.l, r.by
	switch {
	case l == nil:
		d.Allowed = true
		return nil
	case n == 0 && r.is(isAhead) && r.Delay() > 0:
		if err = r.cancelAhead(); err != nil {
			*d, err = l.unsettled(ctx, by, err)
		} else {
			*d, err = l.Peek(ctx, r.key)
		}
		return err
	case by == nil: // the store failed, so that nothing is held
		if by, err = l.transitionOf(ctx, r.key); err != nil || !by.Flies() {
			*d, err = l.charge(ctx, r.key, n)
			return err
		}
	case by.Stateless() || r.hold == 0 && n <= r.n: // nothing is held, or counts
		*d, err = l.Peek(ctx, r.key)
		return err
	}
	if r.waiter != nil && r.hold != 0 && n < r.n {
		if err = l.leave(ctx, r.key, r.line, r.waiter); err != nil {
			r.clear(isOver)
			return err
		}
	}
	var res kernel.Answer
	if err = r.settleBy(ctx, by, n, &res); err != nil {
		*d, err = l.unsettled(ctx, by, err)
		return err
	}
	*d = l.behind(ctx, r.key, Decision(res.Decision))
	return uncounted(&res, n-r.n)
}

// settleBy has the store settle the hold for n, and sets res. If there is no hold, its ID is 0, and no
// store finds it.
func (r *Reservation) settleBy(ctx context.Context, by *limit.Limit, n int, res *kernel.Answer) error {
	defer r.l.waiters.Wake(r.key) // even if the store fails: it may have given events back
	return r.l.applyBy(ctx, r.key, by, &kernel.Request{Op: kernel.OpSettle, N: n, Of: r.n, Hold: kernel.Handle{ID: r.hold}, Grant: r.grant}, res)
}

// isUncounted reports whether err is that of events that could not be counted.
func isUncounted(err error) bool { return errors.Is(err, ErrDebt) || errors.Is(err, ErrFull) }

// unsettled is degraded after the store failed to settle what it had held, which a fallback does
// not know: that denies.
func (l *limiter) unsettled(ctx context.Context, by *limit.Limit, err error) (Decision, error) {
	return l.degraded(ctx, 1, by, err, func(Limiter) (Decision, error) { return Decision{}, nil })
}

// Release says that what the events were held for is over, and has cost as many as were held. The events of
// an [InFlight] are over; all other algorithms, also in the same [All], keep them. Release is Settle with
// the number of events held, and has its errors. Pass [context.WithoutCancel] of a request's context,
// because Release does nothing after ctx has ended.
func (r *Reservation) Release(ctx context.Context) error {
	if r == nil {
		return nil
	}
	if r.parts().of != nil {
		_, err := r.settleAll(ctx, 0, func(_ int, p *part) int { return p.n })
		return err
	}
	_, err := r.settle(ctx, r.n)
	return err
}
