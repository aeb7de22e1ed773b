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
	opts ...ReserveOption,
) (*Reservation, Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return nil, Decision{}, err
	}
	h, err := optionsOfReserve(opts)
	if err != nil {
		return nil, Decision{}, err
	}
	c := newCall(ctx, step.OpReserve, key, n)
	c.hold, c.reserveOptions, c.Request.MaxWait = h, opts, h.maxWait
	if n == 0 {
		c.Request.Op = step.OpHold // which grants them, whatever the state
	}
	r, err := l.spend(&c)
	l.observeCall(ctx, CallReserve, &c.Call, r, err)
	return r, Decision(c.Answer.Decision), err
}
