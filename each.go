package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/memory"
)

// TakeEach takes n events of each key and appends the decisions to out, in the order of the
// keys. The results are those of a loop that calls [Limiter.Take] for one key after the
// other, but TakeEach takes less time. Use it to decide on the keys of a batch of messages,
// for example. The decisions are independent, and not atomic together: a denial of one key
// does not affect the others, and other calls may take effect between them. A key that occurs
// several times is decided on as often, in order.
//
// TakeEach appends one decision for each key, even if it returns an error. If n is negative
// or ctx has ended, all of them are zero, which is a denial, and the error is that of Take.
// If Take would fail only for some keys, the error has one for each of them, which names keys[i]. The
// decisions on these keys are those of the [FailurePolicy], as with Take: they are Degraded.
//
// In a [MemoryStore], TakeEach loads the states of 64 keys at once, and does not allocate if
// out has room. It checks ctx once, before the first key. With a [SlidingLog] or [WithLimits],
// it is a loop. Package redisstore sends the requests of all keys at once, so that they share
// round trips. With any other store, TakeEach is a loop.
//
// If l was not made by [New], TakeEach calls its method
// TakeEach(ctx, keys, n, out) ([]Decision, error) if it has one, and otherwise its Take for
// each key. So it does not bypass a limiter
// that embeds another one and overrides Take.
func TakeEach(ctx context.Context, l Limiter, keys []string, n int, out []Decision) ([]Decision, error) {
	if each, ok := l.(interface {
		TakeEach(ctx context.Context, keys []string, n int, out []Decision) ([]Decision, error)
	}); ok {
		return each.TakeEach(ctx, keys, n, out)
	}
	return takeInTurn(ctx, l, keys, n, out)
}

// takeInTurn is TakeEach as a loop.
func takeInTurn(ctx context.Context, l Limiter, keys []string, n int, out []Decision) ([]Decision, error) {
	var errs []error
	for i, key := range keys {
		d, err := l.Take(ctx, key, n)
		out = append(out, d)
		if err != nil {
			errs = append(errs, fmt.Errorf("keys[%d]: %w", i, err))
		}
	}
	return out, errors.Join(errs...)
}

// TakeEach is what the function TakeEach calls.
func (l *limiter) TakeEach(ctx context.Context, keys []string, n int, out []Decision) ([]Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return append(out, make([]Decision, len(keys))...), err
	}
	if !l.waiters.Any() { // else a loop overtakes no Wait
		if l.fast != nil {
			return l.takeFast(keys, n, out), nil
		}
		if each, ok := l.states.(limit.EachStates); ok {
			return l.takeTogether(ctx, each, keys, n, out)
		}
	}
	return takeInTurn(ctx, l, keys, n, out)
}

// takeTogether is TakeEach for states that decide on many keys faster than in a loop.
func (l *limiter) takeTogether(ctx context.Context, states limit.EachStates, keys []string, n int, out []Decision) ([]Decision, error) {
	calls := make([]limit.Call, len(keys))
	for i, key := range keys {
		t, err := l.transitionOf(ctx, key)
		calls[i] = limit.Call{Key: key, Limit: t, Err: err, Request: kernel.Request{Op: kernel.OpTake, N: n, Clock: l.timeline}}
	}
	asked := slices.DeleteFunc(slices.Clone(calls), func(c limit.Call) bool { return c.Err != nil || c.Limit.Stateless() })
	if len(asked) > 0 {
		states.ApplyEach(ctx, asked)
	}
	var errs []error
	for i := range calls {
		c := &calls[i]
		switch {
		case c.Err != nil:
		case c.Limit.Stateless():
			c.Limit.Decide(&c.Request, &c.Answer)
		default:
			c, asked = &asked[0], asked[1:]
		}
		d, err := Decision(c.Answer.Decision), c.Err
		if err != nil {
			d, err = l.degradedTake(ctx, c.Key, n, c.Limit, err)
			c.Answer = kernel.Answer{Decision: kernel.Decision(d)}
			errs = append(errs, fmt.Errorf("keys[%d]: %w", i, err))
		}
		l.decided(ctx, CallTake, c.Key, n, &c.Answer, err)
		out = append(out, d)
	}
	return out, errors.Join(errs...)
}

// takeFast is TakeEach for states in tables.
func (l *limiter) takeFast(keys []string, n int, out []Decision) []Decision {
	req := kernel.Request{Op: kernel.OpTake, N: n, Clock: l.timeline}
	var a kernel.Answer
	var b memory.Batch
	out = slices.Grow(out, len(keys))
	for len(keys) > 0 {
		count := l.fast.Touch(keys, &b)
		for i := range count {
			l.fast.TakeOf(&b, i, &req, &a)
			out = out[:len(out)+1]
			out[len(out)-1].set(&a.Decision)
		}
		keys = keys[count:]
	}
	return out
}
