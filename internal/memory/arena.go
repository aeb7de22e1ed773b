package memory

import (
	"reflect"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// An arena holds the states of a shard that are not words. The word of a key refers to a record by
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
// The states were left by few different kernels, so a record has a number in place of a pointer and
// a form.
type arena struct {
	records []record
	free    []uint32 // indexes of the unused records
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

// A record says where a state is, which kernel left it, and in which form.
type record struct {
	kernel uint32 // index in kernels
	block
}

func (r *record) unused() bool { return r.cap == 0 }

// A block is a place for a state in the words of an arena.
type block struct {
	at uint32
	// Words of the state, and of the block; if cap is isLarge, at is an index in large.
	len, cap uint16
}

const isLarge = 1<<16 - 1

// A usedKernel is a kernel, and how many states of it there are in a form. It is zero if there are
// none.
type usedKernel struct {
	*step.Machine
	form step.Form
	keys int
}

// newArena returns an arena for a table with a load. It has room for that many states and words in
// use, and for more states as the table fills up. Their words may be fewer, and some may be unused:
// they grow when they have to.
func newArena(load, states, words float64) *arena {
	a := &arena{load: wordLoad * load}
	if states > 0 {
		a.records = make([]record, 0, int(states/load*maxLoad)+1)
		a.words = make([]uint64, 0, int(words/a.load)+1)
	}
	return a
}

// wordLoad is the part of the words of a new arena that is taken, divided by the load of the table.
const wordLoad = 1.7

// record returns the record to which a word refers.
func (a *arena) record(word uint64) *record { return &a.records[word-kernel.NoWord] }

// keys returns the number of states.
func (a *arena) keys() int { return len(a.records) - len(a.free) }

// kernel returns the kernel that left the state of r.
func (a *arena) kernel(r *record) *step.Machine { return a.kernels[r.kernel].Machine }

// state returns the state of r. The capacity of its words is that of its block.
func (a *arena) state(r *record) step.State {
	form := a.kernels[r.kernel].form
	if r.cap == isLarge {
		return step.State{Words: a.large[r.at], Form: form}
	}
	return step.State{Words: a.words[r.at:][:r.len:r.cap], Form: form}
}

// isPlain reports whether the state of r is a plain one that k left.
func (a *arena) isPlain(r *record, k *step.Machine) bool {
	used := &a.kernels[r.kernel]
	return used.Machine == k && used.form == step.Plain
}

// add adds a state that k left, and returns the word that refers to it.
func (a *arena) add(k *step.Machine, st step.State) (word uint64) {
	r := record{kernel: a.countKernel(k, st.Form), block: a.allocate(st.Words)}
	if last := len(a.free) - 1; last >= 0 {
		i := a.free[last]
		a.free, a.records[i] = a.free[:last], r
		return kernel.NoWord + uint64(i)
	}
	a.records = append(a.records, r)
	return kernel.NoWord + uint64(len(a.records)-1)
}

// remove removes the state to which a word refers. Its words stay as they are until another state
// is added or grows.
func (a *arena) remove(word uint64) {
	r := a.record(word)
	a.uncountKernel(r.kernel)
	a.release(r.block)
	*r = record{}
	a.free = append(a.free, uint32(word-kernel.NoWord))
}

// set replaces the state of r by st, which k left. st may be the state of r, changed in place.
func (a *arena) set(r *record, k *step.Machine, of step.State) {
	st := of.Words
	if used := &a.kernels[r.kernel]; used.Machine != k || used.form != of.Form {
		a.uncountKernel(r.kernel)
		r.kernel = a.countKernel(k, of.Form)
	}
	switch {
	case r.cap == isLarge && cap(st) > mostBlock:
		a.outside += uint64(cap(st)) - uint64(cap(a.large[r.at]))
		a.large[r.at] = st
	case r.cap == isLarge || len(st) > int(r.cap):
		a.move(r, st)
	case a.inPlace(r, st):
		r.len = uint16(len(st))
	default:
		r.len = uint16(copy(a.words[r.at:][:r.cap], st))
	}
}

// inPlace reports whether st begins where the block of r does. Then copying st to the block would
// change nothing, and only take time.
func (a *arena) inPlace(r *record, st []uint64) bool {
	return len(st) > 0 && &st[0] == &a.words[r.at]
}

// move gives r another block, with the capacity of st.
func (a *arena) move(r *record, st []uint64) {
	to := a.allocate(st) // may move the block that is released
	a.release(r.block)
	r.block = to
}

// countKernel counts a state that k left in a form, and returns the index of both.
func (a *arena) countKernel(k *step.Machine, form step.Form) uint32 {
	at := len(a.kernels)
	for i := range a.kernels {
		used := &a.kernels[i]
		switch {
		case used.Machine == k && used.form == form:
			used.keys++
			return uint32(i)
		case used.Machine == nil:
			at = i
		}
	}
	if at == len(a.kernels) {
		a.kernels = append(a.kernels, usedKernel{})
	}
	a.kernels[at] = usedKernel{k, form, 1}
	return uint32(at)
}

func (a *arena) uncountKernel(i uint32) {
	u := &a.kernels[i]
	u.keys--
	if u.keys == 0 {
		*u = usedKernel{}
	}
}

// makeTail makes room for a block of a capacity at the end of the words. It may move all blocks.
func (a *arena) makeTail(capacity int) {
	end := len(a.words)
	if cap(a.words)-end < capacity && a.used < uint64(end-end/8) {
		a.pack(capacity)
		end = len(a.words)
	}
	if need := end + capacity; cap(a.words) < need {
		a.words = append(make([]uint64, 0, need+need/4), a.words...)
	}
}

// draft returns zero words, which are not a block yet: add makes one of them, if the state is to be
// kept. Until then, nothing else is added, and no state grows.
func (a *arena) draft(length, capacity int) []uint64 {
	if capacity > mostBlock {
		return make([]uint64, length, capacity)
	}
	a.makeTail(capacity)
	end := len(a.words)
	st := a.words[end : end+length : end+capacity]
	clear(st[:capacity])
	return st
}

// draftNew returns a draft of the state of a key never seen, with room for a hold if opens is true.
func (a *arena) draftNew(k *step.Machine, opens bool) []uint64 {
	length, capacity := k.NewSize()
	if opens {
		capacity += k.HoldWords()
	}
	return a.draft(length, capacity)
}

// draftCopy returns a draft with a state of a slot, and with room for a hold if opens is true.
func (a *arena) draftCopy(k *step.Machine, st []uint64, opens bool) []uint64 {
	return append(a.draftNew(k, opens)[:0], st...)
}

// allocate keeps st from now on, and returns where: in a block of the same capacity, to which st is
// copied, or, if st is too large for a block, where it is. A draft is copied to itself.
func (a *arena) allocate(st []uint64) block {
	// A block has at least one word: a record without any is unused.
	if capacity := max(1, cap(st)); capacity <= mostBlock {
		a.makeTail(capacity)
		end := len(a.words)
		a.words = a.words[:end+capacity]
		a.used += uint64(capacity)
		copy(a.words[end:], st)
		return block{uint32(end), uint16(len(st)), uint16(capacity)}
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

// release gives back the words of a block.
func (a *arena) release(b block) {
	if b.cap != isLarge {
		a.used -= uint64(b.cap)
		return
	}
	a.outside -= uint64(cap(a.large[b.at]))
	a.large[b.at] = nil
	a.vacant = append(a.vacant, b.at)
}

// grow makes room for what n events add to the state of r and, if opens is true, for what a hold of
// them adds.
func (a *arena) grow(r *record, n int, opens bool) {
	k, more := a.kernel(r), 0
	st := a.state(r)
	if st.HasTurns() {
		return // the next state is another slice
	}
	if k.Width() == 0 {
		more = min(n, 2)
	}
	if opens {
		more += k.HoldWords()
	}
	if cap(st.Words)-len(st.Words) >= more {
		return
	}
	st = k.PackIn(st) // leaves the state where it is
	a.set(r, k, st)
	words := st.Words
	if cap(words)-len(words) >= more+len(words)/8 { // else packing would take most of the time
		return
	}
	more += 1 + len(words) + len(words)/8
	a.move(r, append(a.draft(0, more), words...))
}

// fitting returns the state of r with the capacity that it gets when it is copied.
func (a *arena) fitting(r *record) step.State {
	st, k, spare := a.state(r), a.kernel(r), 2
	if k.MayHaveHolds() {
		spare += k.HoldWords()
	}
	length := len(st.Words)
	if fits := min(cap(st.Words), length+length/8+spare); fits <= mostBlock {
		st.Words = st.Words[:length:fits]
	}
	return st // if it is not copied, all of it counts
}

// pack copies all blocks to another slice, with room for that many more words, and for so many that
// it is not soon called again.
func (a *arena) pack(more int) {
	old := *a
	more += len(a.records)
	a.words = make([]uint64, 0, int(float64(int(old.used)+more)/a.load)+more)
	a.used, a.outside, a.large, a.vacant = 0, 0, nil, nil
	for i := range a.records {
		r := &a.records[i]
		if !r.unused() {
			r.block = a.allocate(old.fitting(r).Words)
		}
	}
}

// shrink gives words back if a sweep has left few of them in use.
func (a *arena) shrink() {
	if few := cap(a.words) / 4; int(a.used) < few {
		a.pack(few - int(a.used))
	}
}

// bytes returns the memory that the arena takes.
func (a *arena) bytes() uint64 {
	if a == nil {
		return 0
	}
	words := uint64(cap(a.words)) + a.outside
	records := uint64(cap(a.records)) * sizeOf[record]()
	kernels := uint64(cap(a.kernels)) * sizeOf[usedKernel]()
	large := uint64(cap(a.large)) * sizeOf[[]uint64]()
	indexes := uint64(cap(a.vacant)+cap(a.free)) * sizeOf[uint32]()
	return sizeOf[arena]() + 8*words + records + kernels + large + indexes
}

func sizeOf[T any]() uint64 { return uint64(reflect.TypeFor[T]().Size()) }
