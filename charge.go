package ratelimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file counts events that have happened, whatever the limit says.

// Charge implements [Limiter].
func (l *limiter) Charge(ctx context.Context, key string, n int) (Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	d, err := l.charge(ctx, key, n)
	if l.observers != nil {
		l.observe(
			ctx,
			Observation{
				Key:      key,
				Call:     CallCharge,
				N:        n,
				Outcome:  countOutcome(ctx, d, err),
				Decision: d,
				Err:      err,
			},
		)
	}
	return d, err
}

// charge is Charge without checks.
func (l *limiter) charge(ctx context.Context, key string, n int) (Decision, error) {
	c := newCall(ctx, step.OpCharge, key, n)
	err := l.tell(&c)
	return Decision(c.Answer.Decision), c.countError(n, err)
}

// countError returns err, the error of tell, and that of n events that the store could not count.
func (c *call) countError(n int, err error) error {
	if c.Err != nil { // the FailurePolicy has decided
		return err
	}
	missing := uncountedError(&c.Answer, n)
	if err == nil {
		return missing
	}
	return errors.Join(err, missing)
}

// uncountedError returns the error of n events that could not be counted.
func uncountedError(ans *step.Answer, n int) error {
	switch {
	case ans.Excess:
		return fmt.Errorf(
			"%w: %d more, and the state of the key can hold %d more",
			ErrDebt,
			n,
			ans.Most,
		)
	case ans.Full:
		return errNoRoom
	}
	return nil
}
