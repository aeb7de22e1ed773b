package kernel

import "math"

// MaxSlots is the most slots of a ring. It limits the memory of a key to 8 MiB and a
// word.
const MaxSlots = 1 << 20

// ring is the arithmetic that SlidingWindow and RollingWindow share: the counts of the
// last few slots of time, which are aligned to the Unix epoch. The first word of a
// state is the frontier, the latest instant at which events were spent, possibly with
// the flag touched. The others are counts: slot i is at place i mod slots. Slots
// without an event since the frontier are not written; they read as 0.
type ring struct {
	slots  uint64 // number of slots, including the latest
	length uint64 // of a slot, in ticks
	narrow bool   // whether two counts share a word
}

// newRing returns a ring whose counts stay at or below most.
func newRing(slots, length uint64, most int) ring {
	return ring{slots: slots, length: length, narrow: uint64(most) <= math.MaxUint32}
}

func (r *ring) Width() int {
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

// frontier returns the latest instant that events were spent at.
func (r *ring) frontier(st []uint64) Instant { return st[0] &^ touched }

// latest returns the slot of that instant.
func (r *ring) latest(st []uint64) uint64 { return r.frontier(st) / r.length }

// sum returns the events in the slots from through to.
func (r *ring) sum(st []uint64, from, to uint64) (n uint64) {
	latest := r.latest(st)
	to = min(to, latest)
	if latest >= r.slots {
		from = max(from, latest-r.slots+1)
	}
	if from > to {
		return 0
	}
	place := from % r.slots
	for range to - from + 1 {
		n += r.get(st, place)
		if place++; place == r.slots {
			place = 0
		}
	}
	return n
}

// back returns the events in the slot that is back slots before slot.
func (r *ring) back(st []uint64, slot, back uint64) uint64 {
	if back > slot {
		return 0 // before 1970
	}
	return r.sum(st, slot-back, slot-back)
}

func (r *ring) Spend(st []uint64, at Instant, n int) []uint64 {
	slot := at / r.length
	for i := range min(slot-r.latest(st), r.slots) {
		r.set(st, (slot-i)%r.slots, 0)
	}
	st[0] = at // this clears the flag touched
	place := slot % r.slots
	r.set(st, place, r.get(st, place)+uint64(n))
	return st
}

// Fresh returns the first instant at which the newest slot with events is no longer
// kept, or the frontier if that is later: after a cancellation, it may be. Nothing is
// granted before the frontier.
func (r *ring) Fresh(st []uint64) Instant {
	latest := r.latest(st)
	place := latest % r.slots
	for back := range r.slots {
		if r.get(st, place) > 0 {
			return max(r.frontier(st), (latest-back+r.slots)*r.length)
		}
		if place == 0 {
			place = r.slots
		}
		place--
	}
	return r.frontier(st)
}

// adoptRing keeps the counts. If the slots differ, it puts all used events in one slot.
func (r *ring) adoptRing(old *ring, st []uint64, used uint64, now Instant) []uint64 {
	if *old == *r {
		return st
	}
	next := make([]uint64, r.Width())
	next[0] = st[0]
	cut := func(n uint64) uint64 {
		if r.narrow {
			return min(n, math.MaxUint32)
		}
		return n
	}
	if old.slots == r.slots && old.length == r.length {
		for place := range r.slots {
			r.set(next, place, cut(old.get(st, place)))
		}
		return next
	}
	at := max(r.frontier(st), now)
	next[0] = at | st[0]&touched
	r.set(next, at/r.length%r.slots, cut(used))
	return next
}

// mostCounted is the largest valid count. Sums must not overflow.
const mostCounted = 1 << 62

// Valid reports whether the counts can be added up.
func (r *ring) Valid(st []uint64) bool {
	var sum uint64
	for place := range r.slots {
		n := r.get(st, place)
		if n > mostCounted-sum {
			return false
		}
		sum += n
	}
	return r.frontier(st) <= MaxInstant
}
