package step

import (
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file has what stores call, StepFrom, and applies requests to states that another limit has
// left, or that have open holds or turns ahead.

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

// stepFrom is StepFrom. If turns are ahead that are those of another limit than c, they stay in the
// state as events that were spent, so that only those that are held can be settled.
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
	had := h.turns() > 0
	due := h.advance(h.now)
	if !req.Op.settles() && !h.asks(c) {
		h.advance(kernel.Forever)
		due = true
	}
	ahead, pin := h.turns() > 0, false
	by, next := from, st
	if !ahead { // next is the state as of now, which by left
		if due {
			by, next = h.closed()
		}
		pin = h.reconcile(c, by, next, req.Op)
	}
	if h.holds != nil && h.denials {
		h.held = h.holds.held(h.st)
	}
	changed = h.apply(req, a)
	h.retryAfter(req, a)
	if req.Op == OpPeek {
		return from, st, false
	}
	both := h.two // the two limits that the state would be stored for, if these are two
	switch {
	case a.RetryAfter == kernel.Never:
		pin = false
	case both == nil || ahead || req.Op.settles():
	case pin || h.storedAs() == by.Base().storedAs():
		noted := both.denies(h.inner(), kernel.After(h.now, uint64(a.RetryAfter)/h.Tick))
		pin = pin || noted
	}
	changed = changed || pin || ahead && due
	if changed {
		if h.holds != nil && h.two != nil {
			h.unshare()
			h.holds.forfeit(h.st, h.now)
		}
		by, next = h.closed()
	}
	a.Ended = h.ended
	changed = changed || h.ended > 0 || had && due
	if by.base != nil || by.two != nil || changed && by != c {
		// Else ResetAfter says when it is idle.
		h.tellEnds(by, next, a)
	}
	return by, next, changed
}

// tellEnds sets h to a state of by, and says when that is idle, and when a hold ends by itself.
func (h *heldState) tellEnds(by *Machine, st []uint64, a *Answer) {
	h.read(by, st)
	a.Idle = h.until(h.fresh())
	if first := h.soonest(); first < kernel.Forever {
		a.Ends = h.until(first)
	}
}

// A heldState is a state of a key taken apart, at a reading of the clock: what has happened, in which
// holds may be open, and the turns that are ahead.
type heldState struct {
	view                  // of the kernel that decides, of states without either
	holds    *holdsKernel // if there are open holds: the kernel of st; else nil
	st       []uint64
	turnList []uint64 // the turns, in order
	after    []uint64 // if there are any: the state after them, without the list of holds
	shared   bool     // whether st is not to be changed in place
	noted    bool     // whether the state notes that the request is denied
	// How many holds have ended by themselves, of those that advance or a new one ended.
	ended int
}

func (h *heldState) read(c *Machine, st []uint64) {
	h.Machine, h.holds, h.st, h.turnList, h.shared = c.Base(), c.holds, st, nil, false
	if !c.HasTurns() {
		return
	}
	form := st[aheadForm]
	from := aheadHeader + int(st[aheadTurns])*turnWords
	to := from + int(form>>2)
	h.turnList, h.after = st[aheadHeader:from:from], st[from:to:to]
	h.st, h.shared = st[to:len(st):len(st)], true
	if two := h.two; two != nil {
		h.Machine = two.byAsked[form>>1&1]
	}
	if form&1 != 0 {
		h.holds = h.WithHolds().holds
	}
}

// reconcile makes h, without turns, that of a state that from left. Settlements are applied by the
// present limit or, if the state is idle, so that a store may have forgotten it, by c.
func (h *heldState) reconcile(c, from *Machine, st []uint64, op Op) (pin bool) {
	switch {
	case !op.settles():
		from, st, pin = c.Reconcile(from, st, h.now)
	case from.Base() == c || from.Fresh(st) > h.now:
		from = from.presentLimit(st)
	default:
		from, st = c, c.NewState()
	}
	h.read(from, st)
	return pin
}

// unshare lets h change its state in place.
func (h *heldState) unshare() {
	if h.shared {
		h.st, h.shared = slices.Clone(h.st), false
	}
}

// inner returns the state before the turns, without the list of holds.
func (h *heldState) inner() []uint64 {
	if h.holds == nil {
		return h.st
	}
	return h.holds.inner(h.st)
}

// afterTurns returns the state that decides on requests, and its view: nothing is granted before the
// last turn. The kernel need not know that. A turn lies in a window that has begun before it if
// others were charged first, and a frontier is where a window begins.
func (h *heldState) afterTurns() (view, []uint64) {
	v := h.view
	if h.turns() == 0 {
		return v, h.inner()
	}
	v.lastTurn = h.entry(h.turns() - 1)[turnAt]
	return v, h.after
}

// readyAfter returns the first instant at which n events are granted, not before the last turn.
func (h *heldState) readyAfter(n int) kernel.Instant {
	v, st := h.afterTurns()
	return v.ready(st, n)
}

// describeAfter answers as OpPeek does.
func (h *heldState) describeAfter(a *Answer) {
	v, st := h.afterTurns()
	v.peek(st, a)
}

func (h *heldState) setInner(inner []uint64) {
	if h.holds == nil {
		h.st = inner
	} else {
		h.st = h.holds.replaceInner(h.st, inner)
	}
}

// closed returns the state as it is stored, with the lists that are not empty.
func (h *heldState) closed() (by *Machine, st []uint64) {
	by, st = h.storedAs(), h.st
	if h.holds != nil {
		by, st = h.holds.closed(st)
	}
	if h.turns() == 0 {
		return by, st
	}
	form := uint64(len(h.after)) << 2
	if two := h.two; two != nil {
		form |= uint64(two.asked) << 1
	}
	if by.holds != nil {
		form |= 1
	}
	return h.storedAs().WithTurns(), slices.Concat([]uint64{uint64(h.turns()), form}, h.turnList, h.after, st)
}

// pass prepares the marks for events that are about to be spent at an instant.
func (h *heldState) pass(at kernel.Instant) {
	if h.holds != nil {
		h.holds.pass(h.st, at)
	}
}

// fresh returns when all turns have come, no hold is open any more, and nothing counts.
func (h *heldState) fresh() kernel.Instant {
	at := h.Fresh(h.inner())
	if h.holds != nil {
		at = max(at, h.st[lastEnd])
	}
	if h.turns() > 0 {
		at = max(at, h.Fresh(h.after))
	}
	for i := range h.turns() {
		at = max(at, h.entry(i)[turnAt], h.entry(i)[turnEnd])
	}
	return at
}

// soonest returns an instant before which no hold ends by itself, whether it is open or will be, or
// Forever if there is none.
func (h *heldState) soonest() (first kernel.Instant) {
	first = kernel.Forever
	if h.holds != nil && h.holds.hasHolds(h.st) {
		first = h.st[firstEnd]
	}
	for i := range h.turns() {
		if turn := h.entry(i); !endsAtTurn(turn[turnID]) {
			first = min(first, turn[turnEnd])
		}
	}
	return first
}

// find returns the index of the hold with an ID, and that of its turn; at least one is −1.
func (h *heldState) find(id uint64) (i, turn int) {
	if id == 0 { // as turns have that cannot be settled any more
		return -1, -1
	}
	i = -1
	if h.holds != nil {
		i = indexOf(id, h.holds.entries(h.st), h.holds.size)
	}
	return i, indexOf(id, h.turnList, turnWords)
}

func (h *heldState) apply(req *Request, a *Answer) (changed bool) {
	*a = Answer{}
	switch {
	case req.Refused || h.turns() > 0 && req.Op.decides():
		n := req.N
		if req.Op == OpPeek {
			n = 1
		}
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
		h.add(id, at, of)
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

// open adds the entry of a hold whose events are about to be spent at an instant. If there are as
// many as there may be, it ends the oldest one.
func (h *heldState) open(id uint64, of kernel.Hold, at kernel.Instant) {
	if h.holds == nil {
		h.holds = h.WithHolds().holds
		h.st = h.holds.open(h.st)
	}
	if h.holds.count(h.st) >= MostHolds && !h.Releases() {
		h.st = h.holds.endHold(h.st, h.now, h.holds.refundAtEnd(h.st, 0, true))
		h.ended++
	}
	h.st = h.holds.insert(h.st, id, of, at)
}

// lasts lets n events that have just been spent, and are in flight, count until an instant.
func (c *Machine) lasts(st []uint64, n int, end kernel.Instant) []uint64 {
	return c.each(st, func(_ int, _ bool, part kernel.Kernel, st []uint64) []uint64 {
		return part.Lasts(st, n, end)
	})
}

// end ends the holds that are due at an instant by themselves.
func (h *heldState) end(at kernel.Instant) {
	if h.holds == nil || h.st[firstEnd] > at {
		return
	}
	ended := 0
	h.release(func(st []uint64, back bool) []uint64 {
		st, ended = h.holds.endDue(st, at, back)
		return st
	})
	h.ended += ended
}

// release replaces the state before the turns with the result of f, which ends holds. They give
// nothing back if a turn would then come too early.
func (h *heldState) release(f func(st []uint64, back bool) []uint64) {
	if h.turns() == 0 {
		h.st = f(h.st, true)
		return
	}
	next := f(slices.Clone(h.st), true)
	if !h.noneTooEarly(everyTurn, 0, h.holds.inner(next)) {
		next = f(slices.Clone(h.st), false)
	}
	h.st = next
}

func (v *view) ends(at kernel.Instant, d time.Duration) kernel.Instant {
	return min(kernel.After(at, kernel.CeilDiv(uint64(max(0, d)), v.Tick)), v.LastInstant())
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
		of = holdOf(h.entry(turn)[turnEnd:]).N
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
			h.entry(turn)[turnEnd] = max(h.entry(turn)[turnAt], end)
		}
		h.spendAgain()
	}
	h.describeAfter(a)
	return a.Held
}
