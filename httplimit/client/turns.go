package client

import (
	"context"
	"slices"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// Turns make the requests of a client wait for their turn and for as long as a server asks, for
// clients of protocols that [Transport] does not know. All times are by the limiter's clock. Any
// number of goroutines may use them at once.
type Turns struct {
	limiter ratelimit.Limiter
	holds   bool
	held    heldKeys
}

// NewTurns returns Turns as l grants them. With a [ratelimit.InFlight], alone or in a
// [ratelimit.All], or if inFlight is true, requests are in flight until they are released. It is true
// for a limiter whose algorithm is not known (see [ratelimit.Describe]). If l is nil, the error matches [ratelimit.ErrInvalid].
func NewTurns(l ratelimit.Limiter, inFlight bool) (*Turns, error) {
	if param.IsNil(l) {
		return nil, param.InvalidIn("client", "the limiter", nil, "must be a Limiter, such as ratelimit.New returns")
	}
	t := &Turns{limiter: l, holds: inFlight || hasInFlight(l), held: heldKeys{clk: ratelimit.Describe(l).Clock}}
	if t.held.clk == nil {
		t.held.clk = clock.New()
	}
	return t, nil
}

// Wait waits until n events of key are granted, and key is not held back. The error is that of
// [ratelimit.Limiter.WaitN]. If the deadline of ctx is before the end of a rest, the error matches
// [context.DeadlineExceeded] and Wait fails at once. If HoldBack is called while a request waits
// for its turn, the request waits for another one afterwards.
//
// The function that Wait returns releases what is in flight. It must be called when the request has
// ended. Calling it again is harmless, and it may be nil if there is an error.
func (t *Turns) Wait(ctx context.Context, key string, n int) (release func(), err error) {
	for {
		epoch, err := t.held.enter(ctx, key)
		if err != nil {
			return nil, err
		}
		var held *ratelimit.Reservation
		if t.holds {
			held, _, err = t.limiter.Hold(ctx, key, n, ratelimit.Waiting())
		} else {
			err = t.limiter.WaitN(ctx, key, n)
		}
		t.held.over(key, epoch, false)                // a stream may be open for hours, so others do not wait for its end
		if err == nil && t.held.current(key, epoch) { // otherwise the server has asked for a rest meanwhile
			return func() {
				if held != nil {
					_ = held.Release(context.WithoutCancel(ctx)) // if the store fails, the limiter logs it
				}
			}, nil
		}
		if err != nil {
			return nil, err
		}
		if held != nil {
			_, _ = held.Settle(context.WithoutCancel(ctx), 0)
		}
	}
}

// HoldBack holds key back for d, at most for a day, unless it is already held back for longer. At
// most 4,096 keys are held back at a time. Afterwards all that wait go, as the limiter
// lets them.
func (t *Turns) HoldBack(key string, d time.Duration) { t.held.hold(key, d) }

// hasInFlight reports whether l is known to have an InFlight.
func hasInFlight(l ratelimit.Limiter) bool {
	alg := ratelimit.Describe(l).Algorithm
	parts, isAll := alg.(ratelimit.All)
	if !isAll {
		parts = ratelimit.All{alg}
	}
	return slices.ContainsFunc(parts, func(part ratelimit.Algorithm) bool {
		_, ok := part.(ratelimit.InFlight)
		return ok
	})
}
