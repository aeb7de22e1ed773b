// Package ratelimittest helps to test code that uses a [ratelimit.Limiter]. It has a limiter whose
// decisions a test chooses, and a clock that the test moves. The package imports neither package
// testing nor any other package that is only for tests.
package ratelimittest

import (
	"context"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
)

// New returns a limiter that returns the decisions of the function decide. The limiter calls decide
// in the goroutine of its caller, with the method that was called, the key and the number of
// events. It does so wherever the limiter is used: in middleware, in TakeAll, in a Bound.
//
//   - Peek calls decide with [ratelimit.CallTake] and one event.
//   - A reservation and a Wait are due after the Delay of the Decision. If the Decision is not
//     Allowed, Reserve returns the Decision and no Reservation. Wait then returns a
//     [ratelimit.TurnError], or [ratelimit.ErrNever] if RetryAfter is Never.
//   - TakeAll and HoldAll call decide after all limiters made by ratelimit.New have granted the
//     request: with [ratelimit.CallHold] or, for the last key of a TakeAll, with CallTake. If
//     decide grants a hold, and another such limiter then refuses, decide is called with
//     [ratelimit.CallSettle] and 0 events; if a TakeAll is granted, with CallSettle and all events.
//   - TakeEach calls decide with CallTake for each key.
//   - TakeUpTo calls decide with [ratelimit.CallTakeUpTo] and all events. If decide denies them,
//     and the Remaining of its Decision is at least one, TakeUpTo calls decide again, with so many.
//   - Settle returns the Decision, whose Allowed makes no difference. Cancel of a hold calls decide
//     with CallSettle and 0 events, and ignores the Decision.
//   - Reset and Extend do nothing, and no hold ends by itself.
//
// A call for 0 events calls decide like any other, with two exceptions: a Wait of 0 events does not
// call decide, and a Reserve of 0 events calls it with CallHold. If n is negative or the context
// has ended, decide is not called. If several goroutines call the limiter at once, they call decide
// at once. New panics if decide is nil.
func New(decide func(call ratelimit.Call, key string, n int) ratelimit.Decision) ratelimit.Limiter {
	if decide == nil {
		panic(param.InvalidIn("ratelimittest", "New's decide", nil, "must be a function"))
	}
	// Only the store decides. The algorithm has the largest limit, so that it refuses no request.
	inner := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: math.MaxInt32, Window: 1e9},
		ratelimit.WithStore(decider(decide)), ratelimit.WithName("fake")))
	return fake{inner}
}

// A fake tells its store which method was called.
type fake struct{ ratelimit.Limiter }

// Describe returns nothing: the limit of the limiter inside decides nothing.
func (fake) Describe() ratelimit.Info { return ratelimit.Info{} }

// A callKey is the key of the called method in a context.
type callKey struct{}

// withCall returns a context that says which method was called.
func withCall(ctx context.Context, call ratelimit.Call) context.Context {
	if ctx == nil {
		return nil // the limiter returns the error
	}
	return context.WithValue(ctx, callKey{}, call)
}

func (l fake) Allow(key string) bool { return l.AllowN(key, 1) }

func (l fake) AllowN(key string, n int) bool {
	d, err := l.Take(withCall(context.Background(), ratelimit.CallAllow), key, n)
	return d.Allowed && err == nil
}

func (l fake) Charge(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	return l.Limiter.Charge(withCall(ctx, ratelimit.CallCharge), key, n)
}

func (l fake) TakeUpTo(
	ctx context.Context,
	key string,
	n int,
) (granted int, d ratelimit.Decision, err error) {
	return l.Limiter.TakeUpTo(withCall(ctx, ratelimit.CallTakeUpTo), key, n)
}

// A decider is the store of a fake, and the states in it: its decisions are those of a function.
type decider func(call ratelimit.Call, key string, n int) ratelimit.Decision

func (f decider) Open(string, *limit.Limit, time.Duration) (limit.States, error) { return f, nil }

// Timeout implements [limit.States].
func (decider) Timeout() time.Duration { return 0 }

// Strays implements [limit.States].
func (f decider) Strays() *stray.List { return nil }

// Lines implements [limit.States]. The line is always empty, because no call waits.
func (f decider) Lines() *line.Lines { return new(line.Lines) }

func (f decider) Apply(
	ctx context.Context,
	key string,
	_ *limit.Limit,
	req step.Request,
) (step.Answer, error) {
	call, known := ctx.Value(callKey{}).(ratelimit.Call)
	n := req.N
	switch req.Op {
	case step.OpSettle:
		call, known = ratelimit.CallSettle, true
	case step.OpExtend:
		return step.Answer{Held: true}, nil
	}
	switch {
	case known:
	case req.Op == step.OpHold:
		call = ratelimit.CallHold
	case req.Op == step.OpReserve && req.Yields:
		call = ratelimit.CallWait
	case req.Op == step.OpReserve:
		call = ratelimit.CallReserve
	default:
		call = ratelimit.CallTake // or a Peek
	}
	d := f(call, key, n)
	if req.UpTo && !d.Allowed && 0 < d.Remaining && d.Remaining < n {
		n = d.Remaining
		d = f(call, key, n)
	}
	res := step.Answer{Decision: step.Decision(d)}
	if d.Allowed {
		res.Wait, res.Held, res.Granted = d.Delay, req.Hold.ID != 0, n
	} else {
		res.Wait = d.RetryAfter
	}
	return res, nil
}

// Reset implements [limit.States].
func (f decider) Reset(context.Context, string) error { return nil }
