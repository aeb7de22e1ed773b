package ratelimit

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Option changes how [New] makes a limiter.
type Option func(*config)

// config is what options choose. Every check of it is in check.
type config struct {
	name   string
	store  Store
	clock  clock.Clock
	policy FailurePolicy

	lookup func(ctx context.Context, key string) (Algorithm, error)

	storeTimeout time.Duration

	storeSet, clockSet, lookupSet, storeTimeoutSet bool
}

// WithStore keeps the limiter's states in s, which several limiters may share.
// The default is a [MemoryStore] of its own, without a limit on its keys.
func WithStore(s Store) Option {
	return func(c *config) { c.store, c.storeSet = s, true }
}

// WithClock makes the limiter tell the time by clk. The default is the
// system's clock. If the clock steps back, time stands still until it has
// caught up; so a clock that jumps a year ahead by mistake, and back, makes time
// stand still for a year.
//
// All limiters on a [MemoryStore] must have the same clock, since what one of
// them has stored is compared with the time that another one reads. New returns
// an error if they have not. Two clocks are the same if they are equal, or both
// are the system's.
//
// Whole windows are aligned by the wall time that clk shows when New is called
// for the first limiter on the store, and by the time that has passed since. If
// the clock shows a time before 1970 or after 2100, windows of up to a week are
// aligned by it, and longer ones differently.
func WithClock(clk clock.Clock) Option {
	return func(c *config) { c.clock, c.clockSet = clk, true }
}

// WithName gives the limiter a name. Limiters in one store are kept apart by
// their names; the default is the empty one. It also appears in errors.
func WithName(name string) Option {
	return func(c *config) { c.name = name }
}

// WithFailurePolicy says what a limiter decides when its store fails. The
// default is [FailOpen]. The in-memory store never fails.
func WithFailurePolicy(p FailurePolicy) Option {
	return func(c *config) { c.policy = p }
}

func newConfig(opts []Option) (*config, error) {
	c := &config{storeTimeout: defaultStoreTimeout}
	for i, opt := range opts {
		if opt == nil {
			return nil, param.Invalid(fmt.Sprintf("option %d of New", i), nil, "must be one of the With functions' results")
		}
		opt(c)
	}
	if c.storeSet && isNil(c.store) {
		return nil, param.Invalid("WithStore's store", "nil", "must be a Store, such as NewMemoryStore()")
	}
	if c.clockSet && isNil(c.clock) {
		return nil, param.Invalid("WithClock's clock", "nil", "must be a clock.Clock, such as clock.New()")
	}
	if c.lookupSet && c.lookup == nil {
		return nil, param.Invalid("WithLimits's lookup", nil, "must be a function")
	}
	if c.policy.kind == fallback && isNil(c.policy.limiter) {
		return nil, param.Invalid("Fallback's limiter", "nil", "must be a Limiter")
	}
	if c.storeTimeout <= 0 {
		return nil, param.Invalid("WithStoreTimeout's duration", c.storeTimeout, "must be positive")
	}
	if !c.storeSet {
		c.store = NewMemoryStore()
	}
	return c, nil
}

// A FailurePolicy says what a limiter decides when its store fails: [FailOpen],
// [FailClosed] or [Fallback]. A store fails if it returns an error, if it does not
// answer in time (see [WithStoreTimeout]), and if it cannot read a key's state
// ([ErrState]).
//
//   - Take and Peek return the policy's decision, marked as Degraded, and the error.
//     Allow is the Allowed of that decision.
//   - With FailOpen, Reserve and Wait succeed at once, and nothing marks that: the
//     Delay is 0, nothing is reserved, and the error is nil. With FailClosed they return
//     the error. With Fallback they are those of its limiter.
//   - Reset returns the error, and Cancel gives nothing back.
//
// If the caller's context was cancelled, its error is returned, and no policy decides.
// That is so for Reserve and Wait also if its deadline has passed.
type FailurePolicy struct {
	kind    failure
	limiter Limiter // for fallback
}

type failure int

const (
	failOpen failure = iota
	failClosed
	fallback
)

var (
	// FailOpen allows everything while the store fails.
	FailOpen = FailurePolicy{kind: failOpen}

	// FailClosed denies everything while the store fails. RetryAfter is a
	// second then: nobody knows when the store will answer again.
	FailClosed = FailurePolicy{kind: failClosed}
)

// Fallback lets l decide while the store fails: a limiter in memory with this
// process's share of the limit, say.
func Fallback(l Limiter) FailurePolicy { return FailurePolicy{kind: fallback, limiter: l} }

// isNil reports whether v is nil, or an interface with a nil in it.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil()
}
