package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// degraded returns the policy's decision on n events after the store failed with err, and an
// error that says so. t is nil if the limit of the key could not be looked up.
func (l *limiter) degraded(ctx context.Context, n int, t *limit.Limit, err error, ask func(fallback Limiter) (Decision, error)) (d Decision, _ error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return Decision{}, ctx.Err() // the caller left; the store may be well
	}
	l.failing(ctx, err)
	err = l.failed(err)
	limit := l.t.Limit()
	if t != nil {
		limit = t.Limit()
	}
	switch l.policy.kind {
	case fallback:
		var also error
		d, also = ask(l.policy.limiter)
		err = errors.Join(err, also)
		if d.RetryAfter == Never && mayGrant(t, n) {
			d.RetryAfter = closedRetry
		}
	case failClosed:
		d = Decision{Limit: limit, RetryAfter: closedRetry}
	case failOpen:
		d = Decision{Allowed: true, Limit: limit}
	}
	d.Degraded = true
	return d, err
}

// closedRetry is the RetryAfter of FailClosed. Nobody knows when the store will
// answer again, and with 0 callers would retry at once.
const closedRetry = time.Second

func (l *limiter) failed(err error) error {
	return fmt.Errorf("ratelimit: limiter %q: the store failed: %w", l.name, err)
}

// degradedTake is Take after the store failed with err.
func (l *limiter) degradedTake(ctx context.Context, key string, n int, t *limit.Limit, err error) (Decision, error) {
	return l.degraded(ctx, n, t, err, func(fallback Limiter) (Decision, error) {
		return fallback.Take(context.WithoutCancel(ctx), key, n)
	})
}

// degradedWait is what reserveTurn returns after the store failed with err. t is nil if
// the limit of the key could not be looked up.
func (l *limiter) degradedWait(w *want, t *limit.Limit, err error) (*Reservation, error) {
	l.failing(w.ctx, err)
	err = l.failed(err)
	w.failure = err
	switch l.policy.kind {
	case fallback:
		return nil, &toFallback{err, mayGrant(t, w.n)}
	case failClosed:
		return nil, err
	}
	return &Reservation{l: l, key: w.key}, nil // FailOpen: now
}

// A toFallback is the error of reserve if the fallback must decide.
type toFallback struct {
	failed error // says that the store failed
	may    bool  // mayGrant
}

func (e *toFallback) Error() string { return e.failed.Error() }

// unlessNever returns err, the error of the fallback. If that is ErrNever, and the limiter may
// grant the events when the store is back, it returns the error of FailClosed.
func (e *toFallback) unlessNever(err error) error {
	if e.may && errors.Is(err, ErrNever) {
		return e.failed
	}
	return err
}

// mayGrant reports whether t may ever grant n events at once, whatever a fallback with a lower
// limit says. An unknown limit, for which t is nil, may.
func mayGrant(t *limit.Limit, n int) bool { return t == nil || n <= t.Limit() }
