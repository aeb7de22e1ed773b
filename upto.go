package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// TakeUpTo implements [Limiter].
func (l *limiter) TakeUpTo(
	ctx context.Context,
	key string,
	n int,
) (granted int, d Decision, err error) {
	if err := l.check(ctx, n); err != nil {
		return 0, Decision{}, err
	}
	c := newCall(ctx, step.OpTake, key, n)
	c.Request.UpTo = n > 1 // one event is all or none
	if l.fast != nil && !l.lines.Any() {
		c.Request.Clock = l.timeline
		l.fast.Apply(key, l.fast.Base(), &c.Request, &c.Answer)
		l.keepStates()
	} else {
		_, err = l.spend(&c)
		l.observeCall(ctx, CallTakeUpTo, &c.Call, nil, err)
	}
	return c.Granted(), Decision(c.Answer.Decision), err
}
