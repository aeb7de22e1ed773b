package memory

import (
	"github.com/ratelimit-go/ratelimit/internal/kernel"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// An arena holds the states of a shard that are not words. The word of a key refers to an entry by
// its index (see table.go). An arena is accessed only under the lock of its shard.
//
// The states are blocks of one slice of words, so the garbage collector has nothing to
// scan. Blocks are taken from the end. A state that needs a larger block leaves its old
// one unused, and so does a key that is forgotten. When there are too few words for
// another block, all are copied to a larger slice or, if more than an eighth of them are
// unused, only the blocks in use:
//
//	words   │ a a a a · │ b b b b · · │ C C C C · │ a a a a a a · · │        │
//	          unused       in use       forgotten   in use            not taken
//
// A state of more than mostBlock words is a slice of its own, because copying it would
// take long.
//
// The states were left by few different kernels, so an entry has a number in place of a pointer.
type arena struct {
	entries []entry
	free    []uint32 // indexes of the unused entries
	words   []uint64
	used    uint64     // words of the blocks in use
	large   [][]uint64 // states that are not blocks
	vacant  []uint32   // indexes of the unused elements of large
	outside uint64     // words of the states in large
	kernels []usedKernel
	load    float64 // the part of new words that is taken
}

// mostBlock is the most words of a block.
const mostBlock = 512

// An entry is where a state and the kernel that left it are.
type entry struct {
	by uint32 // index in kernels
	block
}

func (e *entry) unused() bool { return e.cap == 0 }

// A block is a place for a state in the words of an arena.
type block struct {
	at uint32
	// Words of the state, and of the block; if cap is isLarge, at is an index in large.
	len, cap uint16
}

const isLarge = 1<<16 - 1

// A usedKernel is a kernel, and how many states of it there are. It is zero if there are none.
type usedKernel struct {
	*step.Machine
	keys int
}

// newArena returns an arena for a table of sh, with room for that many states and words in use, and
// for more states as the table fills up. Their words may be fewer, and some may be unused: they
// grow when they have to.
func (sh *shard) newArena(states, words float64) *arena {
	load := loadOf(sh.first)
	a := &arena{load: wordLoad * load}
	if states > 0 {
		a.entries = make([]entry, 0, int(states/load*maxLoad)+1)
		a.words = make([]uint64, 0, int(words/a.load)+1)
	}
	return a
}

// wordLoad is the part of the words of a new arena that is taken, divided by the load of the table.
const wordLoad = 1.7

func (a *arena) at(word uint64) *entry { return &a.entries[word-kernel.NoWord] }

// add adds a state that k left, and returns the word that refers to it.
func (a *arena) add(k *step.Machine, st []uint64) (word uint64) {
	e := entry{by: a.enlist(k), block: a.put(st)}
	if last := len(a.free) - 1; last >= 0 {
		i := a.free[last]
		a.free, a.entries[i] = a.free[:last], e
		return kernel.NoWord + uint64(i)
	}
	a.entries = append(a.entries, e)
	return kernel.NoWord + uint64(len(a.entries)-1)
}

func (a *arena) remove(word uint64) {
	e := a.at(word)
	a.delist(e.by)
	a.release(e.block)
	*e = entry{}
	a.free = append(a.free, uint32(word-kernel.NoWord))
}

func (a *arena) keys() int { return len(a.entries) - len(a.free) }

func (a *arena) kernel(e *entry) *step.Machine { return a.kernels[e.by].Machine }

func (a *arena) state(e *entry) []uint64 {
	if e.cap == isLarge {
		return a.large[e.at]
	}
	return a.words[e.at:][:e.len:e.cap]
}

// set stores the state of e, which k left. It may have been changed in place, have moved, or be the
// words that next has returned.
func (a *arena) set(e *entry, k *step.Machine, st []uint64) {
	if a.kernel(e) != k {
		a.delist(e.by)
		e.by = a.enlist(k)
	}
	switch {
	case e.cap == isLarge:
		a.outside += uint64(cap(st)) - uint64(cap(a.large[e.at]))
		a.large[e.at] = st
	case cap(st) == int(e.cap) && a.begins(st, int(e.at)):
		e.len = uint16(len(st))
	case len(st) <= int(e.cap):
		e.len = uint16(copy(a.words[e.at:][:e.cap], st))
	default:
		a.move(e, st)
	}
}

func (a *arena) move(e *entry, st []uint64) {
	to := a.put(st) // which may move the block that is released
	a.release(e.block)
	e.block = to
}

func (a *arena) enlist(k *step.Machine) uint32 {
	at := len(a.kernels)
	for i := range a.kernels {
		switch a.kernels[i].Machine {
		case k:
			a.kernels[i].keys++
			return uint32(i)
		case nil:
			at = i
		}
	}
	if at == len(a.kernels) {
		a.kernels = append(a.kernels, usedKernel{})
	}
	a.kernels[at] = usedKernel{k, 1}
	return uint32(at)
}

func (a *arena) delist(by uint32) {
	if u := &a.kernels[by]; u.keys > 1 {
		u.keys--
	} else {
		*u = usedKernel{}
	}
}

func (a *arena) begins(st []uint64, at int) bool {
	return cap(st) > 0 && at < cap(a.words) && &st[:1][0] == &a.words[:at+1][at]
}

// next returns zero words that are not taken yet, for which it may move all blocks. The caller
// gives them to add or set before it calls next again, or does not use them.
func (a *arena) next(length, capacity int) []uint64 {
	at := len(a.words)
	if cap(a.words)-at < capacity && a.used < uint64(at-at/8) {
		a.pack(capacity)
		at = len(a.words)
	}
	if need := at + capacity; cap(a.words) < need {
		a.words = append(make([]uint64, 0, need+need/4), a.words...)
	}
	st := a.words[at : at+length : at+capacity]
	clear(st[:capacity])
	return st
}

// blank returns the state of a key never seen, with room for a hold if opens is true.
func (a *arena) blank(k *step.Machine, opens bool) []uint64 {
	length, capacity := k.NewSize()
	if opens {
		capacity += k.HoldWords()
	}
	if capacity > mostBlock {
		return make([]uint64, length, capacity)
	}
	return a.next(length, capacity)
}

// copied returns a copy of a state of a slot, as blank does.
func (a *arena) copied(k *step.Machine, st []uint64, opens bool) []uint64 {
	return append(a.blank(k, opens)[:0], st...)
}

// put returns where st is kept from now on. It is copied to a block, unless it is too large for
// one, or next has returned it.
func (a *arena) put(st []uint64) block {
	if !a.begins(st, len(a.words)) && cap(st) <= mostBlock {
		st = append(a.next(0, cap(st)), st...)
	}
	if at := len(a.words); a.begins(st, at) {
		a.words = a.words[:at+cap(st)]
		a.used += uint64(cap(st))
		return block{uint32(at), uint16(len(st)), uint16(cap(st))}
	}
	a.outside += uint64(cap(st))
	at := len(a.large)
	if last := len(a.vacant) - 1; last >= 0 {
		at, a.vacant = int(a.vacant[last]), a.vacant[:last]
		a.large[at] = st
	} else {
		a.large = append(a.large, st)
	}
	return block{at: uint32(at), cap: isLarge}
}

func (a *arena) release(b block) {
	if b.cap != isLarge {
		a.used -= uint64(b.cap)
		return
	}
	a.outside -= uint64(cap(a.large[b.at]))
	a.large[b.at] = nil
	a.vacant = append(a.vacant, b.at)
}

// makeRoom makes room for what n events add to the state of e and, if opens is true, what a hold of
// them does.
func (a *arena) makeRoom(e *entry, n int, opens bool) {
	k, grow := a.kernel(e), 0
	if k.HasTurns() {
		return // the next state is another slice
	}
	if k.Base().Width() == 0 {
		grow = min(n, 2)
	}
	if opens {
		grow += k.HoldWords()
	}
	if st := a.state(e); cap(st)-len(st) >= grow {
		return
	}
	st := k.Pack(a.state(e)) // leaves it where it is
	a.set(e, k, st)
	if cap(st)-len(st) >= grow+len(st)/8 { // else packing would take most of the time
		return
	}
	grow += 1 + len(st) + len(st)/8
	var larger []uint64
	if grow > mostBlock {
		larger = make([]uint64, 0, grow)
	} else {
		larger = a.next(0, grow)
	}
	a.move(e, append(larger, st...))
}

// fitting returns the state of e with the capacity that it gets when it is copied.
func (a *arena) fitting(e *entry) []uint64 {
	st, k, spare := a.state(e), a.kernel(e), 2
	if k.MayHaveHolds() {
		spare += k.HoldWords()
	}
	if fits := min(cap(st), len(st)+len(st)/8+spare); fits <= mostBlock {
		return st[:len(st):fits]
	}
	return st // it is not copied, and all of it counts
}

// pack copies all blocks to another slice, with room for that many more words, and for so many that
// it is not soon called again.
func (a *arena) pack(more int) {
	old := *a
	more += len(a.entries)
	a.words = make([]uint64, 0, int(float64(int(old.used)+more)/a.load)+more)
	a.used, a.outside, a.large, a.vacant = 0, 0, nil, nil
	for i := range a.entries {
		if e := &a.entries[i]; !e.unused() {
			e.block = a.put(old.fitting(e))
		}
	}
}

// shrink gives words back if a sweep has left few of them in use.
func (a *arena) shrink() {
	if few := cap(a.words) / 4; int(a.used) < few {
		a.pack(few - int(a.used))
	}
}

func (a *arena) bytes() uint64 {
	if a == nil {
		return 0
	}
	words := uint64(cap(a.words)) + a.outside
	return sizeOf[arena]() + 8*words + uint64(
		cap(a.entries),
	)*sizeOf[entry]() + uint64(
		cap(a.kernels),
	)*sizeOf[usedKernel]() +
		uint64(
			cap(a.large),
		)*sizeOf[[]uint64]() + uint64(
		cap(a.vacant)+cap(a.free),
	)*4
}
