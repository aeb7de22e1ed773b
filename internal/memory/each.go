package memory

import (
	"math/bits"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// BatchKeys is the most keys that a Batch looks for together. The memory of a core loads
// ten to twenty cache lines at once, so more keys would gain little.
const BatchKeys = 64

// A Batch looks for many keys in a space, before it decides on the first of them. The state
// of a key that was not used lately is not in a cache: waiting for it takes longer than
// deciding on it, but a core can wait for many at once.
//
// The decisions are independent, and made in the order of the keys, as if Apply were
// called for each. They share one reading of the clock, which they may by guarantee 5:
// Begin reads the clock after it has loaded all states, and Take decides only on a state
// that has not changed since. In all other cases it calls Apply.
//
// The loops are short, and separate, because a core does not begin to load the next state
// before it has completed a swap.
type Batch struct {
	space  *Tables
	req    kernel.Request
	ids    [BatchKeys]identity
	at     [BatchKeys]*uint64       // where the state is, if it is one word; nil if it is not known
	words  [BatchKeys]uint64        // the states that Begin has loaded
	taking [BatchKeys]kernel.Taking // from these states
	time   kernel.Reading
	loaded bool // whether Begin has loaded states, and decided on them
	late   bool // whether time is later than the decisions of Begin
}

// A group is the first words of a group of slots, which are all if a state is one word.
type group [groupHead + groupSlots]uint64

// Begin looks for the first keys, and returns for how many: all, or BatchKeys. The caller
// calls Take for each of them in order, and then End. req is an OpTake without a fixed
// time.
func (sp *Tables) Begin(keys []string, req *kernel.Request) (b *Batch, n int) {
	b, _ = sp.store.batches.Get().(*Batch)
	if b == nil {
		b = new(Batch)
	}
	b.space, b.req = sp, *req
	b.loaded, b.late = sp.word != nil && sp.takes(req), false
	n = min(len(keys), BatchKeys)
	for i, key := range keys[:n] {
		b.ids[i] = sp.store.identify(key)
	}
	if b.loaded {
		b.load(n)
		b.read()
		for i := range n {
			b.decide(i)
		}
	} else {
		sp.touch(b.ids[:n])
	}
	return b, n
}

// touch loads a word of the group in which the search for each identity begins. The loads
// do not depend on each other, and no branch depends on them, so they overlap.
func (sp *Tables) touch(ids []identity) {
	for _, id := range ids {
		t := sp.at(id)
		_ = atomic.LoadUint64(&t.words[t.group(id, 0)]) // the compiler keeps it, because it is atomic
	}
}

// load loads the states of the first n keys.
func (b *Batch) load(n int) {
	var all [BatchKeys]uint8
	for i := range n {
		all[i] = uint8(i)
	}
	left := all[:n]
	for past := range uint64(3) {
		left = b.look(left, past)
	}
	for _, i := range left {
		t := b.space.at(b.ids[i])
		p, ok := t.find(b.ids[i])
		if b.at[i] = nil; ok {
			b.keep(i, t.word(p))
		}
	}
}

// keep loads the state of the i-th key.
func (b *Batch) keep(i uint8, state *uint64) {
	if b.words[i] = atomic.LoadUint64(state); b.words[i] == kernel.Gone {
		state = nil // guarantee 4
	}
	b.at[i] = state
}

// look loads the states of the given keys that are in a group, the given number of groups
// past the one where their search begins, and returns the other keys. As in touch, the loads
// overlap. No branch depends on which of the slots a key is in, or whether it is in the
// group at all: a core would guess that wrong for many keys, and lose more time than it
// takes to compare all slots.
func (b *Batch) look(keys []uint8, past uint64) (left []uint8) {
	var groups [BatchKeys]*group
	for _, i := range keys {
		t := b.space.at(b.ids[i])
		groups[i%BatchKeys] = (*group)(t.words[t.group(b.ids[i], past):])
	}
	for _, i := range keys {
		_ = atomic.LoadUint64(&groups[i%BatchKeys][0])
	}
	count := 0
	for _, i := range keys {
		g := groups[i%BatchKeys]
		word, missing := g.word(b.ids[i])
		b.keep(i, &g[word])
		keys[count] = i
		count += missing
	}
	return keys[:count]
}

// group returns the place of a group that is the given number of groups past the one where
// the search for id begins.
func (t *table) group(id identity, past uint64) (place uint64) {
	first, _ := bits.Mul64(id.hi, t.groups)
	for place = (first + past) * t.size; place >= uint64(len(t.words)); {
		place -= uint64(len(t.words))
	}
	return place
}

// word returns which word of g is the state of id, and 0 for missing. If id is not in g, it
// returns 0 and 1: the states of other slots must not be loaded, because they may be written
// by callers that insert other keys.
func (g *group) word(id identity) (state uint64, missing int) {
	// As in find, the first parts are loaded before the second (guarantee 2).
	hi0, hi1, hi2 := atomic.LoadUint64(&g[0]), atomic.LoadUint64(&g[1]), atomic.LoadUint64(&g[2])
	lo01, lo2 := atomic.LoadUint64(&g[3]), atomic.LoadUint64(&g[4])
	not0 := nonzero(hi0 ^ id.hi | uint64(uint32(lo01)^id.lo))
	not1 := nonzero(hi1 ^ id.hi | (lo01>>32 ^ uint64(id.lo)))
	not2 := nonzero(hi2 ^ id.hi | uint64(uint32(lo2)^id.lo))
	none := not0 & not1 & not2
	return (groupHead + not0*(1+not1)) * (1 - none), int(none)
}

// nonzero returns 0 if x is 0, and otherwise 1.
func nonzero(x uint64) uint64 { return (x | -x) >> 63 }

// read reads the clock.
func (b *Batch) read() { b.time.Now, b.time.Lag = b.req.Clock.Now() }

// decide decides on the i-th key at the reading of the clock, if its state is known.
func (b *Batch) decide(i int) {
	if b.at[i] != nil {
		b.taking[i].Take(b.space.word, b.words[i], b.time.Now, b.req.N)
	}
}

// Take applies the request to the i-th key, and fills in the answer.
func (b *Batch) Take(i int, a *kernel.Answer) {
	sp := b.space
	if !b.loaded {
		sp.apply(b.ids[i], sp.base, &b.req, a)
		return
	}
	if b.late {
		b.decide(i)
	}
	if state := b.at[i]; state == nil || !sp.settle(state, b.words[i], &b.taking[i], &b.time, b.req.Clock, a) {
		sp.apply(b.ids[i], sp.base, &b.req, a)
		b.read() // that may have taken long
		b.late = true
	}
}

// End ends a batch, which must not be used any more.
func (b *Batch) End() {
	clear(b.at[:]) // it keeps no table
	b.req = kernel.Request{}
	b.space.store.batches.Put(b)
}
