package step

import (
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file keeps the reservations of a key whose turns are ahead as a part of its state. The
// root's turns.go makes the calls that reserve them for waiters, and its behindline.go denies what
// would overtake callers that wait without a turn.
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
// The same holds if the limit of the key changes meanwhile: the state before the turns is adopted
// as any other, and the turns stay ahead of what was adopted. If the key then has two limits
// (former.go), the events of a turn count in both as those of any grant do: in full for the limit
// that has reserved it.
//
// A turn whose hold goes on when it comes is a hold from then on (holds.go). So is one whose events
// a queue still delays. While no turn is ahead, nothing of this exists. The words are:
//
//	how many turns are ahead
//	four times the length of the state after them, plus 2 if the second of two limits is the
//	    one that was asked last, plus 1 if holds are open before them
//	of each turn, in order:
//	    the ID of the reservation; 0 if it cannot be settled any more
//	    the instant at which its events are spent, with bySecond if the second of two limits has
//	        reserved it
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

// bySecond is a bit that no instant has.
const bySecond = 1 << 63

// A turn is the words of a reservation whose turn is ahead, with the hold that begins then.
type turn []uint64

func newTurn(id uint64, at kernel.Instant, of kernel.Hold) turn {
	return turn{id, at, of.End, eventsWord(of)}
}

// id returns the ID of the reservation, or 0 if that cannot be settled any more.
func (t turn) id() uint64 { return t[turnID] }

// at returns the instant at which the events are spent.
func (t turn) at() kernel.Instant { return t[turnAt] % bySecond }

// by returns the index of the one of two limits that has reserved it.
func (t turn) by() int { return int(t[turnAt] / bySecond) }

func (t turn) setBy(limit int) { t[turnAt] = t.at() + uint64(limit)*bySecond }

// end returns when the hold ends by itself: when the events may happen, if it does not last.
func (t turn) end() kernel.Instant { return t[turnEnd] }

func (t turn) setEnd(end kernel.Instant) { t[turnEnd] = end }

func (t turn) n() int { return int(t[turnEvents] / 2) }

func (t turn) hold() kernel.Hold { return holdOf(t[turnEnd:]) }

func (t turn) setN(n int) { t[turnEvents] = 2 * uint64(n) }

// close lets nobody settle t any more.
func (t turn) close() { t[turnID], t[turnEnd] = 0, t.at() }

// void lets none of the events happen. Then t stays only because of the turns behind it.
func (t turn) void() { t[turnEnd] = 0 }

func (t turn) isVoid() bool { return t.end() == 0 }

// turns returns how many turns are ahead.
func (h *heldState) turns() int { return len(h.turnList) / turnWords }

// turn returns the i-th turn.
func (h *heldState) turn(i int) turn { return h.turnList[i*turnWords:][:turnWords] }

// shiftTurn takes the first turn from the list.
func (h *heldState) shiftTurn() { h.turnList = h.turnList[turnWords:] }

// asks reports whether c is the limit that decides on a state with turns.
func (h *heldState) asks(c *Machine) bool {
	limit, _ := h.askedLimit(h.after)
	return limit.equal(c)
}

// reserver returns what spends the events of a turn: of two limits, the one that has reserved them.
func (h *heldState) reserver(t turn) *Machine {
	if h.two == nil {
		return h.Machine
	}
	return h.two.byAsked[t.by()]
}

// reassign lets the turns of each limit be those of its heir from now on.
func (h *heldState) reassign(heirs [2]int) {
	h.turnList = slices.Clone(h.turnList)
	for i := range h.turns() {
		t := h.turn(i)
		t.setBy(heirs[t.by()])
	}
}

// turnReady returns the first instant, not before the turn, at which n of its events are granted in
// a state.
func (h *heldState) turnReady(st []uint64, t turn, n int) kernel.Instant {
	by := h.reserver(t)
	if n > by.Limit() { // because the limit has changed
		return kernel.Forever
	}
	return by.Ready(st, t.at(), n)
}

// spend returns st after n events of a turn, which may be fewer than were reserved. They keep their
// instant even if they would not be granted then any more, because others were charged, or because
// the limit has changed. A charge that leaves no room for them is refused. Only denials that a log
// counts, events in flight whose hold is extended, and limits that change may leave room for fewer,
// if they are near the most that a state can count.
func (h *heldState) spend(st []uint64, t turn, n int) []uint64 {
	if n == 0 {
		return st
	}
	at, by := t.at(), h.reserver(t)
	asked := kernel.Instant(0) // a denial that either of two limits has noted ends no earlier
	if by.two != nil {
		asked = askedAt(st)
	}
	if h.turnReady(st, t, n) == at {
		st = by.Spend(st, at, n)
		by.Promise(st)
	} else {
		n = int(min(uint64(n), by.Chargeable(st, at, by.Encoding)))
		if n > 0 {
			st = by.Spend(st, at, n)
		}
	}
	if by.two != nil {
		st[promised] = max(st[promised], at)
		st[formerAsked] += max(asked, askedAt(st)) - askedAt(st)
	}
	return h.lasts(st, n, t.end())
}

// spendAgain makes the state after the turns, if there are any, of that before them.
func (h *heldState) spendAgain() {
	if h.turns() == 0 {
		return
	}
	h.after = slices.Clone(h.inner())
	for i := range h.turns() {
		t := h.turn(i)
		h.after = h.spend(h.after, t, t.n())
	}
}

// leavesRoom reports whether all events of the turns can be spent after a state, which it changes.
func (h *heldState) leavesRoom(st []uint64) bool {
	for i := range h.turns() {
		t := h.turn(i)
		if t.n() > 0 && h.turnReady(st, t, t.n()) > t.at() &&
			uint64(t.n()) > h.reserver(t).Chargeable(st, t.at(), h.Encoding) {
			return false
		}
		st = h.spend(st, t, t.n())
	}
	return true
}

// advance lets the turns come, and ends the holds, that are due now. It reports whether any were.
func (h *heldState) advance() (due bool) {
	if !h.turnIsDue() && (h.holds == nil || h.st[firstEnd] > h.now) {
		return false
	}
	h.unshare()
	for h.turnIsDue() {
		first := h.turn(0)
		h.end(first.at()) // in the order of time, which makes a difference in a WarmingUp
		h.come(first)
		h.shiftTurn()
	}
	h.end(h.now)
	h.spendAgain()
	return true
}

// turnIsDue reports whether the first turn has come.
func (h *heldState) turnIsDue() bool { return h.turns() > 0 && h.turn(0).at() <= h.now }

// everyTurn is for noneTooEarly, if all turns stay.
func everyTurn(int) bool { return true }

// come spends the events of a turn in the state before all turns, and opens its hold, if that goes
// on. One that has not come is over, and is not ahead any more because the list was too long.
func (h *heldState) come(t turn) {
	asked := h.Machine
	h.askAs(h.reserver(t))
	if t.id() != 0 && t.at() <= h.now && (!endsAtTurn(t.id()) || t.end() > h.now) {
		h.open(t.id(), t.hold(), t.at())
	} else {
		h.pass(t.at())
	}
	h.setInner(h.spend(h.inner(), t, t.n()))
	h.forfeit(t.at())
	h.askAs(asked)
}

// askAs lets c decide on the state, which is of the same two limits, if it is of two.
func (h *heldState) askAs(c *Machine) {
	h.Machine = c
	if h.holds != nil {
		h.holds = c.holdList()
	}
}

// add adds a turn, which the limit that is asked has reserved. An InFlight needs each turn, and not
// only its events, because its log has events by their ends.
func (h *heldState) add(t turn) {
	_, st := h.afterTurns()
	h.after = slices.Clone(st)
	if h.turns() >= MostHolds && !h.Releases() {
		h.unshare()
		first := h.turn(0)
		h.come(first)
		if !endsAtTurn(first.id()) {
			h.ended++
		}
		h.shiftTurn()
	}
	if h.two != nil {
		t.setBy(h.two.asked)
	}
	h.turnList = append(h.turnList, t...)
	h.after = h.spend(h.after, t, t.n())
}

// settleTurn lets n events of the i-th turn happen, at most as many as it has. If none do, it
// leaves the list, and so do the void ones that the others do not need any more.
func (h *heldState) settleTurn(i, n int) {
	h.turnList = slices.Clone(h.turnList)
	t := h.turn(i)
	t.close()
	if n == 0 {
		t.void()
	} else if h.noneTooEarly(func(j int) bool { return j != i }, n, h.inner()) {
		t.setN(n)
	}
	stays := func(j int) bool { return !h.turn(j).isVoid() }
	if !h.noneTooEarly(stays, 0, h.inner()) { // else all void ones leave
		stays = func(j int) bool { return j != i || n > 0 }
		if !h.noneTooEarly(stays, 0, h.inner()) {
			stays = everyTurn
		}
	}
	left, end := h.turnList[:0], 0 // end is behind the last one that is not void
	for j := range h.turns() {
		if stays(j) {
			isVoid := h.turn(j).isVoid() // before another one takes its place
			left = append(left, h.turn(j)...)
			if !isVoid {
				end = len(left)
			}
		}
	}
	h.turnList = left[:end:end]
}

// noneTooEarly reports whether no turn would come too early if those that do not stay had only n
// events, and the state before them, without the list of holds, were another one.
func (h *heldState) noneTooEarly(stays func(i int) bool, n int, before []uint64) bool {
	if !h.anyDrifts() {
		return true
	}
	all, other := slices.Clone(h.inner()), slices.Clone(before)
	for i := range h.turns() {
		t := h.turn(i)
		has := t.n()
		if !stays(i) {
			has = n
		} else if t.n() > 0 {
			before := max(t.at(), h.turnReady(all, t, t.n()))
			if h.turnReady(other, t, t.n()) > before {
				return false
			}
		}
		all, other = h.spend(all, t, t.n()), h.spend(other, t, has)
	}
	return true
}

// anyDrifts reports whether events may come later because earlier ones did not happen.
func (c *Machine) anyDrifts() bool { return slices.ContainsFunc(c.leaves, kernel.Kernel.Drifts) }

// validTurns is ValidIn for a state with turns.
func (c *Machine) validTurns(of State) bool {
	st := of.Words
	if len(st) < aheadHeader || st[aheadTurns] == 0 ||
		st[aheadTurns] > MostHolds && !c.Releases() ||
		st[aheadTurns] > uint64(len(st)-aheadHeader)/turnWords ||
		st[aheadForm]&2 != 0 && c.two == nil ||
		st[aheadForm]>>2 > uint64(len(st)-aheadHeader)-st[aheadTurns]*turnWords {
		return false
	}
	var h heldState
	h.read(c, of)
	last := kernel.Instant(0)
	for i := range h.turns() {
		t := h.turn(i)
		events := t[turnEvents] / 2 // they may be too many for an int
		if t.at() < last || max(t.at(), t.end()) > c.LastInstant() ||
			events > min(c.MostCount(), math.MaxInt) || t.by() > 0 && c.two == nil ||
			t.id() != 0 && t.end() < t.at() {
			return false
		}
		last = t.at()
	}
	before := State{h.st, Form(st[aheadForm] & 1)}
	return h.sound(h.after) && h.ValidIn(before)
}

// Contradicts reports whether the state after the turns in st, which is valid, is not what they
// make of the state before them. No history leads to such a state, but a damaged one may be of this
// kind. ValidIn does not look for that, because the time it takes grows with the turns.
func (c *Machine) Contradicts(st State) bool {
	var h heldState
	h.read(c, st)
	told := h.Pack(slices.Clone(h.after))
	h.spendAgain()
	return h.turns() > 0 && !slices.Equal(told, h.Pack(h.after))
}
