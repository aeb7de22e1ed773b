package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/keyhint"
)

// This file has the policies that decide while the store fails.

// A FailurePolicy says what a limiter decides when its store fails: [FailOpen], [FailClosed] or
// [Fallback]. A store fails if it returns an error, does not answer in time (see
// [WithStoreTimeout]), or cannot read a key's state ([ErrState]). If only the lookup of
// [WithLimits] fails, the limit of New decides instead. The limiter logs that the policy decides:
// see [WithFailureLog].
//
//   - Take, Hold, Charge, Settle, Peek and Reserve return the policy's decision, with Degraded set,
//     and the error. Of a TakeUpTo, FailOpen grants all events, FailClosed none, and a Fallback as
//     many as remain there. [Decision.Checked] says whether a fallback has checked a limit. Allow
//     returns the Allowed of that decision. With Fallback, the fallback limiter answers. Settle is
//     the exception: a hold made by the fallback is settled there; a hold made by the store cannot
//     be, and the decision is a denial.
//   - With FailOpen, a Wait succeeds at once, with no other sign of the failure than the log:
//     nothing is reserved, and the error is nil. With FailClosed it returns the error. With
//     Fallback it calls the same method of its limiter.
//   - Reset returns the error. Cancel gives back once the store answers, as [Reservation.Settle].
//
// If the caller's context was cancelled, its error is returned and the policy is not used. For a
// Wait, this is so even if its deadline has passed. Other calls are decided by the policy when
// their deadline passes. That is no failure of the store: see [WithFailureLog].
type FailurePolicy struct {
	kind    policyKind
	limiter Limiter // for fallback
}

type policyKind int

const (
	failOpen policyKind = iota // the default: that of a limiter without WithFailurePolicy
	failClosed
	fallback
)

// FailOpen allows everything while the store fails. It is the default.
func FailOpen() FailurePolicy { return FailurePolicy{kind: failOpen} }

// FailClosed denies everything while the store fails. RetryAfter is a second then: nobody knows
// when the store will answer again.
func FailClosed() FailurePolicy { return FailurePolicy{kind: failClosed} }

// Fallback makes l decide while the store fails. l may be a limiter in memory with this process's
// [Share] of the limit.
//
// A request that l can never grant, although the limit of the key can, is refused as with
// FailClosed: RetryAfter is a second, and the error is the store's, that of a Wait too, and not
// [ErrNever]. The decision is not Checked.
func Fallback(l Limiter) FailurePolicy { return FailurePolicy{kind: fallback, limiter: l} }

// WithFailurePolicy sets what the limiter decides when its store fails. The default is [FailOpen].
// The in-memory store never fails.
func WithFailurePolicy(p FailurePolicy) Option {
	return func(c *config) { c.policy = p }
}

// degraded has the FailurePolicy decide on a call that failed, and returns an error that says so.
func (l *limiter) degraded(c *call) (r *Reservation, err error) {
	if c.Limit == nil || errors.Is(c.ctx.Err(), context.Canceled) {
		c.Answer = step.Answer{}
		return nil, c.ctx.Err() // the caller left; the store may be well
	}
	err = l.logStoreFailure(c.ctx, c.Key, c.Err)
	if c.unknown != nil {
		err = errors.Join(err, c.unknown)
	}
	d, granted := closedDecision(c.Limit), 0
	switch l.policy.kind {
	case fallback:
		var also error
		r, d, granted, also = c.askFallback(l.policy.limiter)
		err = errors.Join(err, also)
		isDecision := d != Decision{}
		d.StandIn = isDecision && d.Checked()
		d.Degraded = true
		if d.RetryAfter == Never && c.mayGrant(c.events()) {
			d.RetryAfter, d.StandIn = closedRetryAfter, false
		}
	case failOpen:
		d, granted = Decision{Allowed: true, Limit: d.Limit, Degraded: true}, c.Request.N
		if c.makesReservation() {
			r = &Reservation{l: l, key: c.Key}
		}
	}
	c.Answer = step.Answer{Decision: step.Decision(d), Granted: granted}
	return r, err
}

// closedDecision returns the decision of FailClosed on a key of a limit.
func closedDecision(lim *limit.Limit) Decision {
	return Decision{Limit: lim.Limit(), RetryAfter: closedRetryAfter, Degraded: true}
}

// askFallback makes the call to a fallback, which may grant some of the events of a TakeUpTo. A
// Settle is denied, because the fallback does not know the hold.
func (c *call) askFallback(
	fallback Limiter,
) (r *Reservation, d Decision, granted int, err error) {
	ctx := context.WithoutCancel(c.ctx)
	switch c.Request.Op {
	case step.OpTake:
		if c.Request.UpTo {
			granted, d, err = fallback.TakeUpTo(ctx, c.Key, c.Request.N)
			break
		}
		d, err = fallback.Take(ctx, c.Key, c.Request.N)
	case step.OpPeek:
		d, err = fallback.Peek(ctx, c.Key)
	case step.OpCharge:
		d, err = fallback.Charge(ctx, c.Key, c.Request.N)
	case step.OpReserve:
		r, d, err = fallback.Reserve(ctx, c.Key, c.Request.N, c.reserveOptions...)
	case step.OpHold:
		r, d, err = fallback.Hold(ctx, c.Key, c.Request.N, c.holdOptions...)
	}
	if !d.Allowed {
		r = nil
	}
	return r, d, granted, err
}

// closedRetryAfter is the RetryAfter of FailClosed. Nobody knows when the store will answer again,
// and with 0 callers would retry at once.
const closedRetryAfter = time.Second

// storeError returns the error of a call for key whose store has failed with err. A server may have
// quoted the command, and so the key.
func (l *limiter) storeError(key string, err error) error {
	return fmt.Errorf("ratelimit: limiter %q: the store failed: %w", l.name, keyhint.In(err, key))
}

// mayGrant reports whether the limit of the key may ever grant n events at once, whatever a limit
// that stands in for it says. An unknown limit may.
func (c *call) mayGrant(n int) bool { return c.unknown != nil || n <= c.Limit.Limit() }
