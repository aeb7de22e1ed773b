package ratelimit

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A Reservation holds events that [Limiter.Reserve] has spent ahead of time.
// Its methods may be called by several goroutines. The zero Reservation is due at once
// and holds nothing, as the one that FailOpen returns.
type Reservation struct {
	l   *limiter
	key string
	due kernel.Instant // when the events may happen

	line     *line          // where it stands, if there is anything to take back
	waiter   *kernel.Waiter // in that
	grant    any            // what a store that is not in the line's words needs instead
	resets   uint64         // of the limiter, when this was made
	canceled atomic.Bool
}

// Delay returns how long it is from now until the reserved events may happen;
// 0 means that they may.
func (r *Reservation) Delay() time.Duration {
	if r.l == nil {
		return 0
	}
	return r.l.timeline.Until(r.due)
}

// Cancel says that the reserved events will not happen. It gives back what can
// be given back; calling it twice is harmless.
//
// If every reservation that was made on the key after this one is cancelled as well,
// in whatever order, the key is as if none of them had been made. As long as one of
// them stays, it keeps the instant that it was told, and no caller is admitted before
// the last such instant. Until then windows and logs already have the cancelled
// events back, and [TokenBucket], [LeakyBucket] and [WarmingUp] keep them.
//
// Once the events may happen (Delay is 0 and the clock has moved on), they count as
// having happened, and nothing is given back. Nor is it after a Reset of the key, if
// the store has failed to cancel another reservation of the key, if the limit was
// changed since (see [WithLimits]), if a [LeakyBucket] has taken in events behind it
// by Allow or Take, or while a reservation that another process made
// afterwards on the same key is pending: that one is respected in the same way.
//
// If the key was evicted because of [WithMaxKeys], or another limiter of the same
// name called Reset, windows may give back events that others have spent since.
//
// Cancel calls the store, and waits for it for as long as [WithStoreTimeout] says. Calls
// at the same time share one call for each key.
func (r *Reservation) Cancel() {
	if r.canceled.Swap(true) {
		return
	}
	switch {
	case r.waiter != nil:
		r.l.cancel(r.key, r.line, r.waiter)
	case r.grant != nil && !r.l.resets.since(r.resets, r.key):
		_, _, _ = r.l.apply(context.Background(), r.key, Request{Op: OpCancel, Grant: r.grant})
	}
}

// Wait waits until the reserved events may happen; nil means that they may. The
// limiter's clock measures the wait. If ctx ends before, Wait gives the place back
// as [Reservation.Cancel] does and returns ctx's error.
func (r *Reservation) Wait(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	return r.wait(ctx)
}

// wait waits until the reserved events may happen, or cancels the reservation
// if ctx ends before.
func (r *Reservation) wait(ctx context.Context) error {
	for looks := 0; ; looks++ {
		d := r.Delay()
		if d == 0 {
			if looks > 0 {
				now, _ := r.l.timeline.Now()
				r.l.lines.sweep(now)
			}
			return nil
		}
		timer := r.l.timeline.Clock().Timer(d)
		if looks < manyLooks && !r.l.timeline.Flows() && r.Delay() != d {
			timer.Stop() // the clock moved before the timer was set
			continue
		}
		var again <-chan time.Time
		if looks < manyLooks && !r.l.timeline.Flows() {
			again = time.After(lookAgain)
		}
		for waiting := true; waiting; {
			select {
			case <-timer.C:
				waiting = false
			case <-again:
				again = nil
				if r.Delay() != d {
					timer.Stop()
					waiting = false
				}
			case <-ctx.Done():
				timer.Stop()
				if r.Delay() == 0 {
					return nil // both came at once, and the events are spent
				}
				r.Cancel()
				return ctx.Err()
			}
		}
	}
}

// lookAgain is when wait looks at a clock that is moved by hand once more after it has
// set a timer: a mock may have passed over its timers just before, and show its new
// time just after.
const lookAgain = 10 * time.Millisecond

// manyLooks bounds how often wait sets its timer anew because the clock has moved.
// A clock that somebody moves by hand stands still long before.
const manyLooks = 1000
