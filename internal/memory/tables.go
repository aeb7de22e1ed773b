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
// moves.go how keys get limits of their own, and more room than a table has.
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
//     user's clock panics while a key moves, the state is put back.)
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

// Tables is a space for states of fixed width. Keys whose states need more room than a table
// has, for now, are in its logs.
type Tables struct {
	occupancy
	store   *Store
	decider                      // that of all keys; zero if they have limits of their own
	base    *Limit               // of keys without a limit of their own
	logs    atomic.Pointer[Logs] // nil until a key is put into them
	single  bool                 // whether a state is one word
	width   uint64               // words of a state
	serial  uint64               // see serials

	limits atomic.Pointer[[]*Limit] // by number; only appended to
	mu     sync.Mutex               // protects against another Limit or makeLogs
	byTag  map[any]*Limit           // those with a number, except the base

	directory[table]
}

// newTables returns a space in which all keys have one limit: k in tables, and loose in logs. If
// it varies, that is the limit of the keys without one of their own, and all states in tables are
// one word.
func newTables(s *Store, k, loose *kernel.Compiled, varies bool) *Tables {
	sp := &Tables{store: s, single: varies || k.Word() != nil, width: 1}
	sp.base = &Limit{space: sp, loose: loose}
	if k.Word() != nil || !varies {
		sp.base.decider = decider{k, k.Word()}
	}
	if !varies {
		sp.decider, sp.width = sp.base.decider, uint64(k.Width())
	}
	sp.limits.Store(&[]*Limit{sp.base})
	sp.begin()
	return sp
}

// begin prepares a space without keys.
func (sp *Tables) begin() {
	sp.serial = serials.Add(1)
	sh := &shard{space: sp}
	sp.init(sp.store, min(splitAt, max(splitEarlyAt, splitWords/sp.width)), sh, sh.newTable(0))
}

// varies reports whether keys have limits of their own.
func (sp *Tables) varies() bool { return sp.k == nil }

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

const _ = uint(32 - groupSlots*numberBits) // they share the upper half of a word

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

// Allow reports whether n events of key are granted, 1 ≤ n ≤ limit, if all keys have one limit.
// It is a faster Apply for callers that need nothing else.
func (sp *Tables) Allow(clk *kernel.Timeline, key string, n int) bool {
	id := sp.store.identify(key)
	if granted, ok := sp.allow(clk, id, nil, n); ok {
		return granted
	}
	return sp.allowLocked(clk, id, sp.base, n)
}

// AllowAs is Allow with the limit that has the given tag. ok is false if the key is not in
// the tables with that limit.
func (sp *Tables) AllowAs(clk *kernel.Timeline, key string, tag any, n int) (granted, ok bool) {
	return sp.allow(clk, sp.store.identify(key), tag, n)
}

// AllowBy is Allow with the limit lim.
func (sp *Tables) AllowBy(clk *kernel.Timeline, key string, lim *Limit, n int) bool {
	id := sp.store.identify(key)
	if lim.word != nil {
		if granted, ok := sp.allow(clk, id, lim.tag, n); ok {
			return granted
		}
	}
	return sp.allowLocked(clk, id, lim, n)
}

// allow is Allow without a lock, with the limit that has the given tag. ok is false if the key is
// not in the tables with that limit, or if its state is not one word.
func (sp *Tables) allow(clk *kernel.Timeline, id identity, tag any, n int) (granted, ok bool) {
	if !sp.single {
		return false, false
	}
	t := sp.at(id)
	p, ok := t.find(id)
	if !ok {
		return false, false
	}
	by := sp.word
	if sp.varies() {
		lim := sp.limitAt(t, p)
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
			return false, false // guarantee 4
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

// allowLocked is AllowBy under locks.
func (sp *Tables) allowLocked(clk *kernel.Timeline, id identity, lim *Limit, n int) (granted bool) {
	if lim.word == nil {
		if granted, ok := sp.allowWide(clk, id, n); ok {
			return granted
		}
		if logs := sp.logs.Load(); logs != nil {
			if granted, ok := logs.allow(id, clk, lim.loose, n); ok {
				return granted
			}
		}
	}
	req, a := kernel.Request{Op: kernel.OpTake, N: n, Clock: clk}, kernel.Answer{}
	if !sp.applyLogged(id, lim, &req, &a, lim.word != nil) {
		sp.update(id, lim, &req, &a)
	}
	return a.Allowed
}

// allowWide is Allow for a state of several words. ok is false if the key is not in the
// tables.
func (sp *Tables) allowWide(clk *kernel.Timeline, id identity, n int) (granted, ok bool) {
	if sp.single {
		return false, false
	}
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	p, ok := t.find(id)
	if !ok {
		return false, false
	}
	_, granted, _ = sp.k.Allow(t.state(p), clk, n)
	return granted, true
}

// ApplyAs is Apply of an OpTake or OpPeek with the limit that has the given tag. It returns
// false if the key is not in the tables with that limit.
func (sp *Tables) ApplyAs(key string, tag any, req *kernel.Request, a *kernel.Answer) (ok bool) {
	id := sp.store.identify(key)
	t := sp.at(id)
	p, ok := t.find(id)
	if !ok {
		return false
	}
	lim := sp.limitAt(t, p)
	return lim.tag == tag && lim.apply(t.word(p), req, a)
}

// Apply applies req to the state of key, with the limit lim, and fills in the answer.
func (sp *Tables) Apply(key string, lim *Limit, req *kernel.Request, a *kernel.Answer) {
	sp.apply(sp.store.identify(key), lim, req, a)
}

// apply is Apply for the key with the given identity.
func (sp *Tables) apply(id identity, lim *Limit, req *kernel.Request, a *kernel.Answer) {
	fits := lim.places(req)
	if lim.word != nil && fits {
		t := sp.at(id)
		if p, ok := t.find(id); ok && (!sp.varies() || sp.limitAt(t, p) == lim) && lim.apply(t.word(p), req, a) {
			return
		}
	}
	if lim.word == nil && fits && sp.applyWide(id, req, a) {
		return
	}
	if sp.applyLogged(id, lim, req, a, lim.word != nil && fits) {
		return
	}
	sp.update(id, lim, req, a)
}

// applyWide is apply for a state of several words. It returns false if the key is not in the
// tables, or is to be in the logs.
func (sp *Tables) applyWide(id identity, req *kernel.Request, a *kernel.Answer) (ok bool) {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	p, ok := t.find(id)
	if ok {
		sp.base.step(t.state(p), req, a)
	}
	return ok && !waits(req, a)
}

// swap applies f, which reports whether it has changed the state that it is given, to a state of one
// word. It reads the clock itself. If the state was changed concurrently, it is called again with
// the new one. swap returns false if the state is Gone.
func (s *Store) swap(state *uint64, f func(st []uint64) (changed bool)) (ok bool) {
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

// An outcome is the result of an attempt to update.
type outcome int

const (
	updated  outcome = iota
	replaced         // the table was replaced or swept: try the update again
	noRoom           // the store is full
)

// insertLocked inserts id, with the limit lim, at p in t if req changes the state of a key never
// seen.
func (sh *shard) insertLocked(t *table, p place, id identity, lim *Limit, req *kernel.Request, a *kernel.Answer) outcome {
	sp := sh.space
	if sh.used >= t.most || sh.looks() {
		if now, _ := req.Now(); sh.makeRoomLocked(t, now) {
			return replaced
		}
	}
	st := t.state(p) // all zero; no other goroutine reads it until the slot is taken
	if !lim.step(st, req, a) {
		if sp.store.answers(req.Op) {
			return updated
		}
		return noRoom
	}
	if !sp.store.take(&sp.occupancy) {
		clear(st)
		return noRoom
	}
	sh.takeLocked(t, p, id, lim.number)
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

// backOff waits briefly after the tries-th failed swap, so that the goroutine that
// succeeded makes a few more decisions before the cache line moves to another core:
// moving it takes longer than deciding. BenchmarkHotKeyParallel measures the
// gain.
func backOff(tries int) {
	for i := range 2048 << min(tries, 3) {
		runtime.KeepAlive(i) // keeps the compiler from removing the loop
	}
}
