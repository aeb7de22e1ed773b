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
	case n < 0:
		return false
	case l.local == nil || l.observers != nil || n == 0:
	case l.waiters.Has(key): // take sees whether it would overtake a Wait
	case l.own != nil:
		return l.allowOwn(ctx, key, n)
	case l.local.Logs != nil:
		return n <= l.t.Limit() && l.local.Logs.Allow(l.timeline, key, l.t.Compiled, n)
	}
	d, _ := l.take(ctx, CallAllow, key, n)
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
	if l.quick != nil && !l.waiters.Any() {
		l.decideQuick(kernel.OpTake, key, n, &d)
		return d, nil
	}
	return l.take(ctx, CallTake, key, n)
}

// take is Take without checks.
func (l *limiter) take(ctx context.Context, call Call, key string, n int) (Decision, error) {
	var a kernel.Answer
	var err error
	if d, ok := l.overtakes(ctx, key, n); ok {
		a.Decision = kernel.Decision(d)
	} else {
		err = l.takeFrom(ctx, key, n, &a)
	}
	l.decided(ctx, call, key, n, &a, err)
	return Decision(a.Decision), err
}

// takeFrom takes n events, whatever the store and the limit. It sets a.
func (l *limiter) takeFrom(ctx context.Context, key string, n int, a *kernel.Answer) error {
	t, err := l.apply(ctx, key, &kernel.Request{Op: kernel.OpTake, N: n}, a)
	if err != nil {
		var d Decision
		d, err = l.degradedTake(ctx, key, n, t, err)
		*a = kernel.Answer{Decision: kernel.Decision(d)}
	}
	return err
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

// decideQuick applies an OpTake or OpPeek if l.quick is not nil. It sets d.
func (l *limiter) decideQuick(op kernel.Op, key string, n int, d *Decision) {
	req := kernel.Request{Op: op, N: n, Clock: l.timeline}
	var a kernel.Answer
	if l.fast != nil {
		l.fast.Apply(key, l.fast.Base(), &req, &a)
	} else {
		l.quick.Decide(key, l.t, &req, &a)
	}
	d.set(&a.Decision)
}

func (l *limiter) Peek(ctx context.Context, key string) (d Decision, _ error) {
	if err := l.check(ctx, 1); err != nil {
		return Decision{}, err
	}
	if l.quick != nil && !l.waiters.Any() {
		l.decideQuick(kernel.OpPeek, key, 1, &d)
		return d, nil
	}
	var a kernel.Answer
	t, err := l.apply(ctx, key, &kernel.Request{Op: kernel.OpPeek, N: 1}, &a)
	if err != nil {
		return l.degraded(ctx, 1, t, err, func(fallback Limiter) (Decision, error) {
			return fallback.Peek(context.WithoutCancel(ctx), key)
		})
	}
	return l.behind(ctx, key, Decision(a.Decision)), nil
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
