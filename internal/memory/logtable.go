package memory

import (
	"math/bits"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A logTable holds the keys of a log shard until it is replaced.
//
// Its slots are an open-addressing table. An entry lies at the slot selected by its
// identity, in proportion to its range, or in a later one, with no free slot between.
// There is always a free slot, so that every search ends; a table without keys has no
// slots at all.
//
// The states are blocks of one slice of words, so the garbage collector has nothing to
// scan. Blocks are taken from the end. A state that needs a larger block leaves its old
// one unused, and so does a key that is forgotten. When there are too few words for
// another block, they are copied to a larger slice or, if more than an eighth of them are
// unused, the table is replaced, and only the blocks in use are copied:
//
//	words   │ a a a a · │ b b b b · · │ C C C C · │ a a a a a a · · │        │
//	          unused       in use       forgotten   in use            not taken
//
// A state of more than mostBlock words is a slice of its own, because copying it would
// take long. So is a state that an algorithm has moved, until the table is replaced.
//
// The states of a table were left by few different kernels, so an entry has a number in
// place of a pointer.
type logTable struct {
	slots   []logEntry
	keys    uint64 // keys held
	words   []uint64
	used    uint64     // words of the blocks in use
	apart   [][]uint64 // states that are not blocks
	vacant  []uint32   // indexes of the unused elements of apart
	outside uint64     // words of the states in apart
	kernels []usedKernel
}

// mostBlock is the most words of a block.
const mostBlock = 512

// A logEntry is a key, and where its state and the kernel that left the state are.
type logEntry struct {
	hi uint64 // the two parts of the identity; 0 if the slot is free
	lo uint32
	by uint32 // index in kernels
	block
}

// A block is a place for a state in a table's words.
type block struct {
	at       uint32
	len, cap uint16 // words of the state, and of the block; if cap is isApart, at is an index in apart
}

const isApart = 1<<16 - 1

// A usedKernel is a kernel, and how many keys of a table have a state of it. It is zero
// if there are none.
type usedKernel struct {
	*kernel.Compiled
	keys int
}

// newLogTable returns a table with the given numbers of slots and of words.
func newLogTable(slots int, words uint64) logTable {
	return logTable{slots: make([]logEntry, slots), words: make([]uint64, 0, words)}
}

func (e *logEntry) free() bool { return e.hi == 0 }

func (e *logEntry) id() identity { return identity{e.hi, e.lo} }

// mostOf returns how many of the given number of slots may be taken.
func mostOf(slots int) uint64 { return uint64(float64(slots) * maxLoad) }

// full reports whether no other slot may be taken.
func (t *logTable) full() bool { return t.keys >= mostOf(len(t.slots)) }

// home returns the slot selected by the first part of an identity.
func (t *logTable) home(hi uint64) int {
	i, _ := bits.Mul64(hi, uint64(len(t.slots)))
	return int(i)
}

func (t *logTable) after(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

// find returns the slot of id or, if id is not in the table, the slot for inserting it.
func (t *logTable) find(id identity) (i int, ok bool) {
	if len(t.slots) == 0 {
		return 0, false
	}
	for i = t.home(id.hi); ; i = t.after(i) {
		switch e := &t.slots[i]; {
		case e.hi == id.hi && e.lo == id.lo:
			return i, true
		case e.free():
			return i, false
		}
	}
}

// insert takes slot i for a key with a state of k. The caller sets the state.
func (t *logTable) insert(i int, id identity, k *kernel.Compiled) {
	t.slots[i] = logEntry{hi: id.hi, lo: id.lo, by: t.enlist(k)}
	t.keys++
}

// remove forgets the key in slot i, and moves later entries that could no longer be
// found.
func (t *logTable) remove(i int) {
	e := &t.slots[i]
	t.keys--
	t.delist(e.by)
	t.release(e.block)
	for j := t.after(i); !t.slots[j].free(); j = t.after(j) {
		home := t.home(t.slots[j].hi)
		between := i < home && home <= j // so that it is found without going past i
		if i > j {
			between = i < home || home <= j
		}
		if !between {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = logEntry{}
}

// kernel returns the kernel that left the state of e.
func (t *logTable) kernel(e *logEntry) *kernel.Compiled { return t.kernels[e.by].Compiled }

// setKernel changes the kernel of e.
func (t *logTable) setKernel(e *logEntry, k *kernel.Compiled) {
	if t.kernel(e) != k {
		t.delist(e.by)
		e.by = t.enlist(k)
	}
}

// enlist counts another state of k, and returns the index of k.
func (t *logTable) enlist(k *kernel.Compiled) uint32 {
	at := len(t.kernels)
	for i := range t.kernels {
		switch t.kernels[i].Compiled {
		case k:
			t.kernels[i].keys++
			return uint32(i)
		case nil:
			at = i
		}
	}
	if at == len(t.kernels) {
		t.kernels = append(t.kernels, usedKernel{})
	}
	t.kernels[at] = usedKernel{k, 1}
	return uint32(at)
}

// delist counts one state less.
func (t *logTable) delist(by uint32) {
	if u := &t.kernels[by]; u.keys > 1 {
		u.keys--
	} else {
		*u = usedKernel{}
	}
}

// state returns the state of e.
func (t *logTable) state(e *logEntry) []uint64 {
	if e.cap == isApart {
		return t.apart[e.at]
	}
	return t.words[e.at:][:e.len:e.cap]
}

func (t *logTable) fresh(e *logEntry) kernel.Instant { return t.kernel(e).Fresh(t.state(e)) }

// set stores the state of e, which may have been changed in place, have moved, or be
// the words that next has returned.
func (t *logTable) set(e *logEntry, st []uint64) {
	switch {
	case e.cap == isApart:
		t.outside += uint64(cap(st)) - uint64(cap(t.apart[e.at]))
		t.apart[e.at] = st
	case cap(st) == int(e.cap) && t.begins(st, int(e.at)):
		e.len = uint16(len(st))
	default:
		t.release(e.block)
		e.block = t.put(st)
	}
}

// begins reports whether st begins at a word of the table.
func (t *logTable) begins(st []uint64, at int) bool {
	return cap(st) > 0 && at < cap(t.words) && &st[:1][0] == &t.words[:at+1][at]
}

// next returns zero words that are not taken yet. The caller calls set before it calls
// next again, or does not use them. It returns false if the table should be replaced.
func (t *logTable) next(length, capacity int) (st []uint64, ok bool) {
	at := len(t.words)
	if cap(t.words)-at < capacity {
		if t.used < uint64(at-at/8) {
			return nil, false
		}
		need := at + capacity
		t.words = append(make([]uint64, 0, need+need/4), t.words...)
	}
	st = t.words[at : at+length : at+capacity]
	clear(st[:capacity])
	return st, true
}

// blank returns the state of a key never seen, with room for a hold if opens is true. If the table should be
// replaced first, it returns how many words are needed.
func (t *logTable) blank(k *kernel.Compiled, opens bool) (st []uint64, lacks int) {
	length, capacity := k.NewSize()
	if opens {
		capacity += k.HoldWords()
	}
	if capacity > mostBlock {
		return make([]uint64, length, capacity), 0
	}
	st, ok := t.next(length, capacity)
	if !ok {
		return nil, capacity
	}
	return st, 0
}

// put returns where st is kept from now on.
func (t *logTable) put(st []uint64) block {
	if at := len(t.words); t.begins(st, at) { // from next
		t.words = t.words[:at+cap(st)]
		t.used += uint64(cap(st))
		return block{uint32(at), uint16(len(st)), uint16(cap(st))}
	}
	t.outside += uint64(cap(st))
	at := len(t.apart)
	if last := len(t.vacant) - 1; last >= 0 {
		at, t.vacant = int(t.vacant[last]), t.vacant[:last]
		t.apart[at] = st
	} else {
		t.apart = append(t.apart, st)
	}
	return block{at: uint32(at), cap: isApart}
}

// release counts a block that is no longer used.
func (t *logTable) release(b block) {
	if b.cap != isApart {
		t.used -= uint64(b.cap)
		return
	}
	t.outside -= uint64(cap(t.apart[b.at]))
	t.apart[b.at] = nil
	t.vacant = append(t.vacant, b.at)
}

// makeRoom makes room for what n events add to the state of e and, if opens is true, what a hold of
// them does. If the table should be replaced first, it returns how many words are needed.
func (t *logTable) makeRoom(e *logEntry, n int, opens bool) (lacks int) {
	k, grow := t.kernel(e), 0
	if k.HasTurns() {
		return 0 // the next state is another slice
	}
	if k.Base().Width() == 0 {
		grow = min(n, 2)
	}
	if opens {
		grow += k.HoldWords()
	}
	if st := t.state(e); cap(st)-len(st) >= grow {
		return 0
	}
	st := k.Pack(t.state(e)) // leaves it where it is
	t.set(e, st)
	if cap(st)-len(st) >= grow+len(st)/8 { // else packing would take most of the time
		return 0
	}
	grow += 1 + len(st) + len(st)/8
	var larger []uint64
	if e.cap == isApart || grow > mostBlock {
		larger = make([]uint64, len(st), grow)
	} else if larger, _ = t.next(len(st), grow); larger == nil {
		return grow
	}
	copy(larger, st)
	t.set(e, larger)
	return 0
}

// fitting returns the capacity that the state of e gets in a new table.
func (t *logTable) fitting(e *logEntry) int {
	st, k, spare := t.state(e), t.kernel(e), 2
	if k.HasOpened() {
		spare += k.HoldWords() // so that makeRoom for several keys at once finds room for each
	}
	return min(cap(st), len(st)+len(st)/8+spare)
}

// copyFrom copies an entry of another table, for which there are enough slots and words.
func (t *logTable) copyFrom(old *logTable, from *logEntry) {
	st := old.state(from)
	if size := old.fitting(from); size <= mostBlock {
		small, _ := t.next(len(st), size)
		copy(small, st)
		st = small
	}
	i, _ := t.find(from.id())
	t.insert(i, from.id(), old.kernel(from))
	t.set(&t.slots[i], st)
}

// bytes returns the memory of the table.
func (t *logTable) bytes() uint64 {
	words := uint64(cap(t.words)) + t.outside
	return 8*words + uint64(len(t.slots))*sizeOf[logEntry]() + uint64(cap(t.kernels))*sizeOf[usedKernel]() +
		uint64(cap(t.apart))*sizeOf[[]uint64]() + uint64(cap(t.vacant))*4
}
