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
type Batch struct {
	space *Tables
	ids   [BatchKeys]identity
	at    [BatchKeys]*uint64 // where the state is, if it is one word; nil if it is not known
	words [BatchKeys]uint64  // the states that Begin has loaded
	state [1]uint64          // for kernels to work on
	time  kernel.Reading
}

// Begin looks for the first keys, and returns for how many: all, or BatchKeys. The caller
// calls Take for each of them in order, and then End.
func (sp *Tables) Begin(keys []string, clk *kernel.Timeline) (b *Batch, n int) {
	b, _ = sp.store.batches.Get().(*Batch)
	if b == nil {
		b = new(Batch)
	}
	b.space = sp
	n = min(len(keys), BatchKeys)
	for i, key := range keys[:n] {
		b.ids[i] = sp.store.identify(key)
	}
	sp.touch(b.ids[:n])
	if sp.word != nil {
		b.load(n)
		b.read(clk)
	}
	return b, n
}

// touch loads a word of the group in which the search for each identity begins. The loads
// do not depend on each other, and no branch depends on them, so they overlap.
func (sp *Tables) touch(ids []identity) {
	for _, id := range ids {
		t := sp.at(id)
		group, _ := bits.Mul64(id.hi, t.groups)
		_ = atomic.LoadUint64(&t.words[group*t.size]) // the compiler keeps it, because it is atomic
	}
}

// load loads the states of the first n keys.
func (b *Batch) load(n int) {
	for i, id := range b.ids[:n] {
		t := b.space.at(id)
		p, ok := t.findFirst(id)
		if !ok {
			p, ok = t.find(id)
		}
		if b.at[i] = nil; ok {
			b.at[i] = t.word(p)
			b.words[i] = atomic.LoadUint64(b.at[i])
		}
	}
}

// findFirst is find in the group where the search begins. No branch depends on which of the
// slots the key is in: a core would guess that wrong for most keys, and lose more time than
// it takes to compare all three.
func (t *table) findFirst(id identity) (p place, ok bool) {
	group, _ := bits.Mul64(id.hi, t.groups)
	p.group = group * t.size
	g := (*[groupHead]uint64)(t.words[p.group:])
	// As in find, the first parts are loaded before the second (guarantee 2).
	hi0, hi1, hi2 := atomic.LoadUint64(&g[0]), atomic.LoadUint64(&g[1]), atomic.LoadUint64(&g[2])
	lo01, lo2 := atomic.LoadUint64(&g[3]), atomic.LoadUint64(&g[4])
	not0 := nonzero(hi0 ^ id.hi | uint64(uint32(lo01)^id.lo))
	not1 := nonzero(hi1 ^ id.hi | lo01>>32 ^ uint64(id.lo))
	not2 := nonzero(hi2 ^ id.hi | uint64(uint32(lo2)^id.lo))
	p.slot = not0 * (1 + not1)
	return p, not0&not1&not2 == 0
}

// nonzero returns 0 if x is 0, and otherwise 1.
func nonzero(x uint64) uint64 { return (x | -x) >> 63 }

// read reads the clock.
func (b *Batch) read(clk *kernel.Timeline) { b.time.Now, b.time.Lag = clk.Now() }

// Take applies req, an OpTake without a fixed time, to the state of the i-th key, and fills
// in the answer.
func (b *Batch) Take(i int, req *kernel.Request, a *kernel.Answer) {
	sp := b.space
	if sp.word != nil && b.takeLoaded(i, req, a) {
		return
	}
	sp.apply(b.ids[i], req, a)
	if sp.word != nil {
		b.read(req.Clock) // that may have taken long
	}
}

// takeLoaded is Take for the state that Begin has loaded. It returns false if that cannot
// be decided on.
func (b *Batch) takeLoaded(i int, req *kernel.Request, a *kernel.Answer) (ok bool) {
	sp, state, word := b.space, b.at[i], b.words[i]
	if state == nil || word == kernel.Gone {
		return false // guarantee 4
	}
	b.state[0] = word
	if n := req.N; n > 0 && n <= sp.k.Limit() && sp.k.TakeWord(sp.word, &b.state, &b.time, n, a) {
		return atomic.CompareAndSwapUint64(state, word, b.state[0]) // guarantee 5
	}
	if req.Clock.Renew() {
		return false
	}
	fixed := *req
	fixed.Fixed = &b.time
	sp.k.Step(b.state[:], &fixed, a)        // changes nothing
	return atomic.LoadUint64(state) == word // guarantee 5
}

// End ends a batch, which must not be used any more.
func (b *Batch) End() {
	clear(b.at[:]) // it keeps no table
	b.space.store.batches.Put(b)
}
