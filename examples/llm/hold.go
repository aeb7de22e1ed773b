package main

import (
	"context"
	"errors"

	"github.com/ratelimit-go/ratelimit"
)

// holdAll holds n events of each key, or none if one of them refuses. The Part of the Decision
// is the index of the key that decided: the one that refuses, or that has least left.
func holdAll(ctx context.Context, n int, of ...ratelimit.Bound) (held, ratelimit.Decision, error) {
	var all held
	var least ratelimit.Decision
	var errs error
	for i, b := range of {
		h, d, err := b.Hold(ctx, n)
		errs = errors.Join(errs, err)
		d.Part = i
		if !d.Allowed {
			_, err := all.Settle(context.WithoutCancel(ctx), 0)
			return nil, d, errors.Join(errs, err)
		}
		all = append(all, h)
		if i == 0 || d.Remaining < least.Remaining {
			least = d
		}
	}
	return all, least, errs
}

// held are the reservations of one request.
type held []*ratelimit.Reservation

// Settle settles all of them. The Decision is that of the key that has least left.
func (h held) Settle(ctx context.Context, n int) (least ratelimit.Decision, errs error) {
	for i, r := range h {
		d, err := r.Settle(ctx, n)
		errs = errors.Join(errs, err)
		if d.Part = i; i == 0 || d.Remaining < least.Remaining {
			least = d
		}
	}
	return least, errs
}
