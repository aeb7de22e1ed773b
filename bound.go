package ratelimit

import (
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Bound is a limiter and one of its keys. [TakeAll] and [HoldAll] decide on several at once. The
// zero Bound, and one of a nil Limiter, has no limiter: that is an error, which matches
// [ErrInvalid].
type Bound struct {
	limiter Limiter
	key     string
	n       int  // its own number of events
	hasOwnN bool // whether it has one

	options *[]HoldOption // of its holds, EndOptions; nil if there are none
}

// For returns l bound to key. The options are those of what the Bound holds: see [HoldFor] and
// [GiveBack].
func For(l Limiter, key string, opts ...EndOption) Bound {
	b := Bound{limiter: l, key: key}
	if len(opts) > 0 {
		copied := make([]HoldOption, len(opts))
		for i, opt := range opts {
			copied[i] = opt
		}
		b.options = &copied
	}
	return b
}

// N returns b with a number of events of its own, which [TakeAll] and [HoldAll] spend in its key in
// the place of theirs: so one call spends a request, 1,200 tokens and 3 cents. If n is 0, the key
// spends nothing and never refuses.
func (b Bound) N(n int) Bound {
	b.n, b.hasOwnN = n, true
	return b
}

// events returns how many events a call for n of each key means for b.
func (b Bound) events(n int) int {
	if b.hasOwnN {
		return b.n
	}
	return n
}

// holdOptions returns the values of the options of its holds.
func (b Bound) holdOptions() (holdOptions, error) { return optionsOfHold(b.optionList()) }

// optionList returns the options of its holds.
func (b Bound) optionList() []HoldOption {
	if b.options == nil {
		return nil
	}
	return *b.options
}

// Limiter returns the limiter, or nil if there is none.
func (b Bound) Limiter() Limiter { return b.limiter }

// Key returns the key.
func (b Bound) Key() string { return b.key }

// errNoLimiter says that a Bound has no limiter.
var errNoLimiter = param.Invalid(
	"Bound's limiter",
	nil,
	"must not be nil; make a Bound with For(limiter, key)",
)
