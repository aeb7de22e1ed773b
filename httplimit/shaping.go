package httplimit

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ends"
)

// wait waits in line, at most for WithShaping's delay and until the deadline of the request, until
// l has granted what a asks for. ctx is for calls of the store. The error is as for take.
func (g *Gate) wait(ctx context.Context, l ratelimit.Limiter, a *Admission) (err error) {
	asked := a.request.Context()
	bounded, cancel := a.clock().WithTimeout(asked, g.shaping)
	defer cancel()
	if !g.settles && !a.flies && g.unlocksAfter(ctx, a) > 0 {
		return g.takeNow(ctx, a)
	}
	opts := append([]ratelimit.HoldOption{ratelimit.WaitingUntil(bounded)}, g.hold...)
	if !a.holds {
		opts = append(opts, ratelimit.Spending())
	}
	a.turn, a.Decision, err = l.Hold(ctx, a.key, a.n, opts...)
	isKnown := a.Decision.Limit > 0 || !a.Decision.Allowed // which it is not after a wait
	if err == nil && isKnown {
		return nil
	}
	ended := asked.Err()
	if a.isLocal() { // then a cancelled request is decided on as one whose delay is over, see take
		ctx = context.WithoutCancel(ctx)
		if errors.Is(ended, context.Canceled) {
			ended = nil
		}
	}
	switch {
	case err == nil:
		a.Decision, err = nowLeft(ctx, a)
		if !a.holds && ended != nil {
			// What it has spent cannot be given back, so it passes as if its client left a moment
			// later.
			err = nil
		}
		return err
	case ended != nil:
		return ended
	case a.Decision.RetryAfter > 0:
	default:
		// In this order: the end of asked may be ending bounded just now, without a lock in a mock.
		isOver := asked.Err() != nil || bounded.Err() != nil
		err = g.refuseWait(ctx, a, err, isOver)
		if err != nil || a.Decision.Allowed {
			return err
		}
	}
	a.Decision.RetryAfter = max(a.Decision.RetryAfter, g.unlocksAfter(ctx, a))
	return nil
}

// unlocksAfter returns how long a [ratelimit.Lockout] locks the key of a, and 0 if none does. A
// client that is locked out does not wait, and is told when the lock ends, not when a request would
// wait for that. Where requests are settled, a lock may still be taken back: such a request waits.
func (g *Gate) unlocksAfter(ctx context.Context, a *Admission) time.Duration {
	p := a.limits[0].policiesOf(ctx, a.key, g.status)
	if !p.Locks() {
		return 0
	}
	d, err := a.limits[0].limiter.Peek(ctx, a.key)
	if err != nil || d.Allowed || !p.Quota(d).Locks() {
		return 0
	}
	return d.RetryAfter
}

// mostAsked is how often wait asks a limiter at most, one call after the other: whether it locks
// the key, for the turn, why it was refused, and for what is free by then.
const mostAsked = 4

// nowLeft returns the decision on a request that was granted after a wait.
func nowLeft(ctx context.Context, a *Admission) (ratelimit.Decision, error) {
	d, err := a.limits[0].limiter.Peek(ctx, a.key)
	d.Allowed, d.RetryAfter, d.Delay = true, 0, 0
	return d, err
}

// turnOptions returns the options of a reservation, which without any is no hold. That of an
// InFlight is one in any case, for its own Timeout.
func (a *Admission) turnOptions(first ratelimit.ReserveOption) []ratelimit.ReserveOption {
	if !a.holds || a.flies && !a.gate.settles {
		return []ratelimit.ReserveOption{first}
	}
	return ends.OfReserve(a.gate.ends, first, ratelimit.HoldFor(longestRequest))
}

// longestRequest is how long a request that was delayed may take before what it held counts as it
// did, like the default of Hold.
const longestRequest = 10 * time.Minute

// refuseWait sets the decision on a request that has waited in vain, because of why. isOver is
// whether it does not wait any longer, because the delay is over or because it is cancelled. Peek
// says when to retry: observers do not see it, and have been told of the denial.
func (g *Gate) refuseWait(ctx context.Context, a *Admission, why error, isOver bool) (err error) {
	l := a.limits[0].limiter
	reserve := func(delay time.Duration) error {
		opts := a.turnOptions(ratelimit.Within(delay))
		a.turn, a.Decision, err = l.Reserve(ctx, a.key, a.n, opts...)
		return err
	}
	if errors.Is(why, ratelimit.ErrQueueFull) {
		// Of a limiter that New has not made, and that knows more of it.
		err := reserve(g.shaping)
		err = errors.Join(err, a.turn.Wait(a.request.Context()))
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		return err
	}
	d, failed := l.Peek(ctx, a.key)
	if d.Allowed && d.Delay == 0 && !d.Degraded && isOver {
		// The wait was over before the limiter was asked.
		return reserve(0)
	}
	d.Allowed, d.RetryAfter, d.Delay = false, max(d.RetryAfter, d.Delay), 0
	turn, early := errors.AsType[*ratelimit.TurnError](why)
	switch {
	case early:
		d.RetryAfter = turn.Wait - turn.Left
	case errors.Is(why, ratelimit.ErrNever):
		d.RetryAfter = ratelimit.Never
	case errors.Is(why, ratelimit.ErrFull), isOver:
	default:
		d.Degraded, d.StandIn, failed = true, false, why
	}
	a.turn, a.Decision = nil, d
	return failed
}
