package ratelimit

import (
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// This file has the algorithms that decide without a state: plans without a limit, and suspended
// ones.

// An Unlimited grants everything: the plan of a customer without a limit, for [WithLimits]. Limit
// and Remaining are [math.MaxInt], and ResetAfter is 0. It counts nothing and needs no state, so
// the store is not asked, and [Limiter.Charge] has no effect.
type Unlimited struct{}

// String returns "unlimited".
func (a Unlimited) String() string { return inWords(a) }

func (a Unlimited) normalized() Algorithm { return a }

func (a Unlimited) share(divisor) Algorithm { return a }

func (Unlimited) spec() limit.Spec { return limit.Spec{Kind: limit.Unlimited} }

func (Unlimited) of(*limit.Spec) Algorithm { return Unlimited{} }

// A Blocked grants nothing: the plan of a suspended customer, for [WithLimits]. Limit and Remaining
// are 0, and RetryAfter is [Never]. Wait fails at once with [ErrNever], and Reserve denies. n = 0
// is allowed, as always. The store is not asked, and [Limiter.Charge] has no effect.
type Blocked struct{}

// String returns "blocked".
func (a Blocked) String() string { return inWords(a) }

func (a Blocked) normalized() Algorithm { return a }

func (a Blocked) share(divisor) Algorithm { return a }

func (Blocked) spec() limit.Spec { return limit.Spec{Kind: limit.Blocked} }

func (Blocked) of(*limit.Spec) Algorithm { return Blocked{} }
