package ratelimit

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/memory"
)

// A Reservation holds events that [Limiter.Hold] has spent, or that [Limiter.Reserve] has
// spent ahead of time. Any number of goroutines may call its methods at once. The zero
// Reservation is due at once and holds nothing, like those of FailOpen.
type Reservation struct {
	l   *limiter       // nil if nothing is held, and for a HoldAll
	n   int            // the number of events that are held
	due kernel.Instant // when the events may happen
	status

	// What it holds, if anything: one of these.
	returns uint32      // for a hold on a state of one word in memory: a part of what the store remembers of it
	word    memory.Held // likewise: the rest
	claim   *claim      // otherwise
}

// A status says what has become of a Reservation, in one word, because the size of a Reservation
// matters.
type status struct{ bits atomic.Uint32 }

const (
	isOver  = 1 << iota // it was cancelled or settled
	isAhead             // it was made ahead of time, so that Cancel may give something back
	isQuiet             // observers are not told of it, because they are told of the whole call
)

func (s *status) is(bit uint32) bool { return s.bits.Load()&bit != 0 }
func (s *status) clear(bit uint32)   { s.bits.And(^bit) }

// set returns whether the bit was set before.
func (s *status) set(bit uint32) (before bool) { return s.bits.Or(bit)&bit != 0 }

// A claim is what a Reservation holds. It is not a part of it, because a hold on a state of one
// word does without, and allocating a Reservation is a large part of what that costs.
type claim struct {
	key    string
	by     *Transition    // that made it; nil if the store failed
	grant  any            // nil if nothing is held; of a HoldAll, its parts
	resets uint64         // the limiter's count of resets before the reservation
	line   *line          // if it is ahead, unless the store has Grants of its own
	waiter *kernel.Waiter // its place in line
}

// A claimed is a Reservation with its claim.
type claimed struct {
	Reservation
	room claim
}

// newReservation returns a Reservation of n events.
func (l *limiter) newReservation(n int, due kernel.Instant, c claim) *Reservation {
	r := &claimed{room: c}
	r.l, r.n, r.due, r.claim = l, n, due, &r.room
	return &r.Reservation
}

// parts are the reservations of the keys of a HoldAll.
type parts []part

// parts returns those of a HoldAll, and nil for others.
func (r *Reservation) parts() parts {
	if r.claim == nil {
		return nil
	}
	all, _ := r.claim.grant.(parts)
	return all
}

// Delay returns the time until the reserved events may happen. 0 means that they
// may happen now.
func (r *Reservation) Delay() time.Duration {
	if r.l == nil {
		return r.delay()
	}
	return r.l.timeline.Until(r.due)
}

// Cancel says that the reserved events will not happen. It gives back as many of
// them as possible. Calling it twice is harmless.
//
// If all later reservations on the key are cancelled as well, in any order, the key
// is as if none of them had been made. A later reservation that is not cancelled
// keeps its time, and no caller is admitted before the latest such time. Until then,
// windows and logs have already given the cancelled events back; [TokenBucket],
// [LeakyBucket] and [WarmingUp] still keep them.
//
// Cancel gives nothing back:
//   - of events that [Limiter.Hold] has spent; use [Reservation.Settle] with 0,
//   - once the events may happen (Delay is 0 and the clock has moved on), because
//     they then count as having happened,
//   - after a Reset of the key,
//   - if the algorithm has a [SlidingWindow] or a [RollingWindow], and the store has
//     failed to cancel another reservation of the key that was pending at the same time,
//   - if the limit has changed since (see [WithLimits]),
//   - if a [LeakyBucket] has queued events of Allow or Take behind it, or
//   - while a later reservation of another process on the key is pending, which
//     keeps its time as well.
//
// If the key was evicted because of [WithMaxKeys], or another limiter of the same
// name called Reset, windows may give back events that others have spent since. The store of
// package redisstore learns of the Reset, with the exceptions listed there.
//
// Cancel calls the store; [WithStoreTimeout] bounds how long each call waits. Concurrent
// cancellations on a key share a call, up to 200 of them. Cancel takes about 0.1 ms for each
// thousand reservations of this limiter that are pending on the key.
func (r *Reservation) Cancel() {
	if !r.set(isOver) && r.is(isAhead) {
		err := r.l.cancelClaim(r.claim)
		if r.l.observers != nil {
			if err != nil {
				err = r.l.failed(err)
			}
			r.observe(context.Background(), CallCancel, r.n, Decision{}, err)
		}
	}
}

// cancelClaim is Cancel of a claim that was made ahead of time. The error is that of the store.
func (l *limiter) cancelClaim(c *claim) (err error) {
	defer l.waiting.released(c.key)
	if c.waiter != nil {
		err = l.cancel(c.key, c.line, c.waiter, c.by)
	} else if !l.resets.since(c.resets, c.key) {
		_, err = l.applyBy(context.Background(), c.key, c.by, Request{Op: OpCancel, Grant: c.grant})
	}
	return err
}

// Wait waits until the reserved events may happen, by the limiter's clock, and
// returns nil when they may. If ctx ends before that, Wait cancels the reservation as
// [Reservation.Cancel] does, and returns ctx's error. A hold, of which Cancel gives nothing
// back, is not cancelled, so that it can be settled.
func (r *Reservation) Wait(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	return r.wait(ctx)
}

// wait is Wait with a ctx that is not nil.
func (r *Reservation) wait(ctx context.Context) error {
	err := r.await(ctx)
	if err != nil && r.is(isAhead) {
		r.Cancel()
	}
	return err
}

// await waits until the events may happen, and returns nil when they may.
func (r *Reservation) await(ctx context.Context) error {
	if r.l == nil {
		for _, p := range r.parts() {
			if err := p.r.wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	for looks := 0; ; looks++ {
		d := r.Delay()
		if d == 0 {
			if looks > 0 {
				now, _ := r.l.timeline.Now()
				r.l.lines.sweep(now)
			}
			return nil
		}
		recheck := looks < manyLooks && !r.l.timeline.Flows()
		if err := r.sleep(ctx, d, recheck); err != nil {
			if r.Delay() == 0 {
				return nil // both happened at once, and the events are spent
			}
			return err
		}
	}
}

// sleep returns nil after d, by the limiter's clock, or the error of ctx if that ends
// first. With recheck, it may return nil early, if the clock has moved while the timer
// was set.
func (r *Reservation) sleep(ctx context.Context, d time.Duration, recheck bool) error {
	timer := r.l.timeline.Clock().Timer(d)
	defer timer.Stop()
	var again <-chan time.Time
	if recheck {
		if r.Delay() != d {
			return nil
		}
		again = time.After(lookAgain)
	}
	for {
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-again: // once
			if r.Delay() != d {
				return nil
			}
		}
	}
}

// lookAgain is the real time after which wait rechecks a clock that is moved by
// hand: a mock may have fired its timers just before wait set one, and show its new
// time only just after.
const lookAgain = 10 * time.Millisecond

// manyLooks bounds how often wait resets its timer because the clock has moved. A
// clock that is moved by hand stops moving long before that.
const manyLooks = 1000
