package ratelimit

import (
	"context"
	"hash/maphash"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// A Reservation holds events that [Limiter.Reserve] has spent ahead of time.
// Its methods may be called by several goroutines. The zero Reservation is due at once
// and holds nothing, as the one that FailOpen returns.
type Reservation struct {
	l   *limiter
	key string
	due instant // when the events may happen

	line     *line   // where it stands, if there is anything to take back
	waiter   *waiter // in that
	grant    any     // what a store that is not in the line's words needs instead
	resets   uint64  // of the limiter, when this was made
	canceled atomic.Bool
}

// Delay returns how long it is from now until the reserved events may happen;
// 0 means that they may.
func (r *Reservation) Delay() time.Duration {
	if r.l == nil {
		return 0
	}
	return r.l.timeline.until(r.due)
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

// wait waits until the reserved events may happen, or cancels the reservation
// if ctx ends before.
func (r *Reservation) wait(ctx context.Context) error {
	for looks := 0; ; looks++ {
		d := r.Delay()
		if d == 0 {
			if looks > 0 {
				now, _ := r.l.timeline.now()
				r.l.lines.sweep(now)
			}
			return nil
		}
		timer := r.l.timeline.clk.Timer(d)
		if looks < manyLooks && !r.l.timeline.flows() && r.Delay() != d {
			timer.Stop() // the clock moved before the timer was set
			continue
		}
		var again <-chan time.Time
		if looks < manyLooks && !r.l.timeline.flows() {
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

var systemClock = reflect.TypeOf(clock.New())

// flows reports whether the clock shows another time whenever it is read. Its timers
// count the same time, and are not made late by what passed before they were set.
func (t *timeline) flows() bool {
	return t.steady || t.coarse != nil || reflect.TypeOf(t.clk) == systemClock
}

// resets remembers which keys were reset lately, so that a reservation under way does
// not enter the line of what happened after.
type resets struct {
	count atomic.Uint64 // resets so far

	mu   sync.Mutex // protects what follows
	seed maphash.Seed
	last map[uint64]uint64 // by the hash of a key: the count at its latest reset
	lost uint64            // the count up to which last is not known any more
}

// manyResets bounds the memory of a resets. If there are more resets than these while
// a store is making a reservation, that gives nothing back, which is the safe side.
const manyResets = 1024

func (r *resets) note(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || len(r.last) >= manyResets {
		r.seed, r.last, r.lost = maphash.MakeSeed(), make(map[uint64]uint64), r.count.Load()
	}
	r.last[maphash.String(r.seed, key)] = r.count.Add(1)
}

// since reports whether key may have been reset after the first count resets.
func (r *resets) since(count uint64, key string) bool {
	if count == r.count.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return count < r.lost || count < r.last[maphash.String(r.seed, key)]
}
