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
// Its methods may be called by several goroutines.
type Reservation struct {
	l   *limiter
	key string
	due instant // when the events may happen

	grant    any    // what the store needs to take it back; nil if nothing was spent
	resets   uint64 // of the limiter, when this was made
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
// Once the events may happen (Delay is 0 and the clock has moved on), they count
// as having happened, and nothing is given back. Before, if all that came after
// was cancelled first, the key is again what it was before Reserve. Otherwise
// somebody came after and was told an instant that counts on these events, and
// that promise stands: windows and logs forget the cancelled events, but let
// nobody in before the latest instant that was told, nor do they for other
// reservations then until the key has been idle; buckets, [WarmingUp], and a
// [SlidingLog] with CountDenied keep the events. So of several reservations,
// the last one should be cancelled first.
//
// It waits for the store for as long as [WithStoreTimeout] says. If the store fails,
// nothing is given back.
//
// If the key was forgotten meanwhile, because [WithMaxKeys] forced the store to
// or by the Reset of another limiter of the same name, windows may give back
// events that others have spent since.
func (r *Reservation) Cancel() {
	if r.grant == nil || r.canceled.Swap(true) || r.l.resets.since(r.resets, r.key) {
		return
	}
	// The error of a store that fails is of no use to anybody here: the events
	// stay spent, which is the safe side.
	_, _, _ = r.l.apply(context.Background(), r.key, Request{Op: OpCancel, Grant: r.grant})
}

// wait waits until the reserved events may happen, or cancels the reservation
// if ctx ends before.
func (r *Reservation) wait(ctx context.Context) error {
	for looks := 0; ; looks++ {
		d := r.Delay()
		if d == 0 {
			return nil
		}
		timer := r.l.timeline.clk.Timer(d)
		if looks < manyLooks && !r.l.timeline.flows() && r.Delay() != d {
			timer.Stop() // the clock moved before the timer was set
			continue
		}
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

// manyLooks bounds how often wait sets its timer anew because the clock has moved.
// A clock that somebody moves by hand stands still long before.
const manyLooks = 1000

var systemClock = reflect.TypeOf(clock.New())

// flows reports whether the clock shows another time whenever it is read. Its timers
// count the same time, and are not made late by what passed before they were set.
func (t *timeline) flows() bool {
	return t.steady || t.coarse != nil || reflect.TypeOf(t.clk) == systemClock
}

// resets remembers which keys were reset lately, so that a reservation made
// before is not taken out of what happened after.
type resets struct {
	count atomic.Uint64 // resets so far

	mu   sync.Mutex // protects what follows
	seed maphash.Seed
	last map[uint64]uint64 // by the hash of a key: the count at its latest reset
	lost uint64            // the count up to which last is not known any more
}

// manyResets bounds the memory of a resets. Reservations from before more
// resets than these give nothing back, which is the safe side.
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
