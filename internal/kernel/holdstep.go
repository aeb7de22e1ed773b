package kernel

import (
	"slices"
	"time"
)

// This file applies requests to states that another limit has left, or that have open holds, and opens these.

// A verdict says who decides on a request.
type verdict uint8

const (
	decided verdict = iota // the state
	denied                 // another key, which refuses it
	noted                  // likewise, and the denial is noted
)

// stepFrom is StepFrom or, unless the state decides, RefuseFrom.
func (c *Compiled) stepFrom(from *Compiled, st []uint64, req *Request, a *Answer, how verdict) (by *Compiled, _ []uint64, changed bool) {
	if from.ahead() != nil {
		return c.stepAhead(from, st, req, a, how)
	}
	if req.Op.decides() {
		req.renew() // because a denial cannot be decided on twice
	}
	h := holding{view: c.view(req)}
	at, now, ended := from, st, 0 // now is the state as of now, which at left
	if o := from.opened(); o != nil && st[firstEnd] <= h.now {
		if req.Op == OpPeek {
			now = o.asOf(st, h.now)
		} else {
			now, ended = o.endDue(st, h.now)
		}
		at, now = o.closed(now)
	}
	k, next, pin := at.present(now), now, false
	switch req.Op {
	case OpSettle, OpExtend: // applied by the present limit
	default:
		k, next, pin = c.Meet(at, now, h.now)
	}
	h.Compiled, h.by, h.st = k.Base(), k.opened(), next
	if h.by != nil && h.denials != nil {
		h.held = h.by.held(next)
	}
	if how == decided {
		changed = h.apply(req, a)
	} else {
		next, changed = h.Refuse(h.inner(), req, how == noted, a)
		h.set(next)
	}
	if req.Op == OpPeek {
		return from, st, false
	}
	by, st = at, now
	if a.RetryAfter == Never {
		pin = false
	} else if two := h.changed; two != nil && (pin || h.stored() == at.Base().stored()) {
		pin = two.denies(h.inner(), After(h.now, uint64(a.RetryAfter)/h.Tick)) || pin // unless it has granted
	}
	if changed = changed || pin; changed {
		if h.by != nil {
			h.by.forfeit(h.st, h.now)
		}
		by, st = h.closed()
	}
	a.Ended += ended
	h.tellEnds(by, st, a)
	return by, st, changed || ended > 0
}

// A holding is a state that may have open holds, at a reading of the clock.
type holding struct {
	view           // of the kernel of such states without open holds
	by     *opened // if there are open holds: the kernel of the state; else nil
	st     []uint64
	booked *turns // if the request has reserved a turn ahead: the state with it
}

// inner returns the state without the list of holds.
func (h *holding) inner() []uint64 {
	if h.by == nil {
		return h.st
	}
	return h.by.inner(h.st)
}

// set replaces that state.
func (h *holding) set(inner []uint64) {
	if h.by == nil {
		h.st = inner
	} else {
		h.st = h.by.replace(h.st, inner)
	}
}

// closed returns the state as it is stored.
func (h *holding) closed() (*Compiled, []uint64) {
	if t := h.booked; t != nil {
		t.before = h.st
		return t.stored()
	}
	if h.by == nil {
		return h.stored(), h.st
	}
	return h.by.closed(h.st)
}

// pass prepares the marks for events that are about to be spent at an instant.
func (h *holding) pass(at Instant) {
	if h.by != nil {
		h.by.pass(h.st, at)
	}
}

// find returns the index of the hold with an ID, or −1.
func (h *holding) find(id uint64) int {
	if h.by == nil {
		return -1
	}
	return h.by.find(h.st, id)
}

func (h *holding) apply(req *Request, a *Answer) (changed bool) {
	*a = Answer{}
	switch {
	case req.Op == OpReserve:
		return h.reserve(req, a)
	case req.Op == OpHold && req.Hold.ID != 0:
		return h.take(req, a)
	case req.Op == OpSettle:
		return h.settle(req, a)
	case req.Op == OpExtend:
		return h.extend(req, a)
	}
	if req.Op != OpPeek {
		h.pass(h.now)
	}
	inner, changed := h.step(h.inner(), req, a)
	h.set(inner)
	return changed
}

// take opens a hold if its events are granted now.
func (h *holding) take(req *Request, a *Answer) (changed bool) {
	at := h.ready(h.inner(), req.N)
	if at > h.now {
		inner, at, changed := h.refuse(h.inner(), req.N, at)
		h.set(inner)
		h.denial(h.inner(), req.N, at, a)
		return changed
	}
	a.Allowed, a.Due = true, h.now*h.Tick
	if req.N > 0 {
		due := After(h.now, h.hold(h.inner(), h.now))
		if due > h.now {
			a.Delay, a.Due = h.until(due), due*h.Tick
		}
		h.open(req.Hold.ID, hold{h.ends(due, req.Hold.For), req.N, req.Hold.Back}, h.now, a) // from when they may happen, which is later if they are queued
		h.set(h.Spend(h.inner(), h.now, req.N))
		h.st = h.by.spent(h.st)
	}
	h.describe(h.inner(), 0, a)
	return req.N > 0
}

// reserve reserves events. If their turn is ahead, or their hold goes on, it can be settled.
func (h *holding) reserve(req *Request, a *Answer) (changed bool) {
	at, due, ok := h.turn(h.inner(), req, a)
	if ok && at > h.now && req.Yields && h.by != nil && h.by.holds(h.st) {
		soon := *req
		soon.MaxWait = 0
		req, ok = &soon, false
	}
	if !ok {
		h.refused(h.inner(), req, a)
		return false
	}
	id, of := req.Hold.ID, hold{h.ends(due, req.Hold.For), req.N, req.Hold.Back}
	h.reserved(due, req, a)
	switch {
	case id != 0 && at > h.now:
		t := turns{base: h.Compiled, by: h.stored(), before: h.st}
		if h.by != nil {
			t.by = t.by.Opened()
		}
		t.after = slices.Clone(t.inner())
		t.add(id, at, of, h.now)
		h.booked = &t
		h.describe(t.after, 0, a)
		return true
	case a.Held:
		h.open(id, of, at, a)
		h.set(h.book(h.inner(), at, due, req.N))
		h.st = h.by.spent(h.st)
	default:
		h.pass(at)
		h.set(h.book(h.inner(), at, due, req.N))
	}
	h.describe(h.inner(), 0, a)
	return true
}

// open adds the entry of a hold whose events are about to be spent at an instant.
func (h *holding) open(id uint64, of hold, at Instant, a *Answer) {
	if h.by == nil {
		h.by = h.Opened().opened()
		h.st = h.by.open(h.st)
	}
	var ended int
	h.st, ended = h.by.add(h.st, id, of, h.now, at)
	a.Ended += ended
	a.Held = true
}

// ends returns the end of a hold, d after an instant.
func (v *view) ends(at Instant, d time.Duration) Instant {
	return min(After(at, ceilDiv(uint64(max(0, d)), v.Tick)), v.lastInstant())
}

// settle counts the events of a hold that happened. Of one that is not open, only those that exceed it
// are not counted yet.
func (h *holding) settle(req *Request, a *Answer) (changed bool) {
	i, of := h.find(req.Hold.ID), req.Of
	if a.Held = i >= 0; a.Held {
		of = h.by.hold(h.st, i).n
	}
	more := req.N - of
	if more > 0 && h.exceeds(h.inner(), more, a) {
		h.peek(h.inner(), a)
		return false
	}
	if a.Held {
		h.st = h.by.sweep(h.by.settle(h.st, i, h.now, max(0, -more)), i, i+1)
	}
	if more > 0 {
		h.pass(h.now)
		h.set(h.chargeOthers(h.inner(), h.now, more))
	}
	h.peek(h.inner(), a)
	return a.Held || more > 0
}

// chargeOthers charges events in all parts but those in which they are over.
func (c *Compiled) chargeOthers(st []uint64, now Instant, n int) []uint64 {
	return c.each(st, func(_ int, own bool, part *capable, st []uint64) []uint64 {
		switch {
		case part.flies():
			return st
		case own:
			return part.charge(st, now, n)
		}
		return c.changed.follow(part, st, now, n)
	})
}

// extend moves the end of a hold.
func (h *holding) extend(req *Request, a *Answer) (changed bool) {
	i := h.find(req.Hold.ID)
	if a.Held = i >= 0; a.Held {
		h.st = h.by.extend(h.st, i, h.ends(h.now, req.Hold.For))
	}
	h.peek(h.inner(), a)
	return a.Held
}
