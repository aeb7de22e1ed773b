package step

import (
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file keeps the reservations of a key whose turns are ahead as a part of its state. The
// root's turns.go makes the calls that reserve them for waiters.
//
// Reserved events have not happened yet. So the state of a key has three parts: a list of the
// turns, in their order; the state before the turns, without the reserved events; and the state
// after them, with these events. Requests are decided on the state after the turns: nothing is
// granted before the last turn. Whatever else happens meanwhile (a turn that comes, a hold that is
// settled, a charge, a denial that is noted) changes the state before the turns. Then the turns are
// spent again on top of that state, each at its own instant.
//
// So to cancel a reservation is to leave its turn out, whatever was reserved or cancelled before
// and after it: the key is as if only the other events had been reserved, at their turns. There is
// one exception. A window of StartOnFirstEvent, a refill of RefillInterval, the warmth of a
// WarmingUp and the count of a Lockout begin with the event that comes first. Without that event,
// later turns might come before their time. Such a reservation stays, void, until a settlement
// finds that the other turns no longer need it. Meanwhile, a hold before the turns gives nothing
// back.
//
// A turn whose hold goes on when it comes is a hold from then on (holds.go). So is one whose events
// a queue still delays. While no turn is ahead, nothing of this exists. The words are:
//
//	how many turns are ahead
//	four times the length of the state after them, plus 2 if the second of two limits has
//	    reserved them, plus 1 if holds are open before them
//	of each turn, in order:
//	    the ID of the reservation; 0 if it cannot be settled any more
//	    the instant at which its events are spent
//	    when its hold ends by itself: when its events may happen, if it does not last; 0 if it
//	        is void
//	    twice its events, plus 1 if these are given back then
//	the state after them
//	the state before them, in which holds may be open

const (
	aheadTurns = iota
	aheadForm
	aheadHeader
)

// The words of a turn.
const (
	turnID = iota
	turnAt
	turnEnd
	turnEvents
	turnWords
)

// turnsKernel is the kernel of states with turns.
type turnsKernel struct{ listKernel }

// WithTurns returns the kernel of the states of c, which is a Base, with turns ahead.
func (c *Machine) WithTurns() *Machine { return c.listing(&c.turnsMachine, addTurns) }

// addTurns makes l the kernel of states with turns.
func addTurns(l listKernel) { l.of.Kernel = &turnsKernel{l} }

func (h *heldState) turns() int { return len(h.turnList) / turnWords }

func (h *heldState) entry(i int) []uint64 { return h.turnList[i*turnWords:][:turnWords] }

// asks reports whether c is the limit that has reserved the turns, if there are any.
func (h *heldState) asks(c *Machine) bool {
	if h.turns() == 0 {
		return true
	}
	limit, _ := h.askedLimit(h.after)
	return limit.equal(c)
}

// spend returns st after n events of a turn, which may be fewer than were reserved. They keep their
// instant even if they would not be granted then any more, because others were charged. A charge
// that leaves no room for them is refused. Only denials that a log counts, and events in flight
// whose hold is extended, may leave room for fewer, if they are near the most that a log can count.
func (h *heldState) spend(st, turn []uint64, n int) []uint64 {
	if n == 0 {
		return st
	}
	at := turn[turnAt]
	if h.Ready(st, at, n) == at {
		st = h.Spend(st, at, n)
		h.Promise(st)
	} else {
		n = int(min(uint64(n), h.Chargeable(st, at, h.Encoding)))
		if n > 0 {
			st = h.Spend(st, at, n)
		}
	}
	if h.two != nil {
		st[promised] = max(st[promised], at)
	}
	return h.lasts(st, n, turn[turnEnd])
}

// spendAgain makes the state after the turns, if there are any, of that before them.
func (h *heldState) spendAgain() {
	if h.turns() == 0 {
		return
	}
	h.after = slices.Clone(h.inner())
	for i := range h.turns() {
		turn := h.entry(i)
		h.after = h.spend(h.after, turn, holdOf(turn[turnEnd:]).N)
	}
}

// leavesRoom reports whether all events of the turns can be spent after a state, which it changes.
func (h *heldState) leavesRoom(st []uint64) bool {
	for i := range h.turns() {
		turn := h.entry(i)
		at, n := turn[turnAt], holdOf(turn[turnEnd:]).N
		if n > 0 && h.Ready(st, at, n) > at && uint64(n) > h.Chargeable(st, at, h.Encoding) {
			return false
		}
		st = h.spend(st, turn, n)
	}
	return true
}

// advance lets the turns come that do so until an instant, and ends the holds that are due now. It
// reports whether anything was due.
func (h *heldState) advance(until kernel.Instant) (due bool) {
	if (h.turns() == 0 || h.turnList[turnAt] > until) &&
		(h.holds == nil || h.st[firstEnd] > h.now) {
		return false
	}
	h.unshare()
	for ; h.turns() > 0 && h.turnList[turnAt] <= until; h.turnList = h.turnList[turnWords:] {
		// In the order of time, which makes a difference in a WarmingUp.
		h.end(min(h.turnList[turnAt], h.now))
		h.come(h.turnList[:turnWords])
	}
	h.end(h.now)
	h.spendAgain()
	return true
}

// everyTurn is for noneTooEarly, if all turns stay.
func everyTurn(int) bool { return true }

// come spends the events of a turn in the state before all turns, and opens its hold, if that goes
// on.
func (h *heldState) come(turn []uint64) {
	id, at, of := turn[turnID], turn[turnAt], holdOf(turn[turnEnd:])
	switch {
	case id != 0 && (!endsAtTurn(id) || at <= h.now && of.End > h.now):
		h.open(id, of, at)
	case at > h.now && h.Releases():
		// The log of an InFlight has events by their ends, and knows turns from its holds only.
		h.open(turnOnly, kernel.Hold{End: at}, at)
	default:
		// The turn is over, or is not ahead any more because the list was too long or the limit
		// has changed.
		h.pass(at)
	}
	h.setInner(h.spend(h.inner(), turn, of.N))
}

func (h *heldState) add(id uint64, at kernel.Instant, of kernel.Hold) {
	_, st := h.afterTurns()
	h.after = slices.Clone(st)
	if h.turns() >= MostHolds {
		h.unshare()
		ended := h.ended
		h.come(h.turnList[:turnWords])
		h.turnList = h.turnList[turnWords:]
		if h.ended > ended { // the oldest hold, which may have given its events back
			h.spendAgain()
		}
	}
	h.turnList = append(h.turnList, id, at, of.End, eventsWord(of))
	h.after = h.spend(h.after, h.entry(h.turns()-1), of.N)
}

// settleTurn lets n events of the i-th turn happen, at most as many as it has. If none do, it
// leaves the list, and so do the void ones that the others do not need any more.
func (h *heldState) settleTurn(i, n int) {
	h.turnList = slices.Clone(h.turnList)
	turn := h.entry(i)
	turn[turnID], turn[turnEnd] = 0, turn[turnAt]
	if n == 0 {
		turn[turnEnd] = 0
	} else if h.noneTooEarly(func(j int) bool { return j != i }, n, h.inner()) {
		turn[turnEvents] = 2 * uint64(n)
	}
	stays := func(j int) bool { return h.entry(j)[turnEnd] > 0 }
	if !h.noneTooEarly(stays, 0, h.inner()) { // else all void ones leave
		stays = func(j int) bool { return j != i || n > 0 }
		if !h.noneTooEarly(stays, 0, h.inner()) {
			stays = everyTurn
		}
	}
	left := h.turnList[:0]
	for j := range h.turns() {
		if stays(j) {
			left = append(left, h.entry(j)...)
		}
	}
	for len(left) > 0 && left[len(left)-turnWords+turnEnd] == 0 { // nothing is behind these
		left = left[:len(left)-turnWords]
	}
	h.turnList = left
}

// noneTooEarly reports whether no turn would come too early if those that do not stay had only n
// events, and the state before them, without the list of holds, were another one.
func (h *heldState) noneTooEarly(stays func(i int) bool, n int, before []uint64) bool {
	if !h.anyDrifts() {
		return true
	}
	all, other := slices.Clone(h.inner()), slices.Clone(before)
	for i := range h.turns() {
		turn := h.entry(i)
		at, events := turn[turnAt], holdOf(turn[turnEnd:]).N
		has := events
		if !stays(i) {
			has = n
		} else if events > 0 && h.Ready(other, at, events) > max(at, h.Ready(all, at, events)) {
			return false
		}
		all, other = h.spend(all, turn, events), h.spend(other, turn, has)
	}
	return true
}

// anyDrifts reports whether events may come later because earlier ones did not happen.
func (c *Machine) anyDrifts() bool { return slices.ContainsFunc(c.leaves, kernel.Kernel.Drifts) }

func (k *turnsKernel) Valid(st []uint64) bool {
	if len(st) < aheadHeader || st[aheadTurns] == 0 || st[aheadTurns] > MostHolds ||
		st[aheadTurns] > uint64(len(st)-aheadHeader)/turnWords ||
		st[aheadForm]&2 != 0 && k.base.two == nil ||
		st[aheadForm]>>2 > uint64(len(st)-aheadHeader)-st[aheadTurns]*turnWords {
		return false
	}
	var h heldState
	h.read(k.of, st)
	last := kernel.Instant(0)
	for i := range h.turns() {
		turn := h.entry(i)
		if turn[turnAt] < last || max(turn[turnAt], turn[turnEnd]) > k.base.LastInstant() ||
			turn[turnEvents]/2 > uint64(h.Limit()) ||
			turn[turnID] != 0 && turn[turnEnd] < turn[turnAt] {
			return false
		}
		last = turn[turnAt]
	}
	by := h.Machine
	if h.holds != nil {
		by = h.WithHolds()
	}
	return h.sound(h.after) && by.sound(h.st)
}

func (k *turnsKernel) Pack(st []uint64) []uint64 {
	var h heldState
	h.read(k.of, st)
	h.unshare()
	h.setInner(h.Pack(h.inner()))
	h.after = h.Pack(slices.Clone(h.after))
	_, st = h.closed()
	return st
}
