package httplimit

import (
	"context"
	"errors"
	"slices"
	"time"
)

// This file has requests whose context ends before they are handled.

// limitContext returns the context of calls of the limits. For a limiter, a request whose deadline
// has passed is one whose caller has left, because such a request is not handled. Otherwise the
// FailurePolicy of the limiter would decide.
func (a *Admission) limitContext() context.Context {
	ctx := a.request.Context()
	if _, ok := ctx.Deadline(); !ok || a.isLocal() {
		return ctx
	}
	return leaving{ctx}
}

// A leaving context is cancelled when its deadline passes.
type leaving struct{ context.Context }

// Err implements [context.Context].
func (ctx leaving) Err() error {
	if ctx.Context.Err() == nil {
		return nil
	}
	return context.Canceled
}

// mayEndWithin reports whether the deadline of ctx may pass within an answer that is asked for now,
// or after a delay. Their sum may overflow.
func mayEndWithin(ctx context.Context, delay, answer time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline)-delay < answer
}

// isLocal reports whether all limits of the request decide in memory.
func (a *Admission) isLocal() bool {
	return len(a.shadows) == 0 && !slices.ContainsFunc(a.limits, func(l *namedLimit) bool {
		return !l.isLocal
	})
}

// endIfOver reports whether the context of the request has ended by its deadline, or in another way
// of which err, the error of a limit, tells. Such a request is refused, because nobody waits for
// its answer. In shadow, it passes.
func (a *Admission) endIfOver(err error) (isOver bool) {
	ended := a.request.Context().Err()
	if ended == nil || !errors.Is(ended, context.DeadlineExceeded) && !errors.Is(err, ended) {
		return false
	}
	a.Passed = a.gate.isInShadow(a.subject)
	if !a.Passed {
		a.Err, a.isOver = ended, true
	}
	return true
}
