package ratelimit

import (
	"context"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Bound is a limiter and one of its keys. Its methods are those of the [Limiter] without the
// key: what code that has one limiter for each user wants. [TakeAll] and [HoldAll] decide on
// several at once.
//
// The zero Bound, and one of a nil Limiter, has no limiter. Its methods return an error that
// matches [ErrInvalid]; Allow and AllowN return false.
type Bound struct {
	limiter Limiter
	key     string
	n       int  // its own number of events
	own     bool // whether it has one

	options *[]HoldOption // of its holds; nil if there are none
}

// For returns l bound to key. The options are those of what the Bound holds: see [HoldFor] and
// [GiveBack].
func For(l Limiter, key string, opts ...HoldOption) Bound {
	b := Bound{limiter: l, key: key}
	if len(opts) > 0 {
		own := slices.Clone(opts)
		b.options = &own
	}
	return b
}

// with returns the options of b, and then opts.
func (b Bound) with(opts []HoldOption) []HoldOption {
	if b.options == nil {
		return opts
	}
	return slices.Concat(*b.options, opts)
}

// N returns b with a number of events of its own, which [TakeAll] and [HoldAll] spend in its key
// in the place of theirs: so one call spends a request, 1,200 tokens and 3 cents. If n is 0, the
// key spends nothing and never refuses. Allow and Wait take n as well. Methods that are told
// a number take that.
func (b Bound) N(n int) Bound {
	b.n, b.own = n, true
	return b
}

// events returns how many events a call for n of each key means for b.
func (b Bound) events(n int) int {
	if b.own {
		return b.n
	}
	return n
}

// Limiter returns the limiter, or nil if there is none.
func (b Bound) Limiter() Limiter { return b.limiter }

// Key returns the key.
func (b Bound) Key() string { return b.key }

// Allow is [Limiter.Allow] for the key.
func (b Bound) Allow() bool {
	if b.own {
		return b.AllowN(b.n)
	}
	return b.of().Allow(b.key)
}

// AllowN is [Limiter.AllowN] for the key.
func (b Bound) AllowN(n int) bool { return b.of().AllowN(b.key, n) }

// Take is [Limiter.Take] for the key.
func (b Bound) Take(ctx context.Context, n int) (Decision, error) {
	return b.of().Take(ctx, b.key, n)
}

// TakeUpTo is [Limiter.TakeUpTo] for the key.
func (b Bound) TakeUpTo(ctx context.Context, n int) (granted int, _ Decision, _ error) {
	return b.of().TakeUpTo(ctx, b.key, n)
}

// Wait is [Limiter.Wait] for the key.
func (b Bound) Wait(ctx context.Context) error {
	if b.own {
		return b.WaitN(ctx, b.n)
	}
	return b.of().Wait(ctx, b.key)
}

// WaitN is [Limiter.WaitN] for the key.
func (b Bound) WaitN(ctx context.Context, n int) error { return b.of().WaitN(ctx, b.key, n) }

// Reserve is [Limiter.Reserve] for the key.
func (b Bound) Reserve(ctx context.Context, n int) (*Reservation, error) {
	return b.of().Reserve(ctx, b.key, n)
}

// ReserveWithin is [Limiter.ReserveWithin] for the key.
func (b Bound) ReserveWithin(ctx context.Context, n int, maxWait time.Duration, opts ...HoldOption) (*Reservation, Decision, error) {
	return b.of().ReserveWithin(ctx, b.key, n, maxWait, b.with(opts)...)
}

// Hold is [Limiter.Hold] for the key.
func (b Bound) Hold(ctx context.Context, n int, opts ...HoldOption) (*Reservation, Decision, error) {
	return b.of().Hold(ctx, b.key, n, b.with(opts)...)
}

// WaitHold is [Limiter.WaitHold] for the key.
func (b Bound) WaitHold(ctx context.Context, n int, opts ...HoldOption) (*Reservation, error) {
	return b.of().WaitHold(ctx, b.key, n, b.with(opts)...)
}

// Charge is [Limiter.Charge] for the key.
func (b Bound) Charge(ctx context.Context, n int) (Decision, error) {
	return b.of().Charge(ctx, b.key, n)
}

// Peek is [Limiter.Peek] for the key.
func (b Bound) Peek(ctx context.Context) (Decision, error) { return b.of().Peek(ctx, b.key) }

// Reset is [Limiter.Reset] for the key.
func (b Bound) Reset(ctx context.Context) error { return b.of().Reset(ctx, b.key) }

// of returns the limiter, or one that returns errors if there is none.
func (b Bound) of() Limiter {
	if b.limiter == nil {
		return unbound{}
	}
	return b.limiter
}

// unbound is the limiter of a Bound that has none.
type unbound struct{}

// errUnbound is what the methods of a Bound without a limiter return.
var errUnbound = param.Invalid("Bound's limiter", nil, "must not be nil; make a Bound with For(limiter, key)")

func (unbound) Allow(string) bool { return false }

func (unbound) AllowN(string, int) bool { return false }

func (unbound) Take(context.Context, string, int) (Decision, error) { return Decision{}, errUnbound }

func (unbound) Wait(context.Context, string) error { return errUnbound }

func (unbound) WaitN(context.Context, string, int) error { return errUnbound }

func (unbound) Reserve(context.Context, string, int) (*Reservation, error) { return nil, errUnbound }

func (unbound) ReserveWithin(context.Context, string, int, time.Duration, ...HoldOption) (*Reservation, Decision, error) {
	return nil, Decision{}, errUnbound
}

func (unbound) TakeUpTo(context.Context, string, int) (int, Decision, error) {
	return 0, Decision{}, errUnbound
}

func (unbound) Hold(context.Context, string, int, ...HoldOption) (*Reservation, Decision, error) {
	return nil, Decision{}, errUnbound
}

func (unbound) WaitHold(context.Context, string, int, ...HoldOption) (*Reservation, error) {
	return nil, errUnbound
}

func (unbound) Charge(context.Context, string, int) (Decision, error) { return Decision{}, errUnbound }

func (unbound) Peek(context.Context, string) (Decision, error) { return Decision{}, errUnbound }

func (unbound) Reset(context.Context, string) error { return errUnbound }
