package ratelimit

import (
	"context"
	"sync/atomic"
	"time"
)

// A Reservation holds events that [Limiter.Reserve] has spent ahead of time.
// Its methods may be called by several goroutines.
type Reservation struct {
	l   *limiter
	key string
	due instant // when the events may happen

	grant    any // what the store needs to take it back; nil if nothing was spent
	canceled atomic.Bool
}

// Delay returns how long it is from now until the reserved events may happen;
// 0 means that they may.
func (r *Reservation) Delay() time.Duration {
	return r.l.timeline.until(r.due)
}

// Cancel says that the reserved events will not happen. It gives back what can
// still be given back; calling it twice is harmless.
//
// Once the events may happen (Delay is 0), they count as having happened, and
// nothing is given back. Before, everything is if nobody came after: the key is
// then as it was before Reserve. If somebody did, who was told an instant that
// counts on these events, then that promise stands: algorithms that count
// events in windows or in a log forget the cancelled ones, and buckets and
// [WarmingUp] keep them.
func (r *Reservation) Cancel() {
	if r.grant == nil || r.canceled.Swap(true) {
		return
	}
	// The error of a store that fails is of no use to anybody here: the events
	// stay spent, which is the safe side.
	_, _ = r.l.apply(context.Background(), r.key, Request{Op: OpCancel, Grant: r.grant})
}

// wait waits until the reserved events may happen, or cancels the reservation
// if ctx ends before.
func (r *Reservation) wait(ctx context.Context) error {
	for {
		d := r.Delay()
		if d == 0 {
			return nil
		}
		timer := r.l.timeline.clk.Timer(d)
		select {
		case <-timer.C:
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
