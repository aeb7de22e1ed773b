package kernel

import (
	"slices"
	"time"
)

// This file applies requests to states with turns ahead.

// asks reports whether c is the limit that has reserved the turns.
func (t *turns) asks(c *Compiled) bool {
	limit := t.base
	if limit.changed != nil {
		limit = limit.changed.limit()
	}
	return c == limit || c.same(limit)
}

// stepAhead is stepFrom for a state with turns. If they are those of another limit than c, they stay in the state
// as events that were spent, so that only those that are held can be settled.
func (c *Compiled) stepAhead(from *Compiled, st []uint64, req *Request, a *Answer, how verdict) (by *Compiled, _ []uint64, changed bool) {
	at := req.Fix() // because a denial cannot be decided on twice
	t := from.ahead().read(st)
	v := t.base.view(&at)
	ended, changed := t.advance(v.now, v.now)
	if !at.Op.settles() && len(t.list) > 0 && !t.asks(c) {
		more, _ := t.advance(Forever, v.now)
		ended, changed = ended+more, true
	}
	if len(t.list) == 0 {
		by, next, stepped := c.stepFrom(t.by, t.before, &at, a, how)
		if at.Op == OpPeek {
			return from, st, false
		}
		a.Ended += ended
		return by, next, changed || stepped
	}
	*a = Answer{}
	did := false
	switch i := t.find(at.Hold.ID); {
	case how != decided || at.Op == OpTake || at.Op == OpHold || at.Op == OpPeek:
		did = t.deny(v, &at, a, how)
	case at.Op == OpReserve:
		did = t.reserve(v, &at, a)
	case i >= 0 && at.Op == OpSettle:
		did = t.settleTurn(v, i, at.N, a)
	case i >= 0 && at.Op == OpExtend:
		did = t.extend(v, i, at.Hold.For, a)
	default:
		did = t.stepBefore(c, v, &at, a)
	}
	if at.Op == OpPeek {
		return from, st, false
	}
	by, next := from, st
	if changed = changed || did; changed {
		by, next = t.stored()
	}
	a.Ended += ended
	v.tellEnds(by, next, a)
	return by, next, changed
}

// meetTurns is Meet for a state with turns. It stays what it is while turns of c are ahead.
func (c *Compiled) meetTurns(from *Compiled, st []uint64, now Instant) (k *Compiled, _ []uint64, pin bool) {
	t := from.ahead().read(st)
	t.advance(now, now)
	if len(t.list) > 0 && t.asks(c) {
		return from, st, false
	}
	if len(t.list) > 0 {
		t.advance(Forever, now)
	}
	return c.Meet(t.by, t.before, now)
}

// deny answers a request that would be granted only after the turns.
func (t *turns) deny(v view, req *Request, a *Answer, how verdict) (changed bool) {
	n := req.N
	if req.Op == OpPeek {
		n = 1
	}
	if n == 0 {
		a.Allowed = true
		v.describe(t.after, 0, a)
		return false
	}
	if how != denied && v.denials != nil {
		h := t.holding(v)
		if h.by != nil {
			h.held = h.by.held(h.st)
		}
		var inner []uint64
		if inner, _, changed = h.refuse(h.inner(), n, Forever); changed {
			h.set(inner)
			t.put(&h)
		}
	}
	v.denial(t.after, n, v.ready(t.after, n), a)
	return changed
}

// reserve adds a turn.
func (t *turns) reserve(v view, req *Request, a *Answer) (changed bool) {
	at, due, ok := v.turn(t.after, req, a)
	if ok && req.Yields && t.ends() < Forever {
		soon := *req
		soon.MaxWait = 0
		req, ok = &soon, false
	}
	if !ok {
		v.refused(t.after, req, a)
		return false
	}
	a.Ended += t.add(req.Hold.ID, at, hold{v.ends(due, req.Hold.For), req.N, req.Hold.Back}, v.now)
	v.reserved(due, req, a)
	v.describe(t.after, 0, a)
	return true
}

// settleTurn settles the reservation with the i-th turn. What exceeds it happens now.
func (t *turns) settleTurn(v view, i, n int, a *Answer) (changed bool) {
	a.Held = true
	held := int(t.turn(i)[turnEvents] / 2)
	if n <= held || !v.exceeds(t.inner(), n-held, a) {
		t.settle(i, min(n, held))
		changed = true
	}
	if changed && n > held {
		h := t.holding(v)
		h.pass(v.now)
		h.set(h.chargeOthers(h.inner(), v.now, n-held))
		t.put(&h)
	}
	v.peek(t.after, a)
	return changed
}

// extend moves the end of the hold of the i-th turn.
func (t *turns) extend(v view, i int, last time.Duration, a *Answer) (changed bool) {
	a.Held = true
	t.list = slices.Clone(t.list)
	t.turn(i)[turnEnd] = max(t.turn(i)[turnAt], v.ends(v.now, last))
	t.spendAgain()
	v.peek(t.after, a)
	return true
}

// stepBefore applies a request to the state before the turns.
func (t *turns) stepBefore(c *Compiled, v view, req *Request, a *Answer) (changed bool) {
	by, st, changed := c.stepFrom(t.by, slices.Clone(t.before), req, a, decided)
	if req.Op == OpSettle && req.N < req.Of && by.Base() == t.base.stored() && !t.fit(everyTurn, 0, innerOf(by, st)) {
		most := *req
		most.N = req.Of // nothing comes back
		by, st, changed = c.stepFrom(t.by, slices.Clone(t.before), &most, a, decided)
	}
	if changed {
		t.by, t.before = by, st
		if base := by.Base(); base != t.base.stored() { // the former limit has gone
			t.base = base
		}
		t.spendAgain()
	}
	v.Compiled = t.base
	told := *a
	*a = Answer{}
	v.peek(t.after, a)
	a.Held, a.Ended, a.Excess, a.Most = told.Held, told.Ended, told.Excess, told.Most
	return changed
}

// holding returns a copy of the state before the turns, to be changed, and put replaces it.
func (t *turns) holding(v view) holding {
	h := holding{view: v, st: slices.Clone(t.before)}
	if t.by.opened() != nil {
		h.by = t.withHolds()
	}
	return h
}

func (t *turns) put(h *holding) {
	t.by, t.before = h.closed()
	t.spendAgain()
}
