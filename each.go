package ratelimit

import (
	"context"
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
// If Take would fail only for some keys, the error matches the errors of all of them. The
// decisions on these keys are those of the [FailurePolicy], as with Take: they are Degraded.
//
// In a [MemoryStore], TakeEach loads the states of 64 keys at once, and does not allocate if
// out has room. It checks ctx once, before the first key. With a [SlidingLog] or [WithLimits],
// it is a loop. Package redisstore sends the requests of all keys at once, so that they share
// round trips. With any other store, TakeEach is a loop, unless the store has [limit.EachStates].
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
	var failed *eachError
	for i, key := range keys {
		d, err := l.Take(ctx, key, n)
		out = append(out, d)
		failed = failed.add(i, len(keys), err)
	}
	return out, failed.err()
}

// An eachError has the errors of the keys of a TakeEach, by their index. It matches all of them.
type eachError struct{ errs []error }

func (e *eachError) Error() string {
	all := e.Unwrap()
	first := slices.IndexFunc(e.errs, func(err error) bool { return err != nil })
	return fmt.Sprintf("ratelimit: %d of %d keys failed; the first is keys[%d]: %v", len(all), len(e.errs), first, all[0])
}

// Unwrap returns the errors that are not nil.
func (e *eachError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.errs), func(err error) bool { return err == nil })
}

// add records the error of key i of count, if it is not nil. e is nil until the first one.
func (e *eachError) add(i, count int, err error) *eachError {
	if err == nil {
		return e
	}
	if e == nil {
		e = &eachError{make([]error, count)}
	}
	e.errs[i] = err
	return e
}

// of returns the error of key i.
func (e *eachError) of(i int) error {
	if e == nil {
		return nil
	}
	return e.errs[i]
}

// err returns e as an error, which is nil if e is.
func (e *eachError) err() error {
	if e == nil {
		return nil
	}
	return e
}

// TakeEach is what the function TakeEach calls.
func (l *limiter) TakeEach(ctx context.Context, keys []string, n int, out []Decision) ([]Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return append(out, make([]Decision, len(keys))...), err
	}
	if l.waiters.Any() {
		return takeInTurn(ctx, l, keys, n, out) // which overtakes no Wait
	}
	if l.fast != nil && l.own == nil {
		return l.takeFast(keys, n, out), nil
	}
	if each, ok := l.states.(limit.EachStates); ok {
		return l.takeTogether(ctx, each, keys, n, out)
	}
	return takeInTurn(ctx, l, keys, n, out)
}

// takeTogether is TakeEach for states that decide on many keys faster than in a loop.
func (l *limiter) takeTogether(ctx context.Context, states limit.EachStates, keys []string, n int, out []Decision) ([]Decision, error) {
	var unknown, failed *eachError // unknown: the limits of these keys could not be looked up
	calls := make([]limit.Call, 0, len(keys))
	req := kernel.Request{Op: kernel.OpTake, N: n, Clock: l.timeline}
	var decided map[int]Decision // on keys that need no call
	for i, key := range keys {
		t, err := l.transitionOf(ctx, key)
		switch {
		case err != nil:
			unknown = unknown.add(i, len(keys), err)
		case t.Stateless():
			if decided == nil {
				decided = make(map[int]Decision)
			}
			var a kernel.Answer
			t.Decide(&req, &a)
			decided[i] = Decision(a.Decision)
		default:
			calls = append(calls, limit.Call{Key: key, Limit: t, Request: req})
		}
	}
	if len(calls) > 0 {
		states.ApplyEach(ctx, calls)
	}
	for i, key := range keys {
		if d, ok := decided[i]; ok {
			out = append(out, d)
			continue
		}
		var t *limit.Limit
		var d Decision
		err := unknown.of(i)
		if err == nil {
			t, d, err = calls[0].Limit, Decision(calls[0].Answer.Decision), calls[0].Err
			calls = calls[1:]
		}
		if err != nil {
			d, err = l.degradedTake(ctx, key, n, t, err)
		}
		out = append(out, d)
		failed = failed.add(i, len(keys), err)
	}
	return out, failed.err()
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
