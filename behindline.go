package ratelimit

import (
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/keyhint"
)

// This file decides which requests are denied because of a line of this process, and what they are
// told (denialInLine), and whether one more waiter may enter it (mayEnter, which waiter.go asks).
// In call.go, spend asks before the store is asked, so that nothing is spent; tell asks after a
// Charge, a Settle or a Peek. Where no line is in use, calls do not come here. Turns that this
// process or another has reserved are in the state of the key, and deny in internal/step/apply.go,
// or in the scripts of Redis.

// A lineDenial is why the first place in a line was denied a turn.
type lineDenial struct {
	Decision
	askedAt kernel.Instant
	limit   *limit.Limit // that decided
}

func (d *lineDenial) age(now kernel.Instant) time.Duration {
	return time.Duration(now - min(now, d.askedAt))
}

// mayEnter returns an error if w must not stand in a line: because the line is too long or, if that
// is known, because the turn of w comes too late, or the queue of a LeakyBucket is full by then.
func (w *waiter) mayEnter(ln *line.Line, lim *limit.Limit) error {
	l := w.l
	l.wakeIfOutdated(ln, lim)
	if l.maxWaiters > 0 && ln.Len() >= l.maxWaiters {
		return fmt.Errorf(
			"%w: %d callers wait for key %s already; see WithMaxWaiters",
			ErrQueueFull,
			ln.Len(),
			keyhint.Of(w.key),
		)
	}
	if lim.Releases() || ln.Len() == 0 {
		return nil // when the turn comes is not known, or the store says so when it is asked
	}
	_, hasDeadline := w.until.Deadline()
	if ln.EndState == nil && !hasDeadline && !lim.Delays() {
		return nil // without a deadline or a queue, no turn is too late
	}
	now, _ := l.timeline.Now()
	left := w.patience()
	end := l.endState(ln, w.key, lim, now)
	switch {
	case end == nil:
	case end.firstHold < kernel.Forever:
		if wait := time.Duration(end.firstHold - min(now, end.firstHold)); wait > left {
			return &TurnError{N: w.n, Wait: wait, Left: left} // no place behind that one is earlier
		}
		end.reserve(lim, w.n, w.hold.isHeld, Never-1, now)
		return nil
	default:
		ans := end.reserve(lim, w.n, w.hold.isHeld, left, now)
		if ans.Allowed {
			return nil
		}
		return w.refuse(&ans, lim, left)
	}
	if l.local != nil || l.limitOfFirstTurn(ln) != lim {
		return nil // events may be given back, or other turns will be made
	}
	last := time.Duration(ln.Last() - min(now, ln.Last()))
	if last <= left {
		return nil
	}
	// No place behind the turns is served before the last of them.
	return &TurnError{N: w.n, Wait: last, Left: left}
}

// minRetryBehindLine is the RetryAfter of a request that would overtake a waiter that may be served
// at any moment.
const minRetryBehindLine = time.Millisecond

// denialInLine reports whether c, which is about n events, would overtake a waiter, and returns the
// decision that denies c. Requests that are granted always or never overtake nobody. If there may
// be room that the first waiter does not know of, denialInLine wakes it.
func (l *limiter) denialInLine(c *call, n int) (d Decision, overtakes bool) {
	if n == 0 || !l.lines.Any() || !l.lines.Has(c.Key) {
		return d, false
	}
	lim := l.presentLimit(c)
	d, overtakes = l.denialBehind(c.Key, lim, n)
	if overtakes {
		l.takeTurnsBehind(c.Key, lim, holdOptions{})
	}
	return d, overtakes
}

// denialBehind is denialInLine for the limit of the key, which is nil if it is not known.
func (l *limiter) denialBehind(key string, lim *limit.Limit, n int) (d Decision, overtakes bool) {
	now, _ := l.timeline.Now()
	ln := l.lines.Find(key)
	if ln == nil {
		return d, false
	}
	defer ln.Unlock()
	l.wakeIfOutdated(ln, lim)
	if lim == nil || lim.Stateless() || n > lim.Limit() || !ln.Waits() {
		return d, false
	}
	d.Limit = lim.Limit()
	turn, passed := ln.Last(), time.Duration(0) // passed since d was decided
	if end := l.endState(ln, key, lim, now); end != nil {
		ans := end.deny(lim, n, now)
		d = Decision(ans.Decision)
		turn = max(turn, end.lastTurn) // a LeakyBucket has room before
	} else if denial, _ := ln.Denial.(*lineDenial); denial != nil {
		d, passed = denial.Decision, denial.age(now)
	}
	if d.RetryAfter < Never {
		untilTurn := time.Duration(turn - min(now, turn))
		d.RetryAfter = max(minRetryBehindLine, untilTurn, d.RetryAfter-passed)
	}
	d.ResetAfter = max(d.RetryAfter, d.ResetAfter-passed)
	d.Allowed, d.Remaining, d.Delay = false, 0, 0
	return d, true
}
