package step

import (
	"slices"
	"sort"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file applies requests to a state taken apart: those that open, settle and extend holds, and
// those that find holds open or turns ahead.

func (h *heldState) apply(req *Request, a *Answer) (changed bool) {
	*a = Answer{}
	switch {
	case req.Refused || h.turns() > 0 && req.Op.decides():
		n := req.Least()
		return h.deny(n, h.readyAfter(n), req.Notes || !req.Refused, a)
	case req.Op == OpReserve:
		return h.reserve(req, a)
	case req.Op == OpHold && req.Hold.ID != 0:
		return h.take(req, a)
	case req.Op == OpSettle:
		return h.settle(req, a)
	case req.Op == OpExtend:
		return h.extend(req, a)
	case req.Op == OpCharge:
		return h.charge(req.N, a)
	case req.Op != OpPeek:
		h.unshare()
		h.pass(h.now)
	}
	inner, changed := h.step(h.inner(), req, a)
	h.setInner(inner)
	return changed
}

// deny answers a request that is granted at an instant: later, or not even now, because another key
// denies it. Then, Allowed is whether this one would have granted it. With note, a kernel that
// notes denials does so.
func (h *heldState) deny(n int, at kernel.Instant, note bool, a *Answer) (changed bool) {
	if note && n > 0 && h.denials {
		h.unshare()
		var inner []uint64
		inner, at, changed = h.refuse(h.inner(), n, at)
		h.noted = changed
		h.setInner(inner)
		if h.turns() > 0 {
			h.spendAgain()
			at = h.readyAfter(n)
		}
	}
	v, st := h.afterTurns()
	if at > h.now {
		v.denial(st, n, at, a)
	} else {
		a.Allowed = true
		v.describe(st, 0, a)
	}
	return changed
}

// take opens a hold if its events are granted now.
func (h *heldState) take(req *Request, a *Answer) (changed bool) {
	if at := h.ready(h.inner(), req.N); at > h.now {
		return h.deny(req.N, at, true, a)
	}
	a.Allowed, a.Due = true, h.now*h.Tick
	if req.N > 0 {
		due := max(kernel.After(h.now, h.Delay(h.inner(), h.now)), h.ends(h.now, req.Delay))
		if due > h.now {
			a.Delay, a.Due = h.until(due), due*h.Tick
		}
		// From when they may happen, which is later if they are queued.
		of := kernel.Hold{End: h.ends(due, req.Hold.For), N: req.N, Back: req.Hold.Back}
		h.open(req.Hold.ID, of, h.now)
		a.Held = true
		h.setInner(h.lasts(h.Spend(h.inner(), h.now, of.N), of.N, of.End))
	}
	h.describe(h.inner(), 0, a)
	return req.N > 0
}

// reserve reserves events. If their turn is ahead, or their hold goes on, it can be settled.
func (h *heldState) reserve(req *Request, a *Answer) (changed bool) {
	v, st := h.afterTurns()
	at, due, ok := v.turn(st, req, a)
	// When it is asked for, which is later than now if the turn may have come before.
	asked := kernel.After(h.now, uint64(req.Near)/h.Tick)
	first := h.soonest()
	isOpen := first < kernel.Forever
	// By a hold that ends before the turn, or one that is settled until then.
	mayBeEarlier := first <= at || at > asked && isOpen
	if ok && at > h.now && req.Yields && mayBeEarlier {
		soon := *req
		soon.MaxWait = 0
		req, ok = &soon, false
	}
	if !ok {
		v.refused(st, req, a)
		return false
	}
	id, end := req.Hold.ID, h.ends(max(due, asked), req.Hold.For)
	of := kernel.Hold{End: end, N: req.N, Back: req.Hold.Back}
	h.reserved(due, req, a)
	switch {
	case h.turns() > 0 || id != 0 && at > asked: // a turn that has come cannot be cancelled
		h.add(newTurn(id, at, of))
	case a.Held:
		h.open(id, of, at)
		h.setInner(h.lasts(h.book(h.inner(), at, due, of.N), of.N, of.End))
	default:
		h.pass(at)
		h.setInner(h.book(h.inner(), at, due, of.N))
	}
	v, st = h.afterTurns()
	v.describe(st, 0, a)
	return true
}

// settle counts the events of a hold that happened. Of one that is not open, only those that exceed
// it are not counted yet.
func (h *heldState) settle(req *Request, a *Answer) (changed bool) {
	i, turn := h.find(req.Hold.ID)
	of := req.Of
	switch {
	case i >= 0:
		of = h.holds.holdAt(h.st, i).N
	case turn >= 0:
		of = h.turn(turn).n()
	}
	a.Held = i >= 0 || turn >= 0
	more := req.N - of
	if !a.Held && more <= 0 || more > 0 && h.exceeds(more, h.chargeOthers, a) {
		h.describeAfter(a)
		return false
	}
	h.unshare()
	switch {
	case i >= 0:
		h.release(func(st []uint64, back bool) []uint64 {
			unused := 0
			if back {
				unused = max(0, -more)
			}
			return h.holds.endHold(st, h.now, h.holds.refund(st, i, unused))
		})
	case turn >= 0:
		h.settleTurn(turn, min(req.N, of))
	}
	if more > 0 {
		h.pass(h.now)
		h.setInner(h.chargeOthers(h.inner(), h.now, more))
	}
	h.spendAgain()
	h.describeAfter(a)
	return true
}

// chargeOthers charges events in all parts but those in which they are over.
func (c *Machine) chargeOthers(st []uint64, now kernel.Instant, n int) []uint64 {
	return c.each(st, func(_ int, asked bool, part kernel.Kernel, st []uint64) []uint64 {
		switch {
		case part.Releases():
			return st
		case asked:
			return part.Spend(st, now, n)
		}
		return c.two.follow(part, st, now, n)
	})
}

// extend moves the end of a hold, which is not before its turn.
func (h *heldState) extend(req *Request, a *Answer) (changed bool) {
	i, turn := h.find(req.Hold.ID)
	a.Held = i >= 0 || turn >= 0
	if a.Held {
		h.unshare()
		if end := h.ends(h.now, req.Hold.For); i >= 0 {
			h.st = h.holds.extendHold(h.st, i, end)
		} else {
			h.turnList = slices.Clone(h.turnList)
			t := h.turn(turn)
			t.setEnd(max(t.at(), end))
		}
		h.spendAgain()
	}
	h.describeAfter(a)
	return a.Held
}

// charge is the charge of a view, before the turns that are ahead.
func (h *heldState) charge(n int, a *Answer) (changed bool) {
	if n > 0 && !h.exceeds(n, h.Spend, a) {
		h.unshare()
		h.pass(h.now)
		h.setInner(h.Spend(h.inner(), h.now, n))
		h.spendAgain()
		changed = true
	}
	h.describeAfter(a)
	return changed
}

// exceeds is the exceeds of a view for n events that spend counts, which must also leave room for
// the turns that are ahead.
func (h *heldState) exceeds(
	n int,
	spend func(st []uint64, at kernel.Instant, n int) []uint64,
	a *Answer,
) bool {
	excess := h.view.exceeds(h.inner(), n, a)
	fits := func(n int) bool { return h.leavesRoom(spend(slices.Clone(h.inner()), h.now, n)) }
	if h.turns() == 0 || !excess && fits(n) {
		return excess
	}
	most := n
	if excess {
		most = int(a.Most)
	}
	a.Excess = true
	a.Most = uint64(sort.Search(most, func(i int) bool { return !fits(i + 1) }))
	return true
}
