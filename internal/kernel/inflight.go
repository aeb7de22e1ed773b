package kernel

import (
	"maps"
	"slices"
)

// inFlight is the arithmetic of an InFlight: a log of the events that are not released, which
// are taken for released when they are as old as the timeout.
//
// Events of one instant time out together, so it makes no difference which of them a release
// removes from the log.
type inFlight struct{ eventLog }

// NewInFlight returns the kernel of an InFlight with a timeout in ticks.
func NewInFlight(limit int, timeout uint64) Kernel {
	return &inFlight{eventLog{most: uint64(limit), window: timeout}}
}

func (*inFlight) Kind() string { return "inFlight" }

// SharesStates is true: releases look for the events in one log.
func (k *inFlight) SharesStates(Kernel) bool { return true }

// Adopt keeps the events that have not timed out. They are not lasting if they time out later from
// now on: another instant would find fewer of them.
func (k *inFlight) Adopt(from Kernel, st []uint64, now, _ Instant) (_ []uint64, lasting bool) {
	old := from.(*inFlight)
	st = slices.Clone(st)
	if k.window <= old.window || len(st) == 0 {
		return st, true
	}
	st = old.trim(st, now)
	return st, st[0] == 0
}

func (k *inFlight) SameTimeout(other Kernel) bool { return k.window == other.(*inFlight).window }

// Shed keeps all events: each may be released.
func (k *inFlight) Shed(st []uint64) []uint64 { return st }

func (k *inFlight) Releases() bool { return true }

func (k *inFlight) Lasts(st []uint64, n int, end Instant) []uint64 {
	return k.move(st, n, k.Frontier(st)+k.window, end)
}

func (k *inFlight) Extend(st []uint64, h Hold, end Instant) []uint64 {
	return k.move(st, h.N, h.End, end)
}

// CarryHolds looks for the events of a hold where from has logged them.
func (k *inFlight) CarryHolds(from Kernel, st []uint64, holds []Hold) []uint64 {
	if k.SameTimeout(from) {
		return st
	}
	moves := make([]move, len(holds))
	for i, h := range holds {
		moves[i] = move{from.(*inFlight).logged(h.End), k.logged(h.End), uint64(h.N)}
	}
	return k.moveAll(st, moves)
}

// move moves events that count until an instant, so that they count until another one. The log has
// them at the window before that.
func (k *inFlight) move(st []uint64, n int, from, to Instant) []uint64 {
	if n == 0 || from == to || len(st) == 0 {
		return st
	}
	frontier, before := st[2], st[0]
	st = k.remove(st, k.logged(from), n)
	if len(st) == 0 {
		st = append(st, 0, logHeader, 0)
	}
	st = k.insert(st, k.logged(to), before-st[0], logMany-1)
	st[2] = frontier
	return st
}

// A move is a number of events that a log has at one instant, and is to have at another one.
type move struct {
	from, to Instant
	n        uint64
}

// moveAll moves events at many instants at once, in the order of moves. It looks at each entry
// once, because a key may have thousands of holds when its Timeout changes.
func (k *inFlight) moveAll(st []uint64, moves []move) []uint64 {
	if len(st) == 0 {
		return st
	}
	counts := make(map[Instant]uint64)
	for next := st[1]; next < uint64(len(st)); {
		var at Instant
		var n uint64
		at, n, next = k.entry(st, next)
		counts[at] = n
	}
	for _, m := range moves {
		n := min(counts[m.from], m.n)
		counts[m.from] -= n
		counts[m.to] += n
	}
	st = append(st[:0], 0, logHeader, st[2])
	for _, at := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[at]; n > 0 {
			end := uint64(len(st))
			st = k.replace(st, end, end, at, n)
		}
	}
	return st
}

// Settle removes all events of the hold, however many happened.
func (k *inFlight) Settle(st []uint64, _ Instant, r Refund, _ Marks) []uint64 {
	return k.remove(st, k.logged(r.End), r.N)
}

// SettleAll implements BatchHolder.
func (k *inFlight) SettleAll(st []uint64, _ Instant, refunds []Refund, _ Marks) []uint64 {
	removals := make([]removal, 0, len(refunds))
	for _, r := range refunds {
		removals = append(removals, removal{k.logged(r.End), uint64(r.N)})
	}
	return k.removeAll(st, removals)
}

// logged returns the instant at which the log has events that count until another one.
func (k *inFlight) logged(end Instant) Instant { return end - min(end, k.window) }
