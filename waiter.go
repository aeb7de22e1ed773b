package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
)

// A Wait that is not granted at once is a place in the line of its key: see package line. The store
// is asked for the reservation of the next one in it, a turn: in memory when that has come, and
// elsewhere early enough for the answer to arrive. In other stores, the first place always has a
// turn, because other processes wait as well.
//
// In a busy process, whoever should ask does so late. In memory, the turn is then reserved at the
// instant at which it came, if that is no longer ago than turns were taken late of late
// (line.From), so that the line keeps its rate; and whoever runs asks for those behind. A process
// that stood still goes on at the limit. Elsewhere, turns are asked for that much earlier.
//
// While events are held, and in an InFlight, nobody knows when a turn comes: they may come back at
// any moment. Then the first one is denied, and asks again when a hold is settled or extended
// through this limiter, when a hold ends by itself, and when the store has said that there will be
// room.
//
// Nothing overtakes the line: other requests on the key are denied without asking the store.

// terms are what a turn is for, besides the number of its events.
type terms struct {
	l  *limiter
	by *limit.Limit
	h  holding
}

// A waiter is a want that stands in line.
type waiter struct {
	want
	l *limiter
}

// stand returns when the turn has come. first is a turn that it has already, or nil.
func (w *waiter) stand(first *Reservation) (*Reservation, error) {
	// If no turn is needed, or code of the caller has panicked: a lookup, a clock, or a store.
	defer w.leave(0)
	if first != nil {
		w.granted(first, first.by)
	}
	for {
		soon, _ := w.l.reach(w.place.By.(terms).by, w.h.holds)
		now, _ := w.l.timeline.Now()
		switch move := w.place.Next(now, soon); move.Do {
		case line.Served:
			return w.served(move.Turns), nil
		case line.Ask:
			if done, r, err := w.ask(move); done {
				return r, err
			}
		case line.GiveBack:
			w.giveBack(move.Turns)
		case line.Left:
			return nil, w.until.Err()
		default:
			w.stood = true
			if err := w.l.sleep(w.until, move.Until, w.place.Woken()); err != nil {
				now, _ = w.l.timeline.Now()
				if w.mayStillAsk(move.Until, now) {
					continue
				}
				if r := w.leave(now); r != nil {
					return r, nil
				}
				return nil, err
			}
		}
	}
}

// mayStillAsk reports whether w, whose context has ended, may ask for its turn all the same: that
// was to be asked for at an instant that has come, and the context ended by a deadline that was no
// earlier.
func (w *waiter) mayStillAsk(at, now kernel.Instant) bool {
	deadline, ok := w.until.Deadline()
	if !ok || at > now || !errors.Is(w.until.Err(), context.DeadlineExceeded) {
		return false
	}
	late := -w.l.timeline.Clock().Until(deadline)
	return late >= 0 && at <= now-min(now, uint64(late))
}

// leave gives the place up, if that is not done, and returns its turn if that has come.
func (w *waiter) leave(now kernel.Instant) *Reservation {
	move := w.place.Leave(now)
	for move.Do == line.Rest {
		// Another caller is asking for its turn, and waits for nothing meanwhile.
		<-w.place.Woken()
		move = w.place.Leave(now)
	}
	if move.Do == line.Served {
		return w.served(move.Turns)
	}
	w.giveBack(move.Turns)
	return nil
}

// served returns the first one of turns, which has come, and gives the others back.
func (w *waiter) served(turns []line.Turn) *Reservation {
	w.giveBack(turns[1:])
	if w.l.limits == nil { // else the limit would have to be looked up
		w.l.serveBehind(w.key, w.l.t, w.h)
	}
	return turns[0].Held.(*Reservation)
}

// giveBack gives turns back that fit nobody in line.
func (w *waiter) giveBack(left []line.Turn) {
	if len(left) == 0 {
		return
	}
	defer w.place.Cancelled()
	w.l.cancel(left)
}

// ask asks the store for a turn. done says that the wait is over.
func (w *waiter) ask(move line.Move) (done bool, _ *Reservation, _ error) {
	l := w.l
	by, unknown, err := l.limitFor(w.ctx, w.key)
	if err != nil {
		return true, nil, err
	}
	w.unknown = unknown
	before, _ := l.timeline.Now()
	began := time.Now()
	r, denial, err := l.reserveTurn(&w.want, by, move.From)
	if l.local == nil {
		l.waiters.Took.Store(int64(time.Since(began)))
	}
	switch {
	case err != nil:
		return true, nil, err
	case denial == nil:
		done = w.granted(r, by)
		if done && unknown == nil {
			l.serveBehind(w.key, by, w.h)
		}
		return done, r, nil
	}
	wait, again := denial.RetryAfter, kernel.Forever
	if denial.Ends > 0 {
		wait = min(wait, denial.Ends)
	}
	if wait < Never {
		again = kernel.After(before, uint64(wait))
	}
	w.stood = true
	w.place.Denied(&denied{Decision(denial.Decision), before, by}, again)
	return false, nil, nil
}

// granted says that r was reserved as a limit decides, and returns whether its events may happen
// now: then it has no turn, nor has a policy's decision, for which nothing is reserved.
func (w *waiter) granted(r *Reservation, by *limit.Limit) (now bool) {
	soon, wide := w.l.reach(by, w.h.holds)
	now = !r.is(isAhead)
	if now {
		w.place.Granted(r.due, nil, 0, wide)
	} else {
		r.set(isQuiet)
		w.place.Granted(r.due, r, w.l.timeline.In(soon), wide)
	}
	return now
}
