package httplimit

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A waiter is a limiter of package ratelimit: its WaitFor also returns the Decision, if it is granted at once.
type waiter interface {
	WaitFor(ctx, until context.Context, key string, n int, holds bool, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error)
}

// wait waits in line, at most for WithShaping's delay, until l has granted what q asks for.
func (m *middleware) wait(ctx context.Context, l ratelimit.Limiter, q question) (a answer, err error) {
	bounded, cancel := m.clk.WithTimeout(ctx, m.shaping)
	defer cancel()
	holds := m.flies || m.settles
	switch l, ok := l.(waiter); {
	case ok:
		a.turn, a.Decision, err = l.WaitFor(ctx, bounded, q.key, q.n, holds, m.hold...)
	case holds:
		a.turn, _, err = m.limits[0].limiter.Hold(bounded, q.key, q.n, append([]ratelimit.HoldOption{ratelimit.Waiting()}, m.hold...)...)
	default:
		err = m.limits[0].limiter.WaitN(bounded, q.key, q.n)
	}
	switch {
	case err == nil && a.Allowed:
		return a, nil
	case err == nil:
		a.Decision, err = m.nowLeft(ctx, q)
		if !holds && ctx.Err() != nil {
			err = nil // what it has spent cannot be given back, so it passes as if its client left a moment later
		}
		return a, err
	case ctx.Err() != nil:
		return a, ctx.Err()
	case a.RetryAfter > 0:
		return a, nil
	}
	return m.refused(ctx, q, err, bounded.Err() != nil)
}

// turnOptions returns the options of a reservation, which without any is no hold.
func (m *middleware) turnOptions() []ratelimit.HoldOption {
	if !m.settles {
		return nil
	}
	return append([]ratelimit.HoldOption{ratelimit.HoldFor(longestRequest)}, m.hold...)
}

// longestRequest is how long a request that was delayed may take before what it held counts as it
// did, like the default of Hold.
const longestRequest = 10 * time.Minute

// refused returns the decision on a request that has waited in vain, because of why. late is whether the delay is
// over. Peek says when to retry: observers do not see it, and have been told of the denial.
func (m *middleware) refused(ctx context.Context, q question, why error, late bool) (answer, error) {
	l := m.limits[0].limiter
	if errors.Is(why, ratelimit.ErrQueueFull) { // of a limiter that New has not made, and that knows more of it
		r, d, err := l.Reserve(ctx, q.key, q.n, append([]ratelimit.HoldOption{ratelimit.Within(m.shaping)}, m.turnOptions()...)...)
		if err = errors.Join(err, r.Wait(ctx)); err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		return answer{Decision: d, turn: r}, err
	}
	d, failed := l.Peek(ctx, q.key)
	if d.Allowed && !d.Degraded && late { // the delay was over before the limiter was asked
		r, d, err := l.Reserve(ctx, q.key, q.n, append([]ratelimit.HoldOption{ratelimit.Within(0)}, m.turnOptions()...)...)
		return answer{Decision: d, turn: r}, err
	}
	d.Allowed = false
	turn, early := errors.AsType[*ratelimit.TurnError](why)
	switch {
	case early:
		d.RetryAfter = turn.Wait - turn.Left
	case errors.Is(why, ratelimit.ErrNever):
		d.RetryAfter = ratelimit.Never
	case errors.Is(why, ratelimit.ErrFull), late:
	default:
		d.Degraded, d.StandIn, failed = true, false, why
	}
	return answer{Decision: d}, failed
}
