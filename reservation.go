package ratelimit

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A Reservation holds events that [Limiter.Hold] has spent, or that [Limiter.Reserve] has
// spent ahead of time. Any number of goroutines may call its methods at once. The zero
// Reservation is due at once and holds nothing, like those of FailOpen. So does a nil one, which
// comes with a denial: its methods do nothing, so that Release may be deferred before d.Allowed is
// looked at.
type Reservation struct {
	l   *limiter       // nil if nothing is held, and for a HoldAll
	n   int            // the number of events that are held
	due kernel.Instant // when the events may happen
	status

	key    string
	by     *limit.Limit   // that made it; nil if the store failed
	hold   uint64         // the ID of the hold; 0 if there is none
	lasts  time.Duration  // of a Hold: how long it lasts from when the events may happen
	grant  any            // what cancels it, if it is ahead; of a HoldAll, its parts
	resets uint64         // if it is ahead: the limiter's count of resets before the reservation
	line   *pendingLine   // if it is ahead, unless the store has Grants of its own
	waiter *kernel.Waiter // its place in line
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

// Parts returns the Reservations of the keys of a [HoldAll], in the order of its Bounds, each of which can
// be settled by itself, and has a Token. For a key that was given several times, it is the same one,
// which has the events of all. Any other Reservation is the only part of itself; nil has none.
func (r *Reservation) Parts() []*Reservation {
	all := r.parts()
	switch {
	case r == nil:
		return nil
	case all.of == nil:
		return []*Reservation{r}
	}
	parts := make([]*Reservation, len(all.of))
	for i, p := range all.of {
		parts[i] = all.of[p.first].r
	}
	return parts
}

// parts returns those of a HoldAll, and none for others.
func (r *Reservation) parts() (all parts) {
	if r != nil && r.l == nil {
		all, _ = r.grant.(parts)
	}
	return all
}

// Delay returns the time until the reserved events may happen. 0 means that they
// may happen now.
func (r *Reservation) Delay() time.Duration {
	if r == nil {
		return 0
	}
	if r.l == nil {
		return r.delay()
	}
	return r.l.timeline.Until(r.due)
}

// Cancel says that the events will not happen. Calling it twice is harmless. Cancel of a hold is
// [Reservation.Settle] with 0, before its turn and after. It has no error: observers are told, as of
// every Cancel. But if it is cancelled before its turn while others stand behind it, the key grants nothing
// before their turns, even if these are cancelled as well.
//
// Of other events that were reserved ahead of time, Cancel gives back as many as possible.
// If all later reservations on the key are cancelled as well, in any order, the key
// is as if none of them had been made. A later reservation that is not cancelled
// keeps its time, and no caller is admitted before the latest such time. Until then,
// windows and logs have already given the cancelled events back; [TokenBucket],
// [LeakyBucket] and [WarmingUp] still keep them.
//
// Cancel gives nothing back of a reservation that is no hold:
//   - once the events may happen (Delay is 0 and the clock has moved on), because
//     they then count as having happened,
//   - after a Reset of the key,
//   - if the algorithm has a [SlidingWindow] or a [RollingWindow], and the store has
//     failed to cancel another reservation of the key that was pending at the same time,
//   - if the limit has changed since (see [WithLimits]),
//   - if a [LeakyBucket] has queued events of Allow or Take behind it,
//   - if a hold was settled since, and the algorithm has a bucket or a WarmingUp, or
//   - while a later reservation of another process on the key is pending, which
//     keeps its time as well.
//
// If the key was evicted because of MaxKeys, or another limiter of the same
// name called Reset, windows may give back events that others have spent since. The store of
// package redisstore learns of the Reset, with the exceptions listed there.
//
// Cancel calls the store; [WithStoreTimeout] bounds how long each call waits. Concurrent
// cancellations on a key share a call, up to 200 of them. Cancel takes about 0.1 ms for each
// thousand reservations of this limiter that are pending on the key.
func (r *Reservation) Cancel() {
	if r == nil || r.set(isOver) {
		return
	}
	for _, p := range r.parts().of {
		p.r.Cancel()
	}
	if r.l == nil {
		return
	}
	ctx := context.Background()
	var d Decision
	var err error
	switch {
	case r.hold != 0:
		err = r.settleNow(ctx, 0, &d)
	case r.is(isAhead):
		if err = r.cancelAhead(); err != nil {
			err = r.l.failed(err)
		}
	}
	r.observe(ctx, 0, Decision{}, err)
}

// cancelAhead cancels what was reserved ahead of time, together with others in its line. The error is that of the store.
func (r *Reservation) cancelAhead(with ...*Reservation) (err error) {
	l, ctx := r.l, context.Background()
	defer l.waiters.Wake(r.key)
	switch {
	case r.waiter == nil && !l.resets.since(r.resets, r.key):
		err = l.applyBy(ctx, r.key, r.by, &kernel.Request{Op: kernel.OpCancel, Grant: r.grant, Hold: kernel.Handle{ID: r.hold}}, new(kernel.Answer))
	case r.waiter != nil:
		with = append(with, r)
		err = l.cancel(r.key, r.line, with)
		for _, r := range with {
			if err == nil && r.hold != 0 && !r.undone() { // others stand behind it, or its turn has come
				if err = l.leave(ctx, r.key, r.line, r.waiter); err == nil {
					err = r.settleBy(ctx, r.by, 0, new(kernel.Answer))
				}
			}
		}
	}
	return err
}

// undone reports whether the cancellation has taken all events back.
func (r *Reservation) undone() bool {
	sh := r.l.lines.shard(r.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return r.waiter.Undone()
}

// Wait waits until the reserved events may happen, by the limiter's clock, and
// returns nil when they may. If ctx ends before that, Wait cancels the reservation as
// [Reservation.Cancel] does, and returns ctx's error. A hold is not cancelled, so that it can be
// settled.
func (r *Reservation) Wait(ctx context.Context) error {
	switch {
	case ctx == nil:
		return errNoContext
	case r == nil:
		return nil
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
		for _, p := range r.parts().of {
			if err := p.r.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	if err := r.l.sleep(ctx, r.due, nil); err != nil && r.Delay() > 0 { // else both happened at once, and the events are spent
		return err
	}
	now, _ := r.l.timeline.Now()
	r.l.lines.sweep(now)
	return nil
}

// sleep waits until the limiter's clock shows due, or until turn has an element, unless it is nil.
// It returns the error of ctx if that ends first. Every wait sleeps here.
func (l *limiter) sleep(ctx context.Context, due kernel.Instant, turn <-chan struct{}) error {
	for d := l.timeline.Until(due); d > 0; d = l.timeline.Until(due) {
		if woken, err := l.sleepFor(ctx, d, due, turn); woken || err != nil {
			return err
		}
	}
	return nil
}

// sleepFor is sleep for d, the time until due. It may return early. woken says that turn has had
// an element.
func (l *limiter) sleepFor(ctx context.Context, d time.Duration, due kernel.Instant, turn <-chan struct{}) (woken bool, err error) {
	var passed, again <-chan time.Time // nil: never
	if d < Never {
		timer := l.timeline.Clock().Timer(d)
		defer timer.Stop()
		passed = timer.C
		if !l.timeline.Flows() {
			if l.timeline.Until(due) != d {
				return false, nil // the clock was moved before the timer was set, which is late now
			}
			again = time.After(lookAgain)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-turn:
			return true, nil
		case <-passed:
			return false, nil
		case <-again: // once
			if l.timeline.Until(due) == 0 {
				return false, nil
			}
		}
	}
}

// lookAgain is the real time after which a wait looks again at a clock that is moved by hand: a
// mock may have fired its timers just before the wait set one, and show its new time only just
// after.
const lookAgain = 10 * time.Millisecond
