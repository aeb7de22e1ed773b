package ratelimit

import (
	"fmt"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file tells what is known behind a line: whether a request would overtake those who wait, and
// whether one more may stand in it.

// A denied says why the first one in a line was denied.
type denied struct {
	Decision
	at kernel.Instant // when it was asked for
	by *limit.Limit   // what decided it
}

func (d *denied) age(now kernel.Instant) time.Duration {
	return time.Duration(now - min(now, d.at))
}

// An ahead is the state of a key after those who stand in line.
type ahead struct {
	by   *step.Machine
	st   []uint64
	last kernel.Instant // when the turn of the last one comes
}

// apply applies a request of t to the state, at now.
func (a *ahead) apply(t *limit.Limit, req step.Request, now kernel.Instant) (ans step.Answer) {
	req.Fixed = &step.Reading{Now: now, Own: true}
	req.Refused = req.Op == step.OpTake
	if req.Refused {
		t.StepFrom(a.by, slices.Clone(a.st), &req, &ans) // which may change it in place
	} else {
		a.by, a.st, _ = t.StepFrom(a.by, a.st, &req, &ans)
		a.last = max(a.last, ans.Due)
	}
	return ans
}

// stateAhead returns the state of key after all who stand in its line, or nil if it is not known:
// because it is not in this process, or because events may come back at any moment. t is the
// present limit of the key.
func (l *limiter) stateAhead(ln *line.Line, key string, t *limit.Limit, now kernel.Instant) *ahead {
	if a, ok := ln.Ahead.(*ahead); ok {
		return a
	}
	if l.local == nil {
		return nil
	}
	by, st := l.local.Space.State(key)
	if by == nil {
		return nil
	}
	a := &ahead{by: by, st: st}
	from := ln.From(now)
	for of := range ln.Turnless {
		by := of.By.(terms).by
		if of.By.(terms).l == l { // it will ask for its turn by t
			by = t
		}
		if by.Releases() {
			return nil
		}
		a.apply(
			by.Loose(),
			step.Request{Op: step.OpReserve, N: of.N, MaxWait: Never - 1},
			max(from, min(of.Since, now)),
		)
	}
	ln.Ahead = a
	return a
}

// mayEnter returns an error if a Wait for n events must not stand in line: because the line is too
// long or, if that is known, because its turn comes too late, or a queue is full by then.
func (l *limiter) mayEnter(ln *line.Line, w *want, t *limit.Limit) error {
	l.nudge(ln, t)
	if l.mostWaiters > 0 && ln.Len() >= l.mostWaiters {
		return fmt.Errorf(
			"%w: %d wait for key %q already; see WithMaxWaiters",
			ErrQueueFull,
			ln.Len(),
			w.key,
		)
	}
	_, hurries := w.until.Deadline()
	if t.Releases() || ln.Len() == 0 || ln.Ahead == nil && !hurries && !t.Delays() {
		// It is not known, or the first one is told when it asks, or nothing can go wrong.
		return nil
	}
	now, _ := l.timeline.Now()
	left := l.patience(w.until)
	if a := l.stateAhead(ln, w.key, t, now); a != nil {
		ans := a.apply(t.Loose(), step.Request{Op: step.OpReserve, N: w.n, MaxWait: left}, now)
		if ans.Allowed {
			return nil
		}
		return w.refusal(&ans, t, left)
	}
	last := time.Duration(ln.Last() - min(now, ln.Last()))
	if last <= left || l.local != nil || l.madeBy(ln) != t {
		// Events may come back, or other turns will be made.
		return nil
	}
	// Nobody behind the turns is served before the last.
	return &TurnError{N: w.n, Wait: last, Left: left}
}

// soon is the RetryAfter of requests behind a waiter that may be served at any moment.
const soon = time.Millisecond

// overtakes reports whether c, which is about n events, would overtake a Wait, and returns the
// decision that denies it. Requests that are granted always or never overtake nobody. If there may
// be room that the Wait does not know of, overtakes wakes it.
func (l *limiter) overtakes(c *call, n int) (d Decision, does bool) {
	key := c.Key
	if n == 0 || !l.waiters.Any() || !l.waiters.Has(key) {
		return d, false
	}
	t := l.presentLimit(c)
	now, _ := l.timeline.Now()
	l.waiters.Look(key, func(ln *line.Line) {
		l.nudge(ln, t)
		why, _ := ln.Denial.(*denied)
		if t == nil || t.Stateless() || n > t.Limit() || !ln.Waits() {
			return // or it is being decided whether the only one there waits
		}
		does, d.Limit = true, t.Limit()
		turn, passed := ln.Last(), time.Duration(0)
		if a := l.stateAhead(ln, key, t, now); a != nil {
			ans := a.apply(t.Loose(), step.Request{Op: step.OpTake, N: n}, now)
			d = Decision(ans.Decision)
			turn = max(turn, a.last) // a LeakyBucket has room before
		} else if why != nil {
			d, passed = why.Decision, why.age(now)
		}
		if d.RetryAfter < Never {
			d.RetryAfter = max(soon, time.Duration(turn-min(now, turn)), d.RetryAfter-passed)
		}
		d.ResetAfter = max(d.RetryAfter, d.ResetAfter-passed)
		d.Allowed, d.Remaining, d.Delay = false, 0, 0
	})
	if does {
		l.serveBehind(key, t, holding{})
	}
	return d, does
}
