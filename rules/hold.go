package rules

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A Hold has the events that a call holds in the limits of one rule or several. Its methods may be
// called by any number of goroutines. Those of a nil one, which comes with a refusal, do nothing.
type Hold struct{ held []*ratelimit.Reservation }

// Release says that the call is over: a call of an in-flight rule no longer counts, and other
// rules keep its events. See [ratelimit.Reservation.Release].
func (h *Hold) Release(ctx context.Context) error {
	return h.each(func(r *ratelimit.Reservation) error { return r.Release(ctx) })
}

// Settle says that the call is over, and has cost n events instead of those held. See
// [ratelimit.Reservation.Settle].
func (h *Hold) Settle(ctx context.Context, n int) error {
	return h.each(func(r *ratelimit.Reservation) error {
		_, err := r.Settle(ctx, n)
		return err
	})
}

// Extend makes the Hold end by itself d from now. See [ratelimit.Reservation.Extend].
func (h *Hold) Extend(ctx context.Context, d time.Duration) error {
	return h.each(func(r *ratelimit.Reservation) error { return r.Extend(ctx, d) })
}

// each returns the errors of f, called with what the rules hold.
func (h *Hold) each(f func(*ratelimit.Reservation) error) error {
	if h == nil {
		return nil
	}
	errs := make([]error, len(h.held))
	for i, r := range h.held {
		errs[i] = f(r)
	}
	return errors.Join(errs...)
}
