package step

import (
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file takes the state of a key apart, with its open holds and the turns ahead, and opens and
// ends holds in it.

// A heldState is a state of a key taken apart, at a reading of the clock: what has happened, in
// which holds may be open, and the turns that are ahead.
type heldState struct {
	view               // of the kernel that decides, of states without either
	holds    *holdList // if there are open holds; else nil
	st       []uint64
	turnList []uint64 // the turns, in order
	after    []uint64 // if there are any: the state after them, without the list of holds
	shared   bool     // whether st is not to be changed in place
	noted    bool     // whether the state notes that the request is denied
	// How many holds have ended by themselves, of those that advance or a new one ended.
	ended int
}

func (h *heldState) read(c *Machine, st State) {
	h.Machine, h.holds, h.st, h.turnList, h.shared = c, nil, st.Words, nil, false
	form := st.Form
	if form == InTurn {
		form = h.readTurns(st.Words)
	}
	if form == Opened {
		h.holds = h.holdList()
	}
}

// readTurns reads the words of a state with turns, and returns the form of the state before them.
func (h *heldState) readTurns(words []uint64) (before Form) {
	form := words[aheadForm]
	from := aheadHeader + int(words[aheadTurns])*turnWords
	to := from + int(form>>2)
	h.turnList, h.after = words[aheadHeader:from:from], words[from:to:to]
	h.st, h.shared = words[to:len(words):len(words)], true
	if two := h.two; two != nil {
		h.Machine = two.byAsked[form>>1&1]
	}
	return Form(form & 1)
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

// afterTurns returns the state that decides on requests, and its view: nothing is granted before
// the last turn. The kernel need not know that. A turn lies in a window that has begun before it if
// others were charged first, and a frontier is where a window begins.
func (h *heldState) afterTurns() (view, []uint64) {
	v := h.view
	if h.turns() == 0 {
		return v, h.inner()
	}
	v.lastTurn = h.turn(h.turns() - 1).at()
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
func (h *heldState) closed() (by *Machine, st State) {
	st = PlainState(h.st)
	if h.holds != nil {
		st = h.holds.closed(h.st)
	}
	if h.turns() == 0 {
		return h.storedAs(), st
	}
	form := uint64(len(h.after))<<2 | uint64(st.Form)
	if two := h.two; two != nil {
		form |= uint64(two.asked) << 1
	}
	header := []uint64{uint64(h.turns()), form}
	st = State{slices.Concat(header, h.turnList, h.after, st.Words), InTurn}
	return h.storedAs(), st
}

// pass prepares the marks for events that are about to be spent at an instant.
func (h *heldState) pass(at kernel.Instant) {
	if h.holds != nil {
		h.holds.pass(h.st, at)
	}
}

// fresh returns when all turns have come, no hold is open any more, and nothing counts, whatever
// the holds give back when they end by themselves.
func (h *heldState) fresh() kernel.Instant {
	at := h.Fresh(h.inner())
	if h.holds != nil {
		at = max(at, h.st[lastEnd], h.freshAfterRefund(h.inner()))
	}
	if h.turns() > 0 {
		at = max(at, h.Fresh(h.after), h.freshAfterRefund(h.after))
	}
	for i := range h.turns() {
		t := h.turn(i)
		at = max(at, t.at(), t.end())
	}
	return at
}

// freshAfterRefund returns when nothing counts in the parts in which more may count once a hold has
// given its events back.
func (h *heldState) freshAfterRefund(st []uint64) (at kernel.Instant) {
	if !h.resumes {
		return 0
	}
	h.each(st, func(_ int, _ bool, part kernel.Kernel, st []uint64) []uint64 {
		if part, ok := part.(kernel.Resumer); ok {
			at = max(at, part.FreshAfterRefund(st))
		}
		return st
	})
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
		if t := h.turn(i); !endsAtTurn(t.id()) {
			first = min(first, t.end())
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

// open adds the entry of a hold whose events are about to be spent at an instant. If there are as
// many as there may be, it ends the oldest one.
func (h *heldState) open(id uint64, of kernel.Hold, at kernel.Instant) {
	if h.holds == nil {
		h.holds = h.holdList()
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

// OpenHolds returns how many holds are open in a state of c, or will be at their turns.
func (c *Machine) OpenHolds(st State) (open int) {
	var h heldState
	h.read(c, st)
	for i := range h.turns() {
		if !endsAtTurn(h.turn(i).id()) {
			open++
		}
	}
	if h.holds != nil {
		for i := range h.holds.count(h.st) {
			if !endsAtTurn(h.holds.entry(h.st, i)[holdID]) {
				open++
			}
		}
	}
	return open
}

// ReadyIn is Ready for any state of c.
func (c *Machine) ReadyIn(st State, now kernel.Instant, n int) kernel.Instant {
	var h heldState
	h.read(c, st)
	v, after := h.afterTurns()
	return v.Ready(after, max(now, v.lastTurn), n)
}

// RemainingIn is Remaining for any state of c.
func (c *Machine) RemainingIn(st State, now kernel.Instant) int {
	var h heldState
	h.read(c, st)
	h.now = now
	v, after := h.afterTurns()
	return v.remaining(after)
}

// FreshIn is Fresh for any state of c.
func (c *Machine) FreshIn(st State) kernel.Instant {
	if st.IsPlain() {
		return c.Fresh(st.Words)
	}
	var h heldState
	h.read(c, st)
	return h.fresh()
}

// ValidIn is Valid for any state of c, of any length.
func (c *Machine) ValidIn(st State) bool {
	switch st.Form {
	case Opened:
		return c.holdList().valid(st.Words)
	case InTurn:
		return c.validTurns(st)
	}
	return c.sound(st.Words)
}

// PackIn is Pack for any state of c.
func (c *Machine) PackIn(st State) State {
	if st.IsPlain() {
		return PlainState(c.Pack(st.Words))
	}
	var h heldState
	h.read(c, st)
	h.unshare()
	h.setInner(h.Pack(h.inner()))
	if st.HasTurns() {
		h.after = h.Pack(slices.Clone(h.after))
	}
	_, st = h.closed()
	return st
}
