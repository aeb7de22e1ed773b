package ratelimit

import (
	"context"
	"runtime"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

func (l *limiter) Allow(key string) bool { return l.AllowN(key, 1) }

func (l *limiter) AllowN(key string, n int) bool {
	if l.fast != nil && !l.lines.Any() && (n == 1 || n > 0 && n <= l.limit.Limit()) {
		// Limits are at least 1, except of a plan, for which fast is nil.
		granted := l.fast.Allow(l.timeline, key, n)
		l.keepStates()
		return granted
	}
	ctx := context.Background()
	switch {
	case n < 0:
		return false
	case l.local != nil && l.ownLimits != nil && l.observers == nil && n > 0 && !l.lines.Has(key):
		// Take sees whether it would overtake a Wait.
		return l.allowOwn(ctx, key, n)
	}
	d, _ := l.take(ctx, CallAllow, key, n)
	return d.Allowed
}

// allowOwn is AllowN for n > 0, with limits of keys' own and states in memory.
func (l *limiter) allowOwn(ctx context.Context, key string, n int) bool {
	alg, err := l.ownLimits.lookup(ctx, key)
	if err == nil {
		if granted, ok := l.local.Space.AllowAs(l.timeline, key, alg, n); ok {
			l.logAnswer(ctx, l.lookupFailures)
			l.keepStates()
			return granted
		}
	}
	lim, unknown, _ := l.limitBy(ctx, key, alg, err) // no end of ctx: AllowN has none
	if unknown != nil {
		c := newCall(ctx, step.OpTake, key, n)
		c.Limit, c.unknown = lim, unknown
		_, _ = l.decide(&c)
		return c.Answer.Allowed
	}
	granted := n <= lim.Limit() &&
		(lim.Stateless() || l.local.Space.AllowBy(l.timeline, key, l.local.LimitOf(lim), n))
	l.keepStates()
	return granted
}

// keepStates is called after a call of the engine in memory. Without it, the states of a limiter
// without a name might be dropped during its last call, as soon as that has read where they are:
// then a key that is used up would be granted.
func (l *limiter) keepStates() { runtime.KeepAlive(l) }

func (l *limiter) Take(ctx context.Context, key string, n int) (d Decision, _ error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	if l.fast != nil && !l.lines.Any() {
		l.decideQuick(step.OpTake, key, n, &d)
		return d, nil
	}
	return l.take(ctx, CallTake, key, n)
}

// take is Take without checks.
func (l *limiter) take(ctx context.Context, name Call, key string, n int) (Decision, error) {
	c := newCall(ctx, step.OpTake, key, n)
	_, err := l.spend(&c)
	l.observeCall(ctx, name, &c.Call, nil, err)
	return Decision(c.Answer.Decision), err
}

// decideQuick applies an OpTake or OpPeek if l.fast is not nil. It sets d.
func (l *limiter) decideQuick(op step.Op, key string, n int, d *Decision) {
	req := step.Request{Op: op, N: n, Clock: l.timeline}
	var ans step.Answer
	l.fast.Apply(key, l.fast.Base(), &req, &ans)
	l.keepStates()
	d.set(&ans.Decision)
}

func (l *limiter) Peek(ctx context.Context, key string) (d Decision, _ error) {
	if err := l.check(ctx, 1); err != nil {
		return Decision{}, err
	}
	if l.fast != nil && !l.lines.Any() {
		l.decideQuick(step.OpPeek, key, 1, &d)
		return d, nil
	}
	c := newCall(ctx, step.OpPeek, key, 1)
	err := l.tell(&c)
	return Decision(c.Answer.Decision), err
}

func (l *limiter) Reset(ctx context.Context, key string) error {
	if err := l.check(ctx, 0); err != nil {
		return err
	}
	l.timeline.Now() // so that no decision after the reset is made at a time before it
	defer l.wakeLine(key)
	if err := l.states.Reset(ctx, key); err != nil {
		return l.storeError(key, err)
	}
	l.lines.Renew(key)
	return nil
}
