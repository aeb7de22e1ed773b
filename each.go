package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// takeEachInTurn is TakeEach as a loop.
func takeEachInTurn(
	ctx context.Context,
	l Limiter,
	keys []string,
	n int,
	out []Decision,
) ([]Decision, error) {
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

// TakeEach implements [Limiter].
func (l *limiter) TakeEach(
	ctx context.Context,
	keys []string,
	n int,
	out []Decision,
) ([]Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return append(out, make([]Decision, len(keys))...), err
	}
	if !l.lines.Any() { // else a loop overtakes no Wait
		if l.fast != nil {
			return l.takeEachFast(keys, n, out), nil
		}
		if each, ok := l.states.(limit.EachStates); ok {
			return l.takeBatch(ctx, each, keys, n, out)
		}
	}
	return takeEachInTurn(ctx, l, keys, n, out)
}

// takeBatch is TakeEach for states that decide on many keys faster than in a loop.
func (l *limiter) takeBatch(
	ctx context.Context,
	states limit.EachStates,
	keys []string,
	n int,
	out []Decision,
) ([]Decision, error) {
	calls := make([]call, len(keys))
	var asked []limit.Call // those that need the store
	for i, key := range keys {
		c := &calls[i]
		*c = newCall(ctx, step.OpTake, key, n)
		c.Request.Clock = l.timeline
		c.Limit, c.unknown, c.Err = l.limitFor(ctx, key)
		if c.Err == nil && !c.Limit.Stateless() {
			asked = append(asked, c.Call)
		}
	}
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
			c.Call, asked = asked[0], asked[1:]
			if c.Err == nil && !c.Answer.Unasked {
				l.logAnswer(ctx, l.storeFailures)
			}
		}
		_, err := l.conclude(c)
		if err != nil {
			errs = append(errs, fmt.Errorf("keys[%d]: %w", i, err))
		}
		l.observeCall(ctx, CallTake, &c.Call, nil, err)
		out = append(out, Decision(c.Answer.Decision))
	}
	return out, errors.Join(errs...)
}

// takeEachFast is TakeEach if l.fast is not nil.
func (l *limiter) takeEachFast(keys []string, n int, out []Decision) []Decision {
	req := step.Request{Op: step.OpTake, N: n, Clock: l.timeline}
	var ans step.Answer
	var b memory.Batch
	out = slices.Grow(out, len(keys))
	for len(keys) > 0 {
		count := l.fast.Touch(keys, &b)
		for i := range count {
			l.fast.TakeOf(&b, i, &req, &ans)
			out = out[:len(out)+1]
			out[len(out)-1].set(&ans.Decision)
		}
		keys = keys[count:]
	}
	l.keepStates()
	return out
}
