package step

import (
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file has what stores call, StepFrom. A state may be one that another limit has left, or have
// open holds or turns ahead. So it is taken apart, and brought up to the present instant, before
// the request is applied to it.

// StepFrom is Step for a state that from left, whose parameters may differ from those
// of c. It also returns the kernel of the resulting state. What is about a hold is applied
// by from, not c. Only StepFrom opens holds, and denies what another key refuses.
func (c *Machine) StepFrom(
	from *Machine,
	st []uint64,
	req *Request,
	a *Answer,
) (by *Machine, _ []uint64, changed bool) {
	if from == c && from.base == nil && req.Hold.ID == 0 && req.Op != OpSettle && !req.Refused {
		st, changed = c.Step(st, req, a)
		return c, st, changed
	}
	return c.stepFrom(from, st, req, a)
}

// stepFrom is StepFrom for any state and any request.
func (c *Machine) stepFrom(
	from *Machine,
	st []uint64,
	req *Request,
	a *Answer,
) (by *Machine, _ []uint64, changed bool) {
	if req.Op.decides() {
		req.renew() // because a denial cannot be decided on twice
	}
	h := heldState{view: c.view(req)}
	h.read(from, st)
	h.shared = h.shared || req.Op == OpPeek
	hadTurns := h.turns() > 0
	due := h.passTime(c, req.Op)
	hasTurns := h.turns() > 0

	by, next := from, st // as of now, if the request changes nothing
	mustStore := false
	if !hasTurns {
		if due {
			by, next = h.closed()
		}
		mustStore = h.reconcile(c, by, next, req.Op)
	}
	if h.holds != nil && h.denials {
		h.held = h.holds.held(h.st)
	}
	changed = h.apply(req, a)
	h.retryAfter(req, a)
	if req.Op == OpPeek {
		return from, st, false
	}
	if !hasTurns {
		mustStore = h.storesDenial(by, mustStore, req.Op, a)
	}
	if changed || mustStore || hasTurns && due {
		changed = true
		h.forfeit()
		by, next = h.closed()
	}
	a.Ended = h.ended
	changed = changed || h.ended > 0 || hadTurns && due
	if by.base != nil || by.two != nil || changed && by != c {
		// Else ResetAfter says when it is idle.
		h.tellEnds(by, next, a)
	}
	return by, next, changed
}

// passTime lets the turns come, and the holds end, that are due now, and reports whether any are.
// If turns are ahead that are those of another limit than c, they become events that were spent, so
// that only those that are held can be settled.
func (h *heldState) passTime(c *Machine, op Op) (due bool) {
	due = h.advance(h.now)
	if op.settles() || h.asks(c) {
		return due
	}
	h.advance(kernel.Forever)
	return true
}

// storesDenial reports whether a state that a request has not changed must be stored nevertheless:
// because its successor says so, or because the former one of two limits notes that it denies. A
// request that is never granted leaves nothing. by is the machine of the state before the request.
func (h *heldState) storesDenial(by *Machine, mustStore bool, op Op, a *Answer) bool {
	switch {
	case a.RetryAfter == kernel.Never:
		return false
	case h.two == nil || op.settles():
		return mustStore
	case !mustStore && h.storedAs() != by.Base().storedAs():
		return false
	}
	until := kernel.After(h.now, uint64(a.RetryAfter)/h.Tick)
	return h.two.denies(h.inner(), until) || mustStore
}

// forfeit lets no open hold give back what a bucket of another limit has not counted.
func (h *heldState) forfeit() {
	if h.holds != nil && h.two != nil {
		h.unshare()
		h.holds.forfeit(h.st, h.now)
	}
}

// tellEnds sets h to a state of by, and says when that is idle, and when a hold ends by itself.
func (h *heldState) tellEnds(by *Machine, st []uint64, a *Answer) {
	h.read(by, st)
	a.Idle = h.until(h.fresh())
	if first := h.soonest(); first < kernel.Forever {
		a.Ends = h.until(first)
	}
}

// reconcile makes h, without turns, that of a state that from left. Settlements are applied by the
// present limit or, if the state is idle, so that a store may have forgotten it, by c.
func (h *heldState) reconcile(c, from *Machine, st []uint64, op Op) (mustStore bool) {
	switch {
	case !op.settles():
		from, st, mustStore = c.Reconcile(from, st, h.now)
	case from.Base() == c || from.Fresh(st) > h.now:
		from = from.presentLimit(st)
	default:
		from, st = c, c.NewState()
	}
	h.read(from, st)
	return mustStore
}

// Reconcile returns the kernel that applies requests which ask for c, and the state that it applies
// them to, of a key with a state that from left. It does not change st, but may return it. The
// result of a request is stored with that kernel (see storedAs) if it has changed, or if mustStore
// says so.
func (c *Machine) Reconcile(
	from *Machine,
	st []uint64,
	now kernel.Instant,
) (k *Machine, _ []uint64, mustStore bool) {
	if from.HasTurns() { // it stays what it is while turns of c are ahead
		h := heldState{view: view{now: now}}
		h.read(from, st)
		h.advance(now)
		if h.turns() > 0 && h.asks(c) {
			return from, st, false
		}
		h.advance(kernel.Forever)
		from, st = h.closed()
	}
	next := successor{}
	if from.holds != nil {
		next = from.holds.successorOf(c, st, now)
	} else {
		next = c.successorOf(from, st, now)
	}
	return next.by, next.st, next.mustStore
}
