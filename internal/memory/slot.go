package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file reads, replaces and forgets the state of a key under the lock of its shard.
//
// A slot has no room for what a hold or a reservation leaves behind nor, if it has one word, for
// what a debt or a change of its limit does (kernel, narrow.go). A state with that is in the arena;
// so is one of another kind of limit, or of one that came when no number was left. The state comes
// back when the key is granted events, if it has an equal for which the slot has room. A word of
// another limit gets another slot (guarantee 2).

// A lockedSlot is a slot of the current table of a shard. The caller holds the lock of the shard.
type lockedSlot struct {
	space *Space
	shard *shard
	table *table
	at    slot
}

// limit returns the limit of the slot, and so of its state, if that is one word.
func (ls *lockedSlot) limit() *Limit { return ls.space.limitAt(ls.table, ls.at) }

// read returns the state of the slot, and the kernel that left it. If the state is a word, it is a
// copy in room.
func (ls *lockedSlot) read(room *[1]uint64) (k *step.Machine, st step.State) {
	word, refers := ls.table.refers(ls.at)
	switch {
	case refers:
		r := ls.shard.arena.record(word)
		return ls.shard.arena.kernel(r), ls.shard.arena.state(r)
	case ls.table.width > 1:
		return ls.space.base.loose, step.PlainState(ls.table.state(ls.at))
	}
	room[0] = word
	return ls.limit().k, step.PlainState(room[:])
}

// freeze makes st, which read has returned, the last state of the slot: nobody changes it without
// the lock any more. It returns false if the state has changed meanwhile.
func (ls *lockedSlot) freeze(st step.State) bool {
	if _, refers := ls.table.refers(ls.at); refers || ls.table.width > 1 {
		return true
	}
	return atomic.CompareAndSwapUint64(ls.table.word(ls.at), st.Words[0], gone) // guarantee 3
}

// put replaces the state of the slot by st, which k left: in the slot, if that has room for it, and
// otherwise in the arena. Nobody else uses the state.
func (ls *lockedSlot) put(k *step.Machine, st step.State) {
	word, refers := ls.table.refers(ls.at)
	switch {
	case ls.table.width > 1 && k == ls.space.base.loose && st.IsPlain():
		ls.leaveArena() // the words of st stay as they are
		copy(ls.table.state(ls.at), st.Words)
	case refers:
		ls.shard.arena.set(ls.shard.arena.record(word), k, st)
	default:
		ls.table.refer(ls.at, ls.shard.states().add(k, st))
	}
}

// putWord replaces the state, which nobody else uses, by a word of lim: in the slot, if lim is its
// limit, and otherwise in another slot, for which the table has room.
func (ls *lockedSlot) putWord(lim *Limit, word uint64) {
	if ls.limit() == lim {
		ls.leaveArena()
		atomic.StoreUint64(ls.table.word(ls.at), word)
		return
	}
	id := ls.table.id(ls.at)
	ls.vacate()
	ls.at, _ = ls.table.find(id)
	atomic.StoreUint64(ls.table.word(ls.at), word)
	ls.fill(id, lim.number)
}

// fill gives the slot, which was never taken and whose state is set, to a key.
func (ls *lockedSlot) fill(id identity, number uint64) {
	if number > 0 { // else there may be a reference
		ls.table.setLimitNumber(ls.at, number)
	}
	ls.table.setSecond(ls.at, id.lo)
	atomic.StoreUint64(&ls.table.words[ls.at.group+ls.at.index], id.hi) // guarantee 2
	ls.shard.used++
	ls.shard.keys++
}

// forget forgets the key, whose state nobody else uses.
func (ls *lockedSlot) forget() {
	ls.vacate()
	ls.space.returnPlace()
}

// vacate takes the slot from its key, which is forgotten, or gets another slot.
func (ls *lockedSlot) vacate() {
	ls.leaveArena()
	if ls.table.width == 1 {
		atomic.StoreUint64(ls.table.word(ls.at), gone) // guarantee 3
	}
	ls.table.setSecond(ls.at, 0)
	ls.shard.keys--
}

// leaveArena removes the state from the arena, if it is there.
func (ls *lockedSlot) leaveArena() {
	word, refers := ls.table.refers(ls.at)
	if !refers {
		return
	}
	ls.shard.arena.remove(word)
	if ls.table.width > 1 {
		ls.table.setLimitNumber(ls.at, 0)
	}
}
