package kernel

import "math"

// MaxSlots is the most slots of a ring. It limits the memory of a key to 8 MiB and a
// word.
const MaxSlots = 1 << 20

// ring is the arithmetic that SlidingWindow and RollingWindow share: the counts of the last few
// slots of time, which are aligned to the Unix epoch. The first word of a state is the frontier,
// the latest instant at which events were spent. If there are more than two slots, the second word
// is the sum of all counts, so that a decision need not read them. The others are counts: slot i is
// at place i mod slots. Slots without an event since the frontier are not written; they read as 0.
type ring struct {
	Defaults
	slots  uint64 // number of slots, including the latest
	length uint64 // of a slot, in ticks
	narrow bool   // whether two counts share a word
	head   int    // the words before the counts

	perLength, perSlots divisor // length and slots
}

// newRing returns a ring whose counts stay at or below most.
func newRing(slots, length uint64, most int) ring {
	r := ring{slots: slots, length: length, narrow: uint64(most) <= math.MaxUint32, head: 1,
		perLength: newDivisor(length), perSlots: newDivisor(slots)}
	if slots > 2 {
		r.head = 2
	}
	return r
}

func (r *ring) Width() int {
	if r.narrow {
		return r.head + int(r.slots+1)/2
	}
	return r.head + int(r.slots)
}

func (r *ring) get(st []uint64, place uint64) uint64 {
	st = st[r.head:]
	if r.narrow {
		return st[place/2] >> (place % 2 * 32) & math.MaxUint32
	}
	return st[place]
}

func (r *ring) set(st []uint64, place, count uint64) {
	if r.head == 2 {
		st[1] += count - r.get(st, place)
	}
	st = st[r.head:]
	if r.narrow {
		shift := place % 2 * 32
		word := &st[place/2]
		*word = *word&^(math.MaxUint32<<shift) | count<<shift
	} else {
		st[place] = count
	}
}

func (r *ring) add(st []uint64, place, n uint64) {
	if r.head == 2 {
		st[1] += n
	}
	st = st[r.head:]
	if r.narrow {
		st[place/2] += n << (place % 2 * 32)
	} else {
		st[place] += n
	}
}

// Frontier returns the latest instant that events were spent at. The top bit of the word is a flag
// that earlier versions have stored.
func (r *ring) Frontier(st []uint64) Instant { return st[0] &^ (1 << 63) }

func (r *ring) latest(st []uint64) uint64 { return r.perLength.quotient(r.Frontier(st)) }

func (r *ring) place(slot uint64) uint64 { return slot - r.perSlots.quotient(slot)*r.slots }

// A ringPosition is where a ring is at an instant that is not before the frontier.
type ringPosition struct {
	slot  uint64
	place uint64 // of the slot
	ahead uint64 // how many slots it is after the latest with events
	sum   uint64 // the events of all slots up to it that are in the ring then
}

// at returns where the ring is at an instant. Unless time has gone by since the frontier, it
// reads two words.
func (r *ring) at(st []uint64, now Instant) ringPosition {
	latest := r.latest(st)
	t := ringPosition{slot: latest, place: r.place(latest)}
	if r.head == 2 {
		t.sum = st[1]
	} else {
		for place := range r.slots {
			t.sum += r.get(st, place)
		}
	}
	if now-latest*r.length < r.length {
		return t
	}
	t.slot = r.perLength.quotient(now)
	t.ahead = t.slot - latest
	if t.ahead >= r.slots {
		t.place, t.sum = r.place(t.slot), 0
		return t
	}
	for range t.ahead {
		t.place = r.after(t.place)
		t.sum -= r.get(st, t.place)
	}
	return t
}

func (r *ring) after(place uint64) uint64 {
	place++
	if place < r.slots {
		return place
	}
	return 0
}

func (r *ring) before(place uint64) uint64 {
	if place == 0 {
		place = r.slots
	}
	return place - 1
}

func (r *ring) used(st []uint64, t *ringPosition) uint64 {
	if t.ahead > 0 {
		return 0
	}
	return r.get(st, t.place)
}

func (r *ring) oldest(st []uint64, t *ringPosition) uint64 {
	if t.ahead >= r.slots {
		return 0
	}
	return r.get(st, r.after(t.place))
}

func (r *ring) next(st []uint64, t *ringPosition) {
	t.slot++
	t.ahead++
	t.place = r.after(t.place)
	if t.ahead <= r.slots {
		t.sum -= r.get(st, t.place)
	}
}

// back returns the events in the slot that is back slots before slot.
func (r *ring) back(st []uint64, slot, back uint64) uint64 {
	latest := r.latest(st)
	if back > slot || slot-back > latest || latest-(slot-back) >= r.slots {
		return 0
	}
	return r.get(st, r.place(slot-back))
}

func (r *ring) Spend(st []uint64, at Instant, n int) []uint64 {
	at = max(at, r.Frontier(st))
	t := r.at(st, at)
	r.spend(st, &t, at, n)
	return st
}

// spend spends at an instant whose turn is t.
func (r *ring) spend(st []uint64, t *ringPosition, at Instant, n int) {
	st[0] = at
	if t.ahead >= r.slots {
		clear(st[1:])
	} else {
		place := t.place
		for range t.ahead {
			r.set(st, place, 0)
			place = r.before(place)
		}
	}
	r.add(st, t.place, uint64(n))
}

// Fresh returns the first instant at which the newest slot with events is no longer
// kept, or the frontier if that is later: after a settlement, it may be. Nothing is
// granted before the frontier.
func (r *ring) Fresh(st []uint64) Instant {
	latest := r.latest(st)
	place := r.place(latest)
	for back := range r.slots {
		if r.get(st, place) > 0 {
			return max(r.Frontier(st), (latest-back+r.slots)*r.length)
		}
		place = r.before(place)
	}
	return r.Frontier(st)
}

// slotted returns the ring that two algorithms share.
func (r *ring) slotted() *ring { return r }

// Adopt keeps the counts. The events of a slot may have happened at its end, if that is not
// after latest, or after the frontier. If the slots are the same, it makes no difference when in
// its slot an event happened, so the frontier stays as well.
func (r *ring) Adopt(from Kernel, st []uint64, _, latest Instant) (_ []uint64, lasting bool) {
	old := from.(interface{ slotted() *ring }).slotted()
	next := make([]uint64, r.Width())
	frontier, newest := old.Frontier(st), old.latest(st)
	latestEvent := max(latest, frontier)
	if r.sameSlots(old) {
		latestEvent = frontier
	}
	lasting = true
	for back := range min(old.slots, newest+1) {
		n := old.back(st, newest, back)
		if n == 0 {
			continue
		}
		end := (newest-back+1)*old.length - 1
		at := min(end, latestEvent)
		slot := r.perLength.quotient(at)
		if next[0] == 0 {
			next[0] = max(at, frontier)
		}
		if r.latest(next)-slot >= r.slots {
			break
		}
		lasting = lasting && (end <= latestEvent || slot == r.perLength.quotient(end))
		place := r.place(slot)
		n += r.get(next, place)
		if r.narrow {
			n = min(n, math.MaxUint32)
		}
		r.set(next, place, n)
	}
	next[0] = max(next[0], frontier)
	return next, lasting
}

// sameSlots reports whether the slots of r and other begin and end at the same instants.
func (r *ring) sameSlots(other *ring) bool {
	return r.slots == other.slots && r.length == other.length
}

// Valid reports whether the counts can be added up, and the sum is theirs. Beside a slot that
// fades, which may have as many events as a debt can, as many may have been granted as a limit can.
func (r *ring) Valid(st []uint64, enc Encoding) bool {
	most := enc.mostAdded()
	if !enc.Portable {
		most = 2 * MostCounted
	}
	var sum uint64
	for place := range r.slots {
		n := r.get(st, place)
		if n > min(enc.mostAdded(), most-sum) {
			return false
		}
		sum += n
	}
	return r.Frontier(st) <= enc.LastInstant() && (r.head == 1 || st[1] == sum)
}

func (r *ring) Chargeable(st []uint64, now Instant, enc Encoding) uint64 {
	t := r.at(st, max(now, r.Frontier(st)))
	if r.narrow {
		return math.MaxUint32 - r.used(st, &t)
	}
	return enc.MostCount() - min(t.sum, enc.MostCount())
}

// Mark writes the slot that the events are counted in, plus 1.
func (r *ring) Mark(_ []uint64, at Instant, _ int, mark []uint64) {
	mark[0] = r.perLength.quotient(at) + 1
}

// Settle takes the unused events out of their slot, unless it has fewer, and leaves the frontier
// where it is.
func (r *ring) Settle(st []uint64, _ Instant, ended Refund, m Marks) []uint64 {
	mark, unused := m.Of(ended.Index)[0], uint64(ended.Unused)
	if mark == 0 || unused == 0 {
		return st
	}
	slot := mark - 1
	if count := r.back(st, slot, 0); count >= unused {
		r.set(st, r.place(slot), count-unused)
	}
	return st
}

// Carry finds the slot that Adopt has put the events in.
func (r *ring) Carry(from Kernel, was, _ []uint64, now Instant, old, mark []uint64) {
	of := from.(interface{ slotted() *ring }).slotted()
	switch {
	case r.sameSlots(of):
		copy(mark, old)
	case old[0] > 0 && of.back(was, old[0]-1, 0) > 0:
		mark[0] = r.perLength.quotient(min(old[0]*of.length-1, max(now, of.Frontier(was)))) + 1
	}
}
