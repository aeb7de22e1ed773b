package memory

import (
	"iter"
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file describes where a key is in the table of its shard, and which operations on a table are
// atomic.
//
// # Layout
//
// A key is known by its identity (identity.go): two hashes, neither of which is 0. The
// key itself is not stored.
//
// A table is a single slice of words without pointers, so the garbage collector does not scan it.
// Three slots make a group:
//
//	words 0–2   the first parts of three identities, 64 bits each; 0 if
//	            the slot was never taken
//	words 3–4   the second parts, 32 bits each; 0 if the key was forgotten.
//	            In the upper half of word 4: the numbers of three limits, 10
//	            bits each; 0 unless keys have limits of their own
//	words 5 …   the three states, one after the other, or references to states
//	            in the arena of the shard
//
//	       ┌──────┬──────┬──────┬──────┬──────┬───────┬───────┬───────┐
//	group  │ id 0 │ id 1 │ id 2 │ 0, 1 │ 2, # │ st. 0 │ st. 1 │ st. 2 │
//	       └──────┴──────┴──────┴──────┴──────┴───────┴───────┴───────┘
//
// With states of one word, a group is one cache line, and most decisions touch only
// that line. The first part of an identity, in proportion to its range, selects the
// group where the search begins. The search continues group by group until it finds the
// key or a slot that was never taken.
//
// Which states have one word is up to the kernels (see step.Machine.Word): those of a continuous
// TokenBucket and of a LeakyBucket at most rates, and with most limits those of a FixedWindow
// aligned to multiples of its length and of a SlidingWindow of one segment. TestWidths in the root
// has examples. If all keys have one limit, states of more words are in the table, too, if these
// are always as many. All other states are in the arena (arena.go): those that grow, and those for
// which a slot has no room for now, because events are held, say (slot.go).
//
// No kernel makes a word from kernel.NoWord on. They are the references, apart from the last one,
// gone. If states have several words, the first may be any: then a slot with a reference has the
// number of another limit, which is the same.
//
// # What is atomic
//
// A word is changed only by an atomic operation. Without the lock, that is a compare-and-swap of
// one state by another; a denial only reads. Any other state is accessed under the shard's lock.
//
// Guarantees, numbered as the code refers to them:
//
//  1. Slots are taken and forgotten, and the table and the shard's directory entries are
//     replaced, only under the shard's lock. After acquiring the lock, a caller looks
//     in the directory again, because the shard may have been split and the directory
//     doubled meanwhile. An old directory, or an entry read before it changed, leads to
//     a table that is or was its shard's.
//  2. The first part in a slot changes once, from 0, and is written last: a reader that
//     sees it also sees the second part (or 0, if the key was forgotten), the number of
//     the limit and the state. A slot is never reused, and its number never changes; it
//     disappears when the table is replaced. A key whose limit changes gets another slot.
//     So whatever state a caller loads from a slot is one of the limit that the slot names.
//  3. No caller without the lock swaps a word from kernel.NoWord on. gone is written, under the
//     lock, before a key is forgotten and before its state is copied to another table or
//     to the arena. So no update is lost: either it came first, and is part of the value that gone
//     replaced, or it fails, and its caller starts over under the lock. Only the caller that has
//     written gone may replace it, while it still holds the lock: it then owns the state,
//     as if it were in the arena. Callers without the lock find the state of before or that
//     of after. (A decision on several keys owns their states; see joint.go. And if the
//     user's clock panics while a caller owns states, they are put back.)
//  4. A caller that finds no state in the word, or does not find the identity, and wants to make a
//     change takes the lock and looks again in the current table (see directory.lock).
//  5. The clock is read after the state. Then the state is checked to be unchanged: by
//     the compare-and-swap or, if nothing changes, by a second load. So there was an
//     instant at which both the clock and the state had the values that the decision is
//     based on. In particular, it is not earlier than the decision that left the state
//     (see docs/design.md, Time). A bare denial needs no recheck: a state that denies now
//     also denied when it was loaded. A change is visible only after its swap: a caller that
//     reads the clock and the state just before that may find a later time and the state of
//     before. It comes first then, and nobody can tell, because the two overlap.

const (
	groupSlots = 3
	groupHead  = 5 // words of a group before the states
)

// gone is a word that has no state, or whose state somebody owns.
const gone = math.MaxUint64

// A table holds the keys of a shard until it is replaced. Once it is published, its
// words are accessed atomically, except states of more than one word.
type table struct {
	words  []uint64
	groups uint64
	size   uint64 // words of a group
	width  uint64 // words of a slot's state
	most   uint32 // slots that may be taken: see maxLoad
	shard  *shard
}

// A slot is where a table has room for a key: the first word of its group, and which of the three
// slots of the group it is.
type slot struct{ group, index uint64 }

// noKeys are the words of the table of every shard without keys.
var noKeys = make([]uint64, groupHead+groupSlots)

// newTable returns a table of sh with room for a number of keys, whose states have width words. It
// is not published yet.
func newTable(sh *shard, width uint64, keys uint32) *table {
	t := &table{
		words:  noKeys,
		groups: 1,
		width:  width,
		size:   groupHead + groupSlots*width,
		shard:  sh,
	}
	if keys > 0 {
		t.groups = uint64(float64(keys)/sh.newLoad())/groupSlots + 1
		t.words = make([]uint64, t.groups*t.size)
		t.most = uint32(float64(t.groups*groupSlots) * maxLoad)
	}
	return t
}

// find returns the slot of id or, if id is not in the table, the slot for inserting it.
func (t *table) find(id identity) (at slot, ok bool) {
	for at.group = t.searchStart(id); ; {
		g := (*[groupHead]uint64)(t.words[at.group:])
		a := atomic.LoadUint64(&g[0])
		if a == id.hi && uint32(atomic.LoadUint64(&g[3])) == id.lo {
			return slot{at.group, 0}, true
		}
		b := atomic.LoadUint64(&g[1])
		if b == id.hi && uint32(atomic.LoadUint64(&g[3])>>32) == id.lo {
			return slot{at.group, 1}, true
		}
		c := atomic.LoadUint64(&g[2])
		if c == id.hi && uint32(atomic.LoadUint64(&g[4])) == id.lo {
			return slot{at.group, 2}, true
		}
		switch {
		case a == 0:
			return slot{at.group, 0}, false
		case b == 0:
			return slot{at.group, 1}, false
		case c == 0:
			return slot{at.group, 2}, false
		}
		at.group += t.size
		if at.group == uint64(len(t.words)) {
			at.group = 0
		}
	}
}

// searchStart returns the first word of the group where the search for id begins.
func (t *table) searchStart(id identity) uint64 {
	first, _ := bits.Mul64(id.hi, t.groups)
	return first * t.size
}

// secondWord returns the word that contains the second part of the identity at a slot, and
// the bit offset of that part.
func (t *table) secondWord(at slot) (word *uint64, shift uint64) {
	return &t.words[at.group+groupSlots+at.index/2], at.index % 2 * 32
}

// second returns the second part of the identity at a slot, or 0 if the key was forgotten.
func (t *table) second(at slot) uint32 {
	word, shift := t.secondWord(at)
	return uint32(atomic.LoadUint64(word) >> shift)
}

// setSecond sets the second part of the identity at a slot. The caller holds the lock.
func (t *table) setSecond(at slot, lo uint32) {
	word, shift := t.secondWord(at)
	atomic.StoreUint64(word, *word&^(math.MaxUint32<<shift)|uint64(lo)<<shift)
}

// numberBits is the size of the number of a limit. Those of a group share the upper half of a word.
const numberBits = 10

const _ = uint(32 - groupSlots*numberBits)

// limitNumber returns the number of the limit of a slot.
func (t *table) limitNumber(at slot) uint64 {
	numbers := atomic.LoadUint64(&t.words[at.group+groupHead-1])
	return numbers >> (32 + numberBits*at.index) & (1<<numberBits - 1)
}

// setLimitNumber sets the number of the limit of a slot. The caller holds the lock.
func (t *table) setLimitNumber(at slot, number uint64) {
	word, shift := &t.words[at.group+groupHead-1], 32+numberBits*at.index
	next := *word&^((1<<numberBits-1)<<shift) | number<<shift
	if next != *word {
		atomic.StoreUint64(word, next)
	}
}

// word returns the state of a slot, which is one word or a reference.
func (t *table) word(at slot) *uint64 { return &t.words[at.group+groupHead+at.index] }

// state returns the words of a slot that are its state, if that is not in the arena.
func (t *table) state(at slot) []uint64 {
	from := at.group + groupHead + at.index*t.width
	return t.words[from : from+t.width : from+t.width]
}

// reference is the number of the limit of a slot with a reference, if states have several words.
const reference = 1

// refers reports whether the state of a slot is in the arena, and returns the word that refers to
// it there. The caller holds the lock.
func (t *table) refers(at slot) (word uint64, ok bool) {
	if t.width > 1 {
		return t.state(at)[0], t.limitNumber(at) == reference
	}
	word = atomic.LoadUint64(t.word(at))
	return word, word >= kernel.NoWord && word != gone
}

// refer makes a slot refer to a state in the arena. The caller holds the lock.
func (t *table) refer(at slot, word uint64) {
	if t.width > 1 {
		t.setLimitNumber(at, reference)
	}
	atomic.StoreUint64(&t.state(at)[0], word)
}

// id returns the identity of the key at a slot. The caller holds the lock.
func (t *table) id(at slot) identity { return identity{t.words[at.group+at.index], t.second(at)} }

// holds reports whether a slot has a key. The caller holds the lock.
func (t *table) holds(at slot) bool { return t.words[at.group+at.index] != 0 && t.second(at) != 0 }

// held iterates over the slots that have a key. The caller holds the lock.
func (t *table) held() iter.Seq[slot] {
	return func(yield func(slot) bool) {
		for i := range t.groups * groupSlots {
			at := t.nth(i)
			if t.holds(at) && !yield(at) {
				return
			}
		}
	}
}

// nth returns the i-th slot.
func (t *table) nth(i uint64) slot { return slot{i / groupSlots * t.size, i % groupSlots} }
