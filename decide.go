package ratelimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

func (l *limiter) Allow(key string) bool { return l.AllowN(key, 1) }

func (l *limiter) AllowN(key string, n int) bool {
	if l.fast != nil && !l.waiters.Any() && (n == 1 || n > 0 && n <= l.t.Limit()) { // limits are at least 1, except of a plan, for which fast is nil
		return l.fast.Allow(l.timeline, key, n)
	}
	ctx := context.Background()
	switch {
	case l.local == nil || n <= 0:
	case l.waiters.Has(key): // Take sees whether it would overtake a Wait
	case l.own != nil:
		return l.allowOwn(ctx, key, n)
	case l.local.Logs != nil:
		return n <= l.t.Limit() && l.local.Logs.Allow(l.timeline, key, l.t.Compiled, n)
	}
	d, _ := l.Take(ctx, key, n)
	return d.Allowed
}

// allowOwn is AllowN for n > 0, with limits of keys' own and states in memory.
func (l *limiter) allowOwn(ctx context.Context, key string, n int) bool {
	alg, err := l.own.lookup(ctx, key)
	if err != nil {
		err = limitError(key, err)
	} else if granted, ok := l.local.Tables.AllowAs(l.timeline, key, alg, n); ok {
		return granted
	}
	var t *limit.Limit
	if err == nil {
		t, err = l.own.transition(key, alg)
	}
	if err != nil {
		d, _ := l.degradedTake(ctx, key, n, nil, err)
		return d.Allowed
	}
	return n <= t.Limit() && (t.Stateless() || l.local.Tables.AllowBy(l.timeline, key, l.local.LimitOf(t), n))
}

func (l *limiter) Take(ctx context.Context, key string, n int) (d Decision, _ error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	if l.waiters.Any() {
		if d, ok := l.overtakes(ctx, key, n); ok {
			return d, nil
		}
	}
	if l.local != nil && l.own == nil { // a shortcut: nothing can fail
		l.decideLocal(kernel.OpTake, key, n, &d)
		return d, nil
	}
	res, err := l.takeFrom(ctx, key, n)
	return Decision(res.Decision), err
}

// takeFrom takes n events, whatever the store and the limit.
func (l *limiter) takeFrom(ctx context.Context, key string, n int) (kernel.Answer, error) {
	t, res, err := l.apply(ctx, key, kernel.Request{Op: kernel.OpTake, N: n})
	if err != nil {
		var d Decision
		d, err = l.degradedTake(ctx, key, n, t, err)
		res = kernel.Answer{Decision: kernel.Decision(d)}
	}
	return res, err
}

// takeBy takes n events as t decides. err is the error of the lookup of t, or nil.
func (l *limiter) takeBy(ctx context.Context, key string, n int, t *limit.Limit, err error) (res kernel.Answer, _ error) {
	if err == nil {
		err = l.applyBy(ctx, key, t, &kernel.Request{Op: kernel.OpTake, N: n}, &res)
	}
	if err != nil {
		var d Decision
		d, err = l.degradedTake(ctx, key, n, t, err)
		res = kernel.Answer{Decision: kernel.Decision(d)}
	}
	return res, err
}

// decideLocal applies an OpTake or OpPeek in memory, if all keys have the same limit. It sets d.
func (l *limiter) decideLocal(op kernel.Op, key string, n int, d *Decision) {
	req := kernel.Request{Op: op, N: n, Clock: l.timeline}
	var a kernel.Answer
	l.local.Decide(key, l.t, &req, &a)
	d.set(&a.Decision)
}

func (l *limiter) Peek(ctx context.Context, key string) (d Decision, _ error) {
	if err := l.check(ctx, 1); err != nil {
		return Decision{}, err
	}
	if l.local != nil && l.own == nil { // a shortcut: nothing can fail
		if l.decideLocal(kernel.OpPeek, key, 1, &d); l.waiters.Any() {
			d = l.behind(ctx, key, d)
		}
		return d, nil
	}
	t, res, err := l.apply(ctx, key, kernel.Request{Op: kernel.OpPeek, N: 1})
	if err != nil {
		return l.degraded(ctx, 1, t, err, func(fallback Limiter) (Decision, error) {
			return fallback.Peek(context.WithoutCancel(ctx), key)
		})
	}
	return l.behind(ctx, key, Decision(res.Decision)), nil
}

func (l *limiter) Reset(ctx context.Context, key string) error {
	if err := l.check(ctx, 0); err != nil {
		return err
	}
	l.timeline.Outside() // so that no decision after the reset is made at a time before it
	// Note the reset twice: before, so that no earlier reservation is cancelled
	// after it, and after, so that none made meanwhile is either.
	l.resets.note(key)
	l.end(ctx, key)
	defer func() {
		l.resets.note(key)
		l.end(ctx, key)
		l.waiters.Wake(key)
	}()
	if err := l.states.Reset(ctx, key); err != nil {
		return l.failed(err)
	}
	l.waiters.Forget(key)
	return nil
}
