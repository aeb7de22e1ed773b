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
	st State,
	req *Request,
	a *Answer,
) (by *Machine, _ State, changed bool) {
	if from == c && st.IsPlain() && req.Hold.ID == 0 && req.Op != OpSettle && !req.Refused {
		st.Words, changed = c.Step(st.Words, req, a)
		return c, st, changed
	}
	return c.stepFrom(from, st, req, a)
}

// stepFrom is StepFrom for any state and any request.
func (c *Machine) stepFrom(
	from *Machine,
	st State,
	req *Request,
	a *Answer,
) (by *Machine, _ State, changed bool) {
	if req.Op.decides() {
		req.renew() // because a denial cannot be decided on twice
	}
	h := heldState{view: c.view(req)}
	h.read(from, st)
	h.shared = h.shared || req.Op == OpPeek
	hadTurns := h.turns() > 0
	due := h.advance()

	by, next := from, st // as of now, if the request changes nothing
	if due && h.turns() == 0 {
		by, next = h.closed()
	}
	mustStore, isAdopted := h.reconcile(c, by, next, req.Op)
	hasTurns := h.turns() > 0
	if h.holds != nil && h.denials {
		h.held = h.holds.held(h.st)
	}
	changed = h.apply(req, a)
	h.retryAfter(req, a)
	if req.Op == OpPeek {
		return from, st, false
	}
	mustStore = h.storesDenial(isAdopted, mustStore, req.Op, a)
	if changed && (a.Allowed || !req.Op.decides()) { // a denial counts nothing
		h.forfeit(h.now)
	}
	if changed || mustStore || hasTurns && due {
		changed = true
		by, next = h.closed()
	}
	a.Ended = h.ended
	changed = changed || h.ended > 0 || hadTurns && due
	if !next.IsPlain() || by.two != nil || changed && by != c {
		// Else ResetAfter says when it is idle.
		h.tellEnds(by, next, a)
	}
	return by, next, changed
}

// storesDenial reports whether a state that a request has not changed must be stored nevertheless:
// because its successor says so, or because the former one of two limits notes that it denies. A
// limit that was not there before, so that h was adopted, is no former one. A request that is never
// granted leaves nothing.
func (h *heldState) storesDenial(isAdopted, mustStore bool, op Op, a *Answer) bool {
	switch {
	case a.RetryAfter == kernel.Never:
		return false
	case h.two == nil || op.settles():
		return mustStore
	case !mustStore && isAdopted:
		return false
	}
	until := kernel.After(h.now, uint64(a.RetryAfter)/h.Tick)
	h.unshare()
	return h.two.denies(h.inner(), until, h.turns() > 0) || mustStore
}

// forfeit lets no open hold give back what a bucket of another limit has not counted. Events were
// counted at the given instant.
func (h *heldState) forfeit(at kernel.Instant) {
	if h.holds != nil && h.two != nil {
		h.unshare()
		h.holds.forfeit(h.st, at)
	}
}

// tellEnds sets h to a state of by, and says when that is idle, and when a hold ends by itself.
func (h *heldState) tellEnds(by *Machine, st State, a *Answer) {
	h.read(by, st)
	a.Idle = h.until(h.fresh())
	if first := h.soonest(); first < kernel.Forever {
		a.Ends = h.until(first)
	}
}

// reconcile makes h the state that c decides on: the successor of one that from left, at present.
// It reports whether that was made of the one that from left. Settlements are applied by the
// present limit or, if the state is idle, so that a store may have forgotten it, by c.
func (h *heldState) reconcile(
	c, from *Machine, st State, op Op,
) (mustStore, isAdopted bool) {
	switch {
	case h.turns() > 0:
		mustStore = !op.settles() && h.changeLimit(c)
		return mustStore, mustStore
	case !op.settles() && from == c: // it is that already
	case !op.settles():
		next := c.succeed(from, st, h.now, false)
		from, st, mustStore, isAdopted = next.by, next.st, next.mustStore, next.origin == adopted
	case from == c || from.FreshIn(st) > h.now:
		from = from.presentLimit(st)
	default:
		from, st = c, PlainState(c.NewState())
	}
	h.read(from, st)
	return mustStore, isAdopted
}

// changeLimit makes h, with turns ahead, the state that c decides on. The turns stay ahead, unless
// c is of another kind, which forgets the key. What c adopts now, before the turns, must be stored,
// because c would adopt another state once they have come.
func (h *heldState) changeLimit(c *Machine) (mustStore bool) {
	if h.asks(c) {
		return false
	}
	before := *h
	before.turnList = nil
	from, st := before.closed()
	next := c.succeed(from, st, h.now, true)
	turns, after := h.turnList, h.after
	h.read(next.by, next.st)
	h.shared = true
	if next.origin == fresh {
		return false
	}
	h.turnList, h.after = turns, after
	if next.origin == kept {
		return false
	}
	h.reassign(next.heirs)
	h.spendAgain()
	return true
}

// Reconcile returns the kernel that applies requests which ask for c, and the state that it applies
// them to, of a key with a state that from left. It does not change st, but may return it. The
// result of a request is stored with that kernel (see storedAs) if it has changed, or if mustStore
// says so.
func (c *Machine) Reconcile(
	from *Machine,
	st State,
	now kernel.Instant,
) (k *Machine, _ State, mustStore bool) {
	if st.HasTurns() {
		h := heldState{view: view{now: now}}
		h.read(from, st)
		h.advance()
		if h.turns() > 0 {
			mustStore = h.changeLimit(c)
			from, st = h.closed()
			return from, st, mustStore
		}
		from, st = h.closed()
	}
	if from == c {
		return c, st, false
	}
	next := c.succeed(from, st, now, false)
	return next.by, next.st, next.mustStore
}
