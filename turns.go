package ratelimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/logvalve"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file asks the store for the turns of those who stand in line, and gives turns back that were
// made by a limit that has changed.

// reserveTurn reserves what w wants as t decides, even if that overtakes another Wait. In memory,
// its turn may have come since an instant. If w is to ask again, because its turn is not near or
// held events may come back, it reserves nothing and returns the denial.
func (l *limiter) reserveTurn(
	w *want,
	t *limit.Limit,
	from kernel.Instant,
) (_ *Reservation, denied *step.Answer, _ error) {
	patience := l.patience(w.until)
	c, again := l.newTurn(w.ctx, w.key, w.n, t, w.h)
	c.unknown, c.Request.MaxWait = w.unknown, patience
	flies := t.Releases()
	if !again || !l.applyFrom(&c, from) {
		l.apply(&c)
	}
	a := &c.Answer
	switch {
	case c.Err != nil && w.ctx.Err() != nil:
		return nil, nil, w.ctx.Err()
	case c.Err != nil:
		w.failure, w.may = errors.Join(l.failing(w.ctx, c.Err), w.unknown), c.mayGrant(w.n)
		if l.policy.kind == failOpen {
			return &Reservation{l: l, key: w.key}, nil, nil // now
		}
		// A fallback is asked once the place in line is given up: see waitFor.
		return nil, nil, w.failure
	case !a.Allowed:
		if w.n <= t.Limit() && !a.Full &&
			(flies || a.Ends > 0 || again && !a.QueueFull && a.Wait <= patience) {
			denial := *a // so that other answers are not allocated
			return nil, &denial, nil
		}
		return nil, nil, w.refusal(a, t, patience)
	}
	if max(a.Wait, a.Delay) == 0 && !w.stood {
		w.grant = Decision(a.Decision)
	}
	switch {
	case flies:
		r := l.held(&c.Call)
		return r, nil, r.outlast(w.until)
	case a.Wait == 0 && !w.h.holds && w.place == nil:
		return nil, nil, nil
	}
	return l.held(&c.Call), nil, nil
}

// newTurn returns the call that asks t for a turn of n events of key. If again, it is asked for
// when it has come, and denied before.
func (l *limiter) newTurn(
	ctx context.Context,
	key string,
	n int,
	t *limit.Limit,
	h holding,
) (c call, again bool) {
	soon, _ := l.reach(t, h.holds)
	again = soon == 0 && !t.Releases()
	c = newCall(ctx, step.OpReserve, key, n)
	c.h, c.Limit, c.kept = h, t, again && !h.holds
	c.Request.MaxWait, c.Request.Again, c.Request.Yields = Never-1, again, true
	if t.Releases() { // when a turn comes is not known
		c.Request.Op = step.OpHold
	}
	return c, again
}

// applyFrom has the store make a call for a turn that has come since an instant, as if that had
// been asked for when it came, and reports whether there is one. While somebody stands in line,
// nothing else changes the state of the key but what Line.Changed is told of. If the turn is a
// hold, that lasts from now on.
func (l *limiter) applyFrom(c *call, from kernel.Instant) bool {
	if from == kernel.Forever {
		return false
	}
	now, _ := l.timeline.Now()
	if from >= now {
		return false
	}
	late := *c
	late.Request.Fixed = &step.Reading{Now: from, Own: true}
	late.Request.Near = time.Duration(now - from)
	l.apply(&late)
	if late.Err != nil || !late.Answer.Allowed {
		return false
	}
	*c = late
	c.Answer.Wait = 0
	return true
}

// reach returns how far ahead a turn is asked for, which is 0 if that is done when it has come, and
// how many may ask t at once. Elsewhere than in memory, answers are on their way, and many may be;
// but what is in flight may be denied to the first of them and granted to the second. And what a
// LeakyBucket holds leaves it later than it enters it, by what is held before that: so it enters it
// as soon as there is room, since others may be settled for less.
func (l *limiter) reach(t *limit.Limit, holds bool) (soon time.Duration, wide int) {
	switch {
	case l.local != nil && holds && t.Delays():
		return Never - 1, 1
	case l.local != nil:
		return 0, 1
	}
	soon = max(line.Tolerance, 2*time.Duration(l.waiters.Took.Load()))
	if t.Releases() {
		return soon, 1
	}
	return soon, line.MostTurns
}

// serveBehind takes the turns of those in the line of key that have come, in memory, as by decides:
// their own callers may be late, and this one runs.
func (l *limiter) serveBehind(key string, by *limit.Limit, h holding) {
	if soon, _ := l.reach(by, h.holds); soon > 0 || by.Releases() {
		return // a turn is asked for before it comes
	}
	for again := true; again; {
		now, _ := l.timeline.Now()
		move := l.waiters.Behind(key, terms{l, by, h}, now)
		again = move.Do == line.Ask && l.askFor(key, move, by)
	}
}

// askFor asks for the turn of a place of another caller, if that has come, as by decides, and
// reports whether there is one.
func (l *limiter) askFor(key string, move line.Move, by *limit.Limit) (ok bool) {
	p := move.For
	defer func() {
		if !ok { // or the clock has panicked
			p.InVain(move.Now)
		}
	}()
	c, again := l.newTurn(context.Background(), key, p.N, by, p.By.(terms).h)
	if !again || p.N > by.Limit() || !l.applyFrom(&c, move.From) {
		return false
	}
	r := l.held(&c.Call)
	r.set(isQuiet)
	p.Taken(r.due, r)
	return true
}

// cancel gives turns back. Elsewhere than in memory, it does so at once, so that the store can take
// them together.
func (l *limiter) cancel(turns []line.Turn) {
	var all sync.WaitGroup
	for _, turn := range turns {
		r := turn.Held.(*Reservation)
		if len(turns) == 1 || l.local != nil {
			r.Cancel()
		} else {
			all.Go(func() { logvalve.Safely(r.Cancel) })
		}
	}
	all.Wait()
}

// nudge wakes the first one in a line if there may be room that it does not know of: because it was
// denied by another limit than t, the present one, or some time ago, since when another process may
// have released events. If turns were made by another limit, they are made again.
func (l *limiter) nudge(ln *line.Line, t *limit.Limit) {
	now, _ := l.timeline.Now()
	why, _ := ln.Denial.(*denied)
	if why != nil &&
		(t != nil && !why.by.Equals(t) || l.local == nil && why.age(now) >= lookAgain) {
		ln.Wake(now)
	}
	if l.outdates(ln, t, now) {
		ln.Renew()
	}
}

// outdates reports whether l has made a turn of a line, which has not come, by another limit than
// t, the present one.
func (l *limiter) outdates(ln *line.Line, t *limit.Limit, now kernel.Instant) bool {
	if l.limits == nil || t == nil {
		return false // it never changes, or is not known
	}
	for turn := range ln.Turns {
		r := turn.Held.(*Reservation)
		if r.l == l && !turn.HasCome(now) && !r.by.Equals(t) {
			return true
		}
	}
	return false
}

// renewTurns gives the turns in the line of key back that l has made by another limit than t, so
// that they are made again by t. It does so before t decides on anything else: the store would then
// keep their events as spent.
func (l *limiter) renewTurns(key string, t *limit.Limit) {
	var outdated []line.Turn
	l.waiters.Look(key, func(ln *line.Line) {
		now, _ := l.timeline.Now()
		if l.outdates(ln, t, now) {
			outdated = ln.Outdated(now)
		}
	})
	if len(outdated) > 0 {
		defer l.waiters.Cancelled(key)
		l.cancel(outdated)
	}
}

// madeBy returns the limit by which l has made the first turn of a line, or nil if there is none of
// l.
func (l *limiter) madeBy(ln *line.Line) *limit.Limit {
	if r, _ := ln.Held().(*Reservation); r != nil && r.l == l {
		return r.by
	}
	return nil
}

// settled tells those who wait for the key of a settlement. Room that it makes was not there
// before. It makes none if all events of the hold have happened, and no other hold has ended;
// except in an InFlight, which has no late turns.
func (l *limiter) settled(c *call) {
	l.waiters.Look(c.Key, func(ln *line.Line) {
		allHappened := c.Request.N == c.Request.Of
		if c.Err == nil && allHappened && c.Answer.Ended == 0 {
			ln.Look()
			return
		}
		now, _ := l.timeline.Now()
		ln.Wake(now)
	})
}

// wake wakes those who wait for key, because something may have made room.
func (l *limiter) wake(key string) {
	if l.waiters.Any() {
		now, _ := l.timeline.Now()
		l.waiters.Wake(key, now)
	}
}
