package ratelimit

import (
	"context"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/logvalve"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file makes the calls of the store for the turns of a line: to reserve them, to give them
// back, and to make them again when the limit has changed. It also wakes lines. How a turn is kept
// in the state of a key is in internal/step/turns.go.

// A reserver is the limiter that reserves a turn, with the limit and the options of the
// reservation. It is the By of a line.Terms in this package.
type reserver struct {
	l     *limiter
	limit *limit.Limit
	hold  holdOptions
}

// newTurnCall returns the call that asks lim for a turn of n events of key. whenDue reports whether
// the call is made when the turn has come, and denied before.
func (l *limiter) newTurnCall(
	ctx context.Context,
	key string,
	n int,
	lim *limit.Limit,
	h holdOptions,
) (c call, whenDue bool) {
	lead, _ := l.askAhead(lim, h.isHeld)
	whenDue = lead == 0 && !lim.Releases()
	c = newCall(ctx, step.OpReserve, key, n)
	c.hold, c.Limit, c.isFinal = h, lim, whenDue && !h.isHeld
	// The line has its own bounds. A turn in memory is asked for when it has come, and a turn that
	// has not come gives way to open holds.
	c.Request.MaxWait, c.Request.Again, c.Request.Yields = Never-1, whenDue, true
	if lim.Releases() { // when a turn comes is not known
		c.Request.Op = step.OpHold
	}
	return c, whenDue
}

// applyAsOf makes a call for a turn that has come as if the call had been made when the turn came,
// at from at the earliest. It reports whether there is a turn. While a caller stands in line,
// nothing else changes the state of the key, except what Line.Changed is told of. If the turn is a
// hold, the hold lasts from now on.
func (l *limiter) applyAsOf(c *call, from kernel.Instant) bool {
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

// askAhead returns how long before its instant a turn is asked for, and how many callers may ask at
// once. A lead of 0 means that a turn is asked for when it has come.
//
// In stores that are not in memory, an answer takes time. So turns are asked for ahead, by many
// callers at once. Events in flight are the exception: a turn may be denied to the first caller and
// granted to the second, so that one caller asks at a time.
//
// Events held in a LeakyBucket leave it later the more is held in front of them. So they enter as
// soon as there is room: a hold in front may still be settled for less.
func (l *limiter) askAhead(lim *limit.Limit, isHeld bool) (lead time.Duration, most int) {
	switch {
	case l.local != nil && isHeld && lim.Delays():
		return Never - 1, 1
	case l.local != nil:
		return 0, 1
	}
	lead = max(line.Tolerance, 2*time.Duration(l.lines.Took.Load()))
	if lim.Releases() {
		return lead, 1
	}
	return lead, line.MostTurns
}

// takeTurnsBehind takes the turns of the next places in the line of key, in memory, if lim decides
// on them and they have come. The goroutines of these places may be late, and the one of the caller
// runs.
func (l *limiter) takeTurnsBehind(key string, lim *limit.Limit, h holdOptions) {
	lead, _ := l.askAhead(lim, h.isHeld)
	if lead > 0 || lim.Releases() {
		return // a turn is asked for before it comes
	}
	for {
		now, _ := l.timeline.Now()
		move := l.lines.Behind(key, reserver{l, lim, h}, now)
		if move.Do != line.Ask || !l.takeTurnFor(key, move, lim) {
			return
		}
	}
}

// takeTurnFor asks for the turn of the place of another caller, as lim decides, and reports whether
// the turn has come.
func (l *limiter) takeTurnFor(key string, move line.Move, lim *limit.Limit) (isTaken bool) {
	p := move.For
	defer func() {
		if !isTaken { // or the clock has panicked
			p.InVain(move.Now)
		}
	}()
	c, whenDue := l.newTurnCall(context.Background(), key, p.N, lim, p.By.(reserver).hold)
	if !whenDue || p.N > lim.Limit() || !l.applyAsOf(&c, move.From) {
		return false
	}
	r := l.newReservation(&c.Call)
	r.set(isQuiet)
	p.Taken(r.due, r)
	return true
}

// cancelTurns gives turns back. In stores that are not in memory, it does so at once, so that the
// store can decide on them together.
func (l *limiter) cancelTurns(turns []line.Turn) {
	var all sync.WaitGroup
	for _, turn := range turns {
		r := turn.Held.(*Reservation)
		if len(turns) == 1 || l.local != nil {
			r.Cancel()
		} else {
			all.Go(func() { logvalve.Safely("the cancelling of a turn", r.Cancel) })
		}
	}
	all.Wait()
}

// recentDenial is the age up to which a denial by a store that is not in memory is taken to be true
// still.
const recentDenial = 10 * time.Millisecond

// wakeLineIfOutdated is wakeIfOutdated for the line of a key, if there is one.
func (l *limiter) wakeLineIfOutdated(key string, lim *limit.Limit) {
	ln := l.lines.Find(key)
	if ln == nil {
		return
	}
	defer ln.Unlock() // even if the user's clock panics
	l.wakeIfOutdated(ln, lim)
}

// wakeIfOutdated wakes the caller of the first place if there may be room that it does not know of:
// because it was denied by another limit than lim, the present one, or some time ago, since when
// another process may have released events. Turns that were made by another limit are made again.
func (l *limiter) wakeIfOutdated(ln *line.Line, lim *limit.Limit) {
	now, _ := l.timeline.Now()
	if denial, _ := ln.Denial.(*lineDenial); denial != nil {
		isOtherLimit := lim != nil && !denial.limit.Equals(lim)
		isOld := l.local == nil && denial.age(now) >= recentDenial
		if isOtherLimit || isOld {
			ln.Wake(now)
		}
	}
	if l.hasOutdatedTurn(ln, lim, now) {
		ln.Renew()
	}
}

// hasOutdatedTurn reports whether l has made a turn of a line, which has not come, by another limit
// than lim, the present one.
func (l *limiter) hasOutdatedTurn(ln *line.Line, lim *limit.Limit, now kernel.Instant) bool {
	if l.ownLimits == nil || lim == nil {
		return false // the limit never changes, or is not known
	}
	for turn := range ln.Turns {
		r := turn.Held.(*Reservation)
		if r.l == l && !turn.HasCome(now) && !r.limit.Equals(lim) {
			return true
		}
	}
	return false
}

// renewTurns gives the turns in the line of key back that l has made by another limit than lim, so
// that they are made again by lim. It does so before lim decides on anything else: lim grants
// nothing before a turn that is ahead.
func (l *limiter) renewTurns(key string, lim *limit.Limit) {
	outdated := l.outdatedTurns(key, lim)
	if len(outdated) > 0 {
		defer l.lines.Cancelled(key)
		l.cancelTurns(outdated)
	}
}

// outdatedTurns takes turns from the line of key if one of them was made by another limit than lim.
func (l *limiter) outdatedTurns(key string, lim *limit.Limit) []line.Turn {
	ln := l.lines.Find(key)
	if ln == nil {
		return nil
	}
	defer ln.Unlock()
	now, _ := l.timeline.Now()
	if !l.hasOutdatedTurn(ln, lim, now) {
		return nil
	}
	return ln.Outdated(now)
}

// limitOfFirstTurn returns the limit by which l has made the first turn of a line, or nil if the
// line has no turn that l has made.
func (l *limiter) limitOfFirstTurn(ln *line.Line) *limit.Limit {
	if r, _ := ln.Held().(*Reservation); r != nil && r.l == l {
		return r.limit
	}
	return nil
}

// wakeAfterSettlement tells the line of the key of a settlement. Room that the settlement makes was
// not there before. It makes none if all events of the hold have happened and no other hold has
// ended. An InFlight has no late turns, for which this would matter.
func (l *limiter) wakeAfterSettlement(c *call) {
	ln := l.lines.Find(c.Key)
	if ln == nil {
		return
	}
	defer ln.Unlock()
	allHappened := c.Request.N == c.Request.Of
	if c.Err == nil && allHappened && c.Answer.Ended == 0 {
		ln.Recheck()
		return
	}
	now, _ := l.timeline.Now()
	ln.Wake(now)
}

// wakeLine wakes the line of key, because something may have made room.
func (l *limiter) wakeLine(key string) {
	if l.lines.Any() {
		now, _ := l.timeline.Now()
		l.lines.Wake(key, now)
	}
}

// noteCharge tells the line of key that a Charge has changed the state.
func (l *limiter) noteCharge(key string) {
	ln := l.lines.Find(key)
	if ln == nil {
		return
	}
	defer ln.Unlock()
	now, _ := l.timeline.Now()
	ln.Changed(now)
}
