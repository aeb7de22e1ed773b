package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// TakeUpTo takes as many of n events of a key as remain, in one decision, and returns how many:
// from 0 to n, which may exceed the limit. The Decision is that of [Limiter.Take] for these
// events. If none are granted, it is that of a Take of one event: RetryAfter says when there is
// one. TakeUpTo neither waits nor overtakes those who do: while callers wait for the key, it is
// denied.
//
// Of an [All], it takes what the part grants with the fewest events remaining. As with Take, n = 0
// is allowed, a negative n is an error that matches [ErrInvalid], and the other errors are those
// of Take. If the store fails, the [FailurePolicy] decides: [FailOpen] grants all n, [FailClosed]
// none, and a [Fallback] as many as remain there.
//
// With package redisstore, TakeUpTo is one call of a script. For more than one event, it ends the
// leases that the process has of the key.
//
// If l was not made by [New], TakeUpTo calls its method TakeUpTo(ctx, key, n) (int, Decision,
// error) if it has one. Otherwise, it calls Peek, and then Take of the events that remain. If
// another caller was faster, so that Take denies them, TakeUpTo tries again with fewer: up to four
// times, and then with one event. So it may take fewer events than remain.
func TakeUpTo(
	ctx context.Context,
	l Limiter,
	key string,
	n int,
) (granted int, d Decision, err error) {
	if own, ok := l.(interface {
		TakeUpTo(ctx context.Context, key string, n int) (int, Decision, error)
	}); ok {
		return own.TakeUpTo(ctx, key, n)
	}
	return takeWhatRemains(ctx, l, key, n)
}

// mostTries is how often takeWhatRemains asks for several events.
const mostTries = 4

// takeWhatRemains is TakeUpTo by Peek and Take.
func takeWhatRemains(
	ctx context.Context,
	l Limiter,
	key string,
	n int,
) (granted int, d Decision, err error) {
	asked := n
	if n > 1 {
		peeked, _ := l.Peek(ctx, key) // Take will have the same error
		if peeked.Checked() {
			asked = max(1, min(n, peeked.Remaining))
		}
	}
	for tries := 1; ; tries++ {
		d, err = l.Take(ctx, key, asked)
		switch {
		case d.Allowed:
			return asked, d, err
		case asked <= 1 || !d.Checked():
			return 0, d, err
		case tries < mostTries:
			asked = max(1, min(asked-1, d.Remaining))
		default:
			asked = 1
		}
	}
}

// TakeUpTo is what the function TakeUpTo calls.
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
		_, err = l.do(&c)
		l.observeCall(ctx, CallTakeUpTo, &c.Call, nil, err)
	}
	return c.Granted(), Decision(c.Answer.Decision), err
}
