package ratelimit

import "math"

// maxSlots bounds the memory that one key can take: 8 MiB and a word.
const maxSlots = 1 << 20

// ring is the part of the arithmetic that [SlidingWindow] and [RollingWindow]
// share: the counts of the last few slots of time, which are aligned to the
// Unix epoch. The first word of a state is the latest instant that events were
// spent at, the rest are counts: slot i is at place i mod slots. Slots that
// have passed without an event since the latest one are not written; they read
// as 0.
type ring struct {
	plain
	slots  uint64 // how many are kept, the latest included
	length uint64 // of a slot, in nanoseconds
	narrow bool   // whether two counts share a word
}

// newRing returns a ring whose counts stay at or below most.
func newRing(slots, length uint64, most int) ring {
	return ring{slots: slots, length: length, narrow: uint64(most) <= math.MaxUint32}
}

func (r *ring) width() int {
	if r.narrow {
		return 1 + int(r.slots+1)/2
	}
	return 1 + int(r.slots)
}

func (r *ring) get(st []uint64, place uint64) uint64 {
	if r.narrow {
		return st[1+place/2] >> (place % 2 * 32) & math.MaxUint32
	}
	return st[1+place]
}

func (r *ring) set(st []uint64, place, count uint64) {
	if r.narrow {
		shift := place % 2 * 32
		word := &st[1+place/2]
		*word = *word&^(math.MaxUint32<<shift) | count<<shift
	} else {
		st[1+place] = count
	}
}

// latest returns the slot of the latest event.
func (r *ring) latest(st []uint64) uint64 { return st[0] / r.length }

// count returns the events in the slot that lies back slots before slot.
func (r *ring) count(st []uint64, slot, back uint64) uint64 {
	if back > slot {
		return 0 // before 1970
	}
	slot -= back
	if latest := r.latest(st); slot > latest || slot+r.slots <= latest {
		return 0
	}
	return r.get(st, slot%r.slots)
}

func (r *ring) spend(st []uint64, at instant, n int) []uint64 {
	slot := at / r.length
	for i := range min(slot-r.latest(st), r.slots) {
		r.set(st, (slot-i)%r.slots, 0)
	}
	st[0] = at
	place := slot % r.slots
	r.set(st, place, r.get(st, place)+uint64(n))
	return st
}

// fresh returns the end of the slot in which the newest that has events is the
// oldest kept. If those of the latest were cancelled, the others may be gone
// before its instant, which nobody may get ahead of all the same.
func (r *ring) fresh(st []uint64) instant {
	slot := r.latest(st)
	for back := range r.slots {
		if r.count(st, slot, back) > 0 {
			return max(st[0], (slot-back+r.slots)*r.length)
		}
	}
	return st[0]
}

// cancel takes the events out of their slot, whoever came after them.
func (r *ring) cancel(st []uint64, g *grant) []uint64 {
	st, ok := g.undo(st)
	if ok {
		return st
	}
	slot := g.at / r.length
	count := r.count(st, slot, 0)
	if count < uint64(g.n) {
		return st // out of sight, or another state
	}
	r.set(st, slot%r.slots, count-uint64(g.n))
	return st
}
