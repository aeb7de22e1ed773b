package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// Reserve implements [Limiter].
func (l *limiter) Reserve(
	ctx context.Context,
	key string,
	n int,
	opts ...HoldOption,
) (*Reservation, Decision, error) {
	h, err := newHolding(l.check(ctx, n), ofReserve, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	c := newCall(ctx, step.OpReserve, key, n)
	c.h, c.opts, c.Request.MaxWait = h, opts, h.within
	if n == 0 {
		c.Request.Op, c.opts = step.OpHold, nil // which grants them, whatever the state
	}
	r, err := l.do(&c)
	l.decided(ctx, CallReserve, &c.Call, r, err)
	return r, Decision(c.Answer.Decision), err
}
