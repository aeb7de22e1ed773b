package ratelimit

import "github.com/ratelimit-go/ratelimit/internal/limit"

// An Unlimited grants everything: the plan of a customer without a limit, for
// [WithLimits]. Limit and Remaining are [math.MaxInt], and ResetAfter is 0.
//
// It counts nothing and needs no state, so the store is not asked. [Limiter.Charge], and
// [Reservation.Settle] of events that it has granted, succeed and have no effect. As a part of
// an [All], it never decides unless all parts are Unlimited.
type Unlimited struct{}

func (a Unlimited) normalized() Algorithm { return a }

func (a Unlimited) share(divisor) Algorithm { return a }

func (Unlimited) spec() limit.Spec { return limit.Spec{Kind: limit.Unlimited} }

// A Blocked grants nothing: the plan of a suspended customer, for [WithLimits]. Limit and
// Remaining are 0, and RetryAfter is [Never]. Wait and Reserve fail at once with [ErrNever].
// n = 0 is allowed, as always.
//
// It counts nothing and needs no state, so the store is not asked, and [Limiter.Charge] has
// no effect. An [All] with a Blocked part does the same: it neither asks the store nor counts
// events in its other parts.
type Blocked struct{}

func (a Blocked) normalized() Algorithm { return a }

func (a Blocked) share(divisor) Algorithm { return a }

func (Blocked) spec() limit.Spec { return limit.Spec{Kind: limit.Blocked} }
