package httplimit

import (
	"context"
	"fmt"
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
	clk     clock.Clock
	held    heldKeys
}

// NewTurns returns Turns as l grants them. With a [ratelimit.InFlight], alone or in a
// [ratelimit.All], or if inFlight is true, requests are in flight until they are released; see
// [WithInFlight]. If l is nil, the error matches [ratelimit.ErrInvalid].
func NewTurns(l ratelimit.Limiter, inFlight bool) (*Turns, error) {
	if param.IsNil(l) {
		return nil, invalid("the limiter", nil, "must be a Limiter, such as ratelimit.New returns")
	}
	t := &Turns{limiter: l, holds: inFlight || flies(l), clk: ratelimit.ClockOf(l)}
	if t.clk == nil {
		t.clk = clock.New()
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
		if err := t.rest(ctx, key); err != nil {
			return nil, err
		}
		var held *ratelimit.Reservation
		if t.holds {
			held, err = t.limiter.WaitHold(ctx, key, n)
		} else {
			err = t.limiter.WaitN(ctx, key, n)
		}
		if err != nil {
			return nil, err
		}
		if t.held.left(key, t.clk.Now()) <= 0 { // otherwise the server has asked for a rest meanwhile
			return func() {
				if held != nil {
					_ = held.Release(context.WithoutCancel(ctx)) // if the store fails, the limiter logs it
				}
			}, nil
		}
		if held != nil {
			_, _ = held.Settle(context.WithoutCancel(ctx), 0)
		}
	}
}

// HoldBack holds key back for d, at most for a day, unless it is already held back for longer. At
// most 4,096 keys are held back at a time.
func (t *Turns) HoldBack(key string, d time.Duration) { t.held.hold(key, t.clk.Now(), d) }

// rest waits until key is not held back, or ctx ends.
func (t *Turns) rest(ctx context.Context, key string) error {
	for {
		left := t.held.left(key, t.clk.Now())
		if left <= 0 {
			return nil
		}
		if deadline, ok := ctx.Deadline(); ok && t.clk.Until(deadline) < left {
			return fmt.Errorf("httplimit: the server asked to wait %v, which exceeds the deadline: %w", left, context.DeadlineExceeded)
		}
		timer := t.clk.Timer(left)
		if t.held.left(key, t.clk.Now()) <= 0 { // a mock clock was moved just before the timer was set
			timer.Stop()
			return nil
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
