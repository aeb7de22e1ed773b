package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file has Wait, and Hold with Waiting: who need not wait, who may stand in line, and what a
// Wait returns.

func (l *limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

func (l *limiter) WaitN(ctx context.Context, key string, n int) error {
	if err := l.check(ctx, n); err != nil {
		return err
	}
	_, _, err := l.waitFor(&want{ctx: ctx, until: ctx, key: key, n: n})
	return err
}

// WaitFor is WaitN or, to hold the events, Hold with Waiting. It also returns the Decision, if the
// events were granted at once or denied without a failure; otherwise, that is zero. Middlewares
// call it, to know what is left, or when to retry, without another call of the store. It waits at
// most until a context ends that may end before ctx, but does not hurry the store.
func (l *limiter) WaitFor(
	ctx, until context.Context,
	key string,
	n int,
	holds bool,
	opts ...HoldOption,
) (r *Reservation, d Decision, err error) {
	h, err := newHolding(l.check(ctx, n), ofHold, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	h.holds = holds
	return l.waitFor(&want{ctx: ctx, until: until, key: key, n: n, h: h, opts: opts})
}

// A want is what a Hold or a Wait asks for, and why a Wait was not simply granted.
type want struct {
	ctx   context.Context // of calls of the store
	until context.Context // ends with ctx, or before: then it waits no longer
	key   string
	n     int
	// How they are held, if they are: otherwise, a grant at once leaves no Reservation.
	h     holding
	opts  []HoldOption // likewise
	place *line.Place  // that it has in line, or nil
	stood bool         // whether it had to wait there, so that it is not granted at once
	reason
}

// waitFor is WaitFor without checks. If the store fails, a fallback waits instead.
func (l *limiter) waitFor(w *want) (*Reservation, Decision, error) {
	began := l.began()
	r, err := l.wait(w)
	switch fallsBack := err != nil && w.failure != nil && l.policy.kind == fallback; {
	case fallsBack:
		r, err = w.fallBack(l.policy.limiter)
	case r != nil:
		r.clear(isQuiet | isAhead)
	}
	if w.may && errors.Is(err, ErrNever) {
		err = w.failure
	}
	if w.unknown != nil && w.failure == nil {
		w.standIn()
	}
	l.waited(w, began, r, err)
	switch {
	case err != nil:
		return nil, w.denial, err
	case !w.h.holds:
		r = nil
	}
	return r, w.grant, nil
}

// fallBack has a fallback wait, no longer than the want does. One that New has made does so even if
// that time is over, because the store took it: then it grants what may happen now.
func (w *want) fallBack(to Limiter) (r *Reservation, err error) {
	l, ok := to.(*limiter)
	switch {
	case ok:
		r, _, err = l.WaitFor(w.ctx, w.until, w.key, w.n, w.h.holds, w.opts...)
	case w.h.holds:
		r, _, err = to.Hold(w.until, w.key, w.n, slices.Concat(w.opts, []HoldOption{Waiting()})...)
	default:
		err = to.WaitN(w.until, w.key, w.n)
	}
	return r, err
}

// patience returns the time until the deadline of ctx.
func (l *limiter) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, l.timeline.Clock().Until(deadline)) // a mock may be ahead
	}
	return Never - 1
}

// wait reserves what w wants, and returns when its turn has come. The Reservation is nil if there
// is nothing to know of it.
func (l *limiter) wait(w *want) (*Reservation, error) {
	if w.n == 0 {
		return &Reservation{l: l, key: w.key}, nil
	}
	t, unknown, err := l.limitFor(w.ctx, w.key)
	if err != nil {
		return nil, err
	}
	w.unknown = unknown
	if t.Stateless() || w.n > t.Limit() {
		l.waiters.Look(w.key, func(ln *line.Line) { l.nudge(ln, t) })
		r, _, err := l.reserveTurn(w, t, kernel.Forever)
		return r, err
	}
	var came int64
	if l.local == nil {
		came = l.waiters.Came.Add(1)
	}
	var first *Reservation
	var denial *step.Answer
	asked, ask := false, func() { first, denial, err = l.reserveTurn(w, t, kernel.Forever) }
	switch {
	case t.Releases():
	case l.local == nil:
		asked = l.waiters.Alone(w.key, ask)
	case !l.waiters.Has(w.key):
		asked = true
		ask()
	}
	if err != nil ||
		asked && denial == nil && (first == nil || !first.is(isAhead) || first.Delay() == 0) {
		return first, err
	}
	if !asked && unknown == nil {
		l.serveBehind(w.key, t, w.h)
	}
	// If it was denied, it asks again: there may be room since, which nobody has told it of.
	in := &waiter{want: *w, l: l}
	defer func() { w.reason = in.reason }()
	since, _ := l.timeline.Now()
	entrant := line.Entrant{
		Terms: line.Terms{N: w.n, By: terms{l, t, w.h}},
		Came:  came,
		Since: since,
		Ended: w.until.Done(),
		Asked: asked,
	}
	in.place, err = l.waiters.Enter(w.key, entrant, func(ln *line.Line) error {
		if first != nil {
			return nil
		}
		return l.mayEnter(ln, &in.want, t)
	})
	if err == nil {
		return in.stand(first)
	}
	// A caller that tries again at once would keep those who wait from their turns.
	runtime.Gosched()
	if in.denial == (Decision{}) { // the line is too long
		c := newCall(w.ctx, step.OpTake, w.key, w.n)
		in.denial, _ = l.overtakes(&c, w.n)
	}
	return nil, err
}

// refusal returns the error of a Wait that t has denied.
func (w *want) refusal(a *step.Answer, t *limit.Limit, patience time.Duration) error {
	w.denial = Decision(a.Decision)
	switch {
	case a.Full:
		return fmt.Errorf("%w: no room for a new key", ErrFull)
	case a.QueueFull:
		return fmt.Errorf("%w: no room for %d", ErrQueueFull, w.n)
	case w.n > t.Limit() && w.unknown != nil: // the limit of the key may grant them
		w.denial = closed(t)
		return w.unknown
	case w.n > t.Limit():
		return fmt.Errorf("%w: %d at once with a limit of %d", ErrNever, w.n, t.Limit())
	case a.Wait == Never:
		return fmt.Errorf("%w: the turn of %d comes after 2116, where time ends", ErrNever, w.n)
	}
	return &TurnError{N: w.n, Wait: a.Wait, Left: patience}
}
