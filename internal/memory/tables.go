package memory

import (
	"math"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file and growth.go are the engine of the in-memory store for states of fixed
// width. (States that contain a SlidingLog are kept in logs.go.) This file describes how a
// key is found and decided on; growth.go describes how tables are replaced and split, and
// varied.go how keys get limits of their own.
//
// # Terms and layout
//
// A key is known by its identity (identity.go): two hashes, neither of which is 0. The
// key itself is not stored.
//
// A space holds one limiter's states. It has shards, and a directory that maps the low
// bits of an identity to the table of a shard (directory.go). A shard with many keys is
// split (growth.go). A table is a single slice of words without pointers, so the
// garbage collector does not scan it. Three slots make a group:
//
//	words 0–2   the first parts of three identities, 64 bits each; 0 if
//	            the slot was never taken
//	words 3–4   the second parts, 32 bits each; 0 if the key was forgotten.
//	            In the upper half of word 4: the numbers of three limits, 10
//	            bits each; 0 unless keys have limits of their own
//	words 5 …   the three states, one after the other
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
// Which states have one word is up to the kernels (see kernel.Compiled.Word): those of a
// continuous TokenBucket and of a LeakyBucket at most rates, and with most limits those of
// a FixedWindow aligned to multiples of its length and of a SlidingWindow of one segment.
// TestWidths in the root has examples.
//
// # What is atomic
//
// A state of one word is changed only by an atomic operation: a compare-and-swap, or
// the store of Gone. A denial only reads. Wider states are changed under the shard's
// lock.
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
//  3. No compare-and-swap succeeds on Gone in a state of one word. It is written, under the
//     lock, before a key is forgotten and before its state is copied to another table. So
//     no update is lost: either it came first, and is part of the value that Gone replaced,
//     or it fails, and its caller starts over under the lock. Only the caller that has
//     written Gone may replace it, while it still holds the lock: it then owns the state,
//     as if the state were wider. Callers without the lock find the state of before or that
//     of after. (A decision on several keys owns their states; see together.go. And if the
//     user's clock panics while the limit of a key changes, the state is put back.)
//  4. A caller that finds Gone, or does not find the identity, and wants to make a change
//     takes the lock and looks again in the current table (see lock).
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

// A table holds the keys of a shard until it is replaced. Once it is published, its
// words are accessed atomically, except states of more than one word.
type table struct {
	words  []uint64
	groups uint64
	size   uint64 // words of a group
	width  uint64 // words of a state
	most   uint64 // slots that may be taken; fewer than the table has, so that every search ends
	shard  *shard
}

// A place is a slot of a table: the first word of its group, and which of the
// three it is.
type place struct{ group, slot uint64 }

// A shard is one part of a space, with its own lock. On 64-bit machines it fills a
// cache line, so that the locks of neighbours do not share one.
type shard struct {
	space *Tables
	first uint32 // index of its first directory entry

	depth uint32     // its directory entries are 1<<depth apart
	mu    sync.Mutex // protects depth and the fields below, and see guarantee 1
	used  uint64     // slots taken in the table, including those of forgotten keys
	keys  uint64     // keys held
	next  uint32     // the slot where the next eviction starts
	upkeep
}

// Tables is a space for states of fixed width.
type Tables struct {
	occupancy
	store   *Store
	over    overflow
	decider         // zero if keys have limits of their own
	varied  *Varied // if keys have limits of their own; else nil
	single  bool    // whether a state is one word
	blind   bool    // likewise, and it does not say whether anything was granted since a hold
	fills   uint64  // if so: how long a bucket takes to fill up, in nanoseconds
	width   uint64  // words of a state
	serial  uint64  // see serials

	epochs   epochs
	returned striped[returnStripe] // what was taken back; without stripes if nothing was, or if states are not blind

	directory[table]
}

func newTables(s *Store, k *kernel.Compiled) *Tables {
	sp := &Tables{store: s, over: newOverflow(s, k), decider: decider{k, k.Word()}, single: k.Word() != nil, width: uint64(k.Width())}
	if sp.blind = k.Blind(); sp.blind {
		sp.fills = k.Fills()
	}
	sp.begin()
	return sp
}

// begin prepares a space without keys.
func (sp *Tables) begin() {
	sp.serial = serials.Add(1)
	sh := &shard{space: sp}
	sp.init(sp.store, min(splitAt, max(splitEarlyAt, splitWords/sp.width)), sh, sh.newTable(0))
}

// kernelAt returns the kernel of the state at p.
func (sp *Tables) kernelAt(t *table, p place) *kernel.Compiled {
	if sp.varied != nil {
		return sp.varied.limitAt(t, p).k
	}
	return sp.k
}

// lock locks the shard of id, and returns the shard and its table.
func (sp *Tables) lock(id identity) (*shard, *table) {
	for {
		sh := sp.at(id).shard
		sh.mu.Lock()
		if t := sp.at(id); t.shard == sh { // guarantee 1
			return sh, t
		}
		sh.mu.Unlock()
	}
}

// find returns the place of id or, if id is not in the table, the place for inserting
// it.
func (t *table) find(id identity) (p place, ok bool) {
	first, _ := bits.Mul64(id.hi, t.groups)
	for p.group = first * t.size; ; {
		g := (*[groupHead]uint64)(t.words[p.group:])
		a := atomic.LoadUint64(&g[0])
		if a == id.hi && uint32(atomic.LoadUint64(&g[3])) == id.lo {
			return place{p.group, 0}, true
		}
		b := atomic.LoadUint64(&g[1])
		if b == id.hi && uint32(atomic.LoadUint64(&g[3])>>32) == id.lo {
			return place{p.group, 1}, true
		}
		c := atomic.LoadUint64(&g[2])
		if c == id.hi && uint32(atomic.LoadUint64(&g[4])) == id.lo {
			return place{p.group, 2}, true
		}
		switch {
		case a == 0:
			return place{p.group, 0}, false
		case b == 0:
			return place{p.group, 1}, false
		case c == 0:
			return place{p.group, 2}, false
		}
		if p.group += t.size; p.group == uint64(len(t.words)) {
			p.group = 0
		}
	}
}

// secondWord returns the word that contains the second part of the identity at p, and
// the bit offset of that part.
func (t *table) secondWord(p place) (word *uint64, shift uint64) {
	return &t.words[p.group+groupSlots+p.slot/2], p.slot % 2 * 32
}

func (t *table) second(p place) uint32 {
	word, shift := t.secondWord(p)
	return uint32(atomic.LoadUint64(word) >> shift)
}

// setSecond changes the second part. The caller holds the lock.
func (t *table) setSecond(p place, lo uint32) {
	word, shift := t.secondWord(p)
	atomic.StoreUint64(word, *word&^(math.MaxUint32<<shift)|uint64(lo)<<shift)
}

// numberBits is the size of the number of a limit.
const numberBits = 10

// number returns the number of the limit at p.
func (t *table) number(p place) uint64 {
	return atomic.LoadUint64(&t.words[p.group+groupHead-1]) >> (32 + numberBits*p.slot) & (1<<numberBits - 1)
}

// setNumber sets the number of the limit at p, where it is 0. The caller holds the lock.
func (t *table) setNumber(p place, number uint64) {
	if number > 0 {
		word := &t.words[p.group+groupHead-1]
		atomic.StoreUint64(word, *word|number<<(32+numberBits*p.slot))
	}
}

// word returns the state at p, which is one word wide.
func (t *table) word(p place) *uint64 { return &t.words[p.group+groupHead+p.slot] }

// state returns the state at p.
func (t *table) state(p place) []uint64 {
	from := p.group + groupHead + p.slot*t.width
	return t.words[from : from+t.width : from+t.width]
}

// id returns the identity at p. The caller holds the lock.
func (t *table) id(p place) identity { return identity{t.words[p.group+p.slot], t.second(p)} }

// A change decides on a state. It may update the state in place; then it returns true.
// It reads the clock itself. If the state was changed concurrently, it is called again
// with the new one.
type change func(st []uint64) (changed bool)

// Allow reports whether n events of key are granted, 1 ≤ n ≤ limit. It is a faster
// Apply for callers that need nothing else.
func (sp *Tables) Allow(clk *kernel.Timeline, key string, n int) bool {
	granted, _ := sp.allow(clk, key, nil, n)
	return granted
}

// allow is Allow. If keys have limits of their own, ok is false if the key is not in the
// tables with the limit that has the given tag.
func (sp *Tables) allow(clk *kernel.Timeline, key string, tag any, n int) (granted, ok bool) {
	id := sp.store.identify(key)
	if sp.single {
		t := sp.at(id)
		if p, ok := t.find(id); ok {
			by := sp.word
			if sp.varied != nil {
				lim := sp.varied.limitAt(t, p)
				switch {
				case lim.tag != tag:
					return false, false
				case n > 1 && n > lim.k.Limit():
					return false, true
				}
				by = lim.word
			}
			state, renewed := t.word(p), false
			for tries := 0; ; tries++ {
				word := atomic.LoadUint64(state)
				if word == kernel.Gone {
					break // guarantee 4
				}
				now, _ := clk.Now()
				next, granted := by.Decide(word, now, n)
				if granted && atomic.CompareAndSwapUint64(state, word, next) {
					return true, true // guarantee 5
				}
				if !granted && (renewed || !clk.Renew()) {
					return false, true // guarantee 5
				}
				if renewed = !granted; granted {
					backOff(tries)
				}
			}
		}
	}
	if sp.varied != nil {
		return false, false
	}
	if !sp.single {
		if granted, ok := sp.allowWide(id, clk, n); ok {
			return granted, true
		}
	}
	return sp.allowLocked(id, clk, n), true
}

// allowWide is Allow for a state of several words. ok is false if the key is not in the
// tables.
func (sp *Tables) allowWide(id identity, clk *kernel.Timeline, n int) (granted, ok bool) {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	p, ok := t.find(id)
	if !ok {
		return false, false
	}
	_, granted, _ = sp.k.Allow(t.state(p), clk, n)
	return granted, true
}

// allowLocked is Allow under the lock.
func (sp *Tables) allowLocked(id identity, clk *kernel.Timeline, n int) (granted bool) {
	req := kernel.Request{Op: kernel.OpTake, N: n, Clock: clk}
	idle, full := sp.update(id, &req, func(st []uint64) (changed bool) {
		_, granted, changed = sp.k.Allow(st, clk, n)
		return changed // a denial changes nothing in a state of fixed width
	})
	if full {
		var a kernel.Answer
		sp.over.apply(sp.k, &req, idle, &a)
		return a.Allowed
	}
	return granted
}

// Apply applies req to the state of key, and fills in the answer.
func (sp *Tables) Apply(key string, req *kernel.Request, a *kernel.Answer) {
	if sp.over.cancels(sp.k, req, a) {
		return
	}
	sp.apply(sp.store.identify(key), req, a)
}

// apply is Apply for the key with the given identity.
func (sp *Tables) apply(id identity, req *kernel.Request, a *kernel.Answer) {
	if !sp.single && sp.applyWide(id, req, a) {
		return
	}
	step := func(st []uint64) (changed bool) { return sp.step(id, st, req, a) }
	if sp.word != nil {
		tbl := sp.at(id)
		if p, ok := tbl.find(id); ok && (sp.decide(tbl.word(p), req, a) || sp.swap(tbl.word(p), id, req, step)) {
			return
		}
	}
	if idle, full := sp.update(id, req, step); full {
		sp.over.apply(sp.k, req, idle, a)
	}
}

// applyWide is apply for a state of several words. It returns false if the key is not in the
// tables.
func (sp *Tables) applyWide(id identity, req *kernel.Request, a *kernel.Answer) (ok bool) {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	p, ok := t.find(id)
	if ok {
		sp.step(id, t.state(p), req, a)
	}
	return ok
}

// step applies req to the state of id.
func (sp *Tables) step(id identity, st []uint64, req *kernel.Request, a *kernel.Answer) (changed bool) {
	if req.Op.Traces() {
		return sp.stepTraced(id, st, req, a)
	}
	_, changed = sp.k.Step(st, req, a)
	return changed
}

// stepTraced applies a request that Traces to the state of id.
func (sp *Tables) stepTraced(id identity, st []uint64, req *kernel.Request, a *kernel.Answer) (changed bool) {
	epoch, returns := sp.epochs.now(id), sp.returns(id)
	sp.epochs.doubt(id, req)
	_, changed = sp.k.Step(st, req, a)
	a.Stamp(epoch, returns)
	return changed
}

// swap applies f, which applies req, to a state of one word. It returns false if the state is Gone.
func (sp *Tables) swap(state *uint64, id identity, req *kernel.Request, f change) (ok bool) {
	if sp.blind && req.Op.TakesBack() {
		return sp.swapBack(state, id, req, f)
	}
	return sp.store.swap(state, f)
}

// swap applies f to a state of one word. It returns false if the state is Gone.
func (s *Store) swap(state *uint64, f change) (ok bool) {
	blank := s.blank()
	defer s.blanks.Put(blank)
	st := blank[:]
	for tries := 0; ; tries++ {
		word := atomic.LoadUint64(state)
		if word == kernel.Gone {
			return false // guarantee 4
		}
		st[0] = word
		changed := f(st)
		if !changed && atomic.LoadUint64(state) == word || changed && atomic.CompareAndSwapUint64(state, word, st[0]) {
			return true // guarantee 5
		}
		backOff(tries)
	}
}

// update applies f to the state of id under the lock, and takes a slot if the key is
// new and its state changes. If the store is full and its policy forbids evicting a
// key, it reports full, and the instant at which a key may be idle.
func (sp *Tables) update(id identity, req *kernel.Request, f change) (idle kernel.Instant, full bool) {
	if sp.tryAll(id, req, f) {
		return 0, false
	}
	return sp.store.admit(req, candidate{sh: sp.at(id).shard, id: id}, func() bool { return sp.tryAll(id, req, f) })
}

// tryAll retries an update until it succeeds, or returns false if the store is full.
func (sp *Tables) tryAll(id identity, req *kernel.Request, f change) bool {
	for {
		if out := sp.tryUpdate(id, req, f); out != replaced {
			return out == updated
		}
	}
}

// tryUpdate calls updateLocked under the lock, which it releases even if the user's
// clock panics.
func (sp *Tables) tryUpdate(id identity, req *kernel.Request, f change) outcome {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	return sh.updateLocked(t, id, req, f)
}

// An outcome is the result of an attempt to update.
type outcome int

const (
	updated  outcome = iota
	replaced         // the table was replaced or swept: try the update again
	noRoom           // the store is full
)

// updateLocked tries an update in t, the table of id's shard.
func (sh *shard) updateLocked(t *table, id identity, req *kernel.Request, f change) outcome {
	sp := sh.space
	p, ok := t.find(id)
	switch {
	case ok && sp.single:
		sp.swap(t.word(p), id, req, f) // it is not Gone: writing Gone takes the lock
		return updated
	case ok:
		f(t.state(p))
		return updated
	}
	return sh.insertLocked(t, p, id, 0, req, f)
}

// insertLocked inserts id, with the limit of the given number, at p in t if f changes the
// state of a key never seen.
func (sh *shard) insertLocked(t *table, p place, id identity, number uint64, req *kernel.Request, f change) outcome {
	sp := sh.space
	if sh.used >= t.most || sh.looks() {
		if now, _ := req.Now(); sh.makeRoomLocked(t, now) {
			return replaced
		}
	}
	st := t.state(p) // all zero; no other goroutine reads it until the slot is taken
	if !f(st) {
		if sp.store.answers(req.Op) {
			return updated
		}
		return noRoom
	}
	if !sp.store.take(&sp.occupancy) {
		clear(st)
		return noRoom
	}
	sh.takeLocked(t, p, id, number)
	sh.inserts++
	sp.store.keepTime(req.Clock)
	return updated
}

// takeLocked takes the slot at p, whose state is set.
func (sh *shard) takeLocked(t *table, p place, id identity, number uint64) {
	t.setNumber(p, number)
	t.setSecond(p, id.lo)
	atomic.StoreUint64(&t.words[p.group+p.slot], id.hi) // guarantee 2
	sh.used++
	sh.keys++
}

// forgetLocked forgets the key at p. If its state is one word, that is already Gone.
func (sh *shard) forgetLocked(t *table, p place) {
	sh.dropLocked(t, p)
	sh.space.store.leave(&sh.space.occupancy)
}

// dropLocked is forgetLocked for a key that moves.
func (sh *shard) dropLocked(t *table, p place) {
	t.setSecond(p, 0)
	sh.keys--
}

// Reset forgets key.
func (sp *Tables) Reset(key string) {
	id := sp.store.identify(key)
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	if p, ok := t.find(id); ok {
		st := t.state(p)
		if sp.single {
			st = []uint64{atomic.SwapUint64(t.word(p), kernel.Gone)} // guarantee 3
		}
		sp.epochs.reset(id, sp.k.Fresh(st))
		sh.forgetLocked(t, p)
	}
}

// backOff waits briefly after the tries-th failed swap, so that the goroutine that
// succeeded makes a few more decisions before the cache line moves to another core:
// moving it takes longer than deciding. BenchmarkHotKeyAllowedParallel measures the
// gain.
func backOff(tries int) {
	for i := range 2048 << min(tries, 3) {
		runtime.KeepAlive(i) // keeps the compiler from removing the loop
	}
}
