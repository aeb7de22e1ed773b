package ratelimit

import (
	"context"
	"iter"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
)

// This file is the engine of the in-memory store for states of fixed width: all
// but those with a SlidingLog in them, which memorylogs.go keeps.
//
// # Terms and layout
//
// A key is known by its identity, 128 bits of hash under secrets that each
// store draws for itself; the key itself is not kept. One bit of each half is
// set so that it differs from 0. With 126 left, the chance that any two of 10⁸
// keys share an identity is below 10⁻²².
//
// A space (one limiter's states) has a power of two of shards, chosen by the
// low bits of the identity's second half. A shard has a table: one slice of
// words without pointers, for the garbage collector to pass over. A place in it
// is a stride of words:
//
//	word 0      first half of the identity; 0 if nobody was ever here
//	word 1      second half; 0 if the key was forgotten
//	word 2 …    the state
//
//	         ┌────────┬────────┬────────┐┌────────┬────────┬────────┐
//	table    │ id hi  │ id lo  │ state  ││   0    │   0    │   0    │ …
//	         └────────┴────────┴────────┘└────────┴────────┴────────┘
//
// Keys are looked for from the place that the first half of their identity
// points to, proportionally, and on to the next until one was never used.
//
// # What is atomic
//
// A state of one word is changed by compare-and-swap and by nothing else; a
// denial only reads. Wider states are changed under the shard's lock.
//
// Guarantees, by number where the code relies on them:
//
//  1. Under the lock only, places are taken, forgotten, and the table replaced.
//  2. Word 0 of a place changes once, from 0, and last: who sees an identity's
//     first half sees the second and a state (or that it was forgotten).
//     A place is not used again; it goes when the table is replaced.
//  3. gone in a state of one word is final: no compare-and-swap succeeds on it.
//     It is swapped in, under the lock, before a key is forgotten and before
//     its state is copied to another table. So no update is lost: it came
//     before the swap, and is in the value that was swapped out, or it fails,
//     and its caller starts over with the lock.
//  4. Whoever finds gone, or no identity, and wants to change something, takes
//     the lock and looks again in the table that is current then.
//  5. The clock is read after the state, and then the state is seen to be what
//     it was: by the compare-and-swap, or if nothing changes, by loading it once
//     more. So there was an instant at which the clock and the state were both
//     what the decision was made on, and it is as if it had been made then; in
//     particular not at an earlier time than the one that left the state (see
//     docs/design.md, Time).
//
// # Growth
//
// When more than maxLoad of the places are taken, the table is replaced by one
// of which minLoad is taken, and keys that are idle are not copied: that is all
// there is of a sweeper. A table grows by a fifth each time, not by two, so that
// it never wastes half of the memory, and shrinks likewise.

// gone is a state that no kernel makes: the latest instants, in the finest
// units of one word, lie below it.
const gone = math.MaxUint64

const (
	minLoad = 0.70
	maxLoad = 0.84
	idWords = 2
)

// An identity stands for a key.
type identity struct{ hi, lo uint64 }

// A table is what a shard holds at one time; its words are atomic if states are
// of one word.
type table struct {
	words  []uint64
	places uint64
}

// A shard is one part of a space. It is as large as a cache line, so that
// neighbours' locks are apart.
type shard struct {
	table atomic.Pointer[table]
	mu    sync.Mutex // protects used and hand, and as said above
	used  uint64     // places taken in the table, forgotten ones included
	hand  uint64     // where the next eviction looks
	space *tables

	_ [64 - 5*8]byte
}

// start returns the word at which to begin looking for id.
func (t *table) start(id identity, stride uint64) uint64 {
	place, _ := bits.Mul64(id.hi, t.places)
	return place * stride
}

// find returns the first word of the place of id.
func (t *table) find(id identity, stride uint64) (at uint64, ok bool) {
	for at = t.start(id, stride); ; {
		switch atomic.LoadUint64(&t.words[at]) {
		case 0:
			return at, false
		case id.hi:
			if atomic.LoadUint64(&t.words[at+1]) == id.lo {
				return at, true
			}
		}
		if at += stride; at == uint64(len(t.words)) {
			at = 0
		}
	}
}

// tables are the states of one limiter, if they are of fixed width.
type tables struct {
	store  *MemoryStore
	over   overflow
	t      *Transition
	time   atomic.Pointer[timeline] // the one of the first key
	word   wordKernel               // t's, if a state is one word
	stride uint64                   // words of a place
	shards []shard                  // a power of two

	// empty is the table of every shard that has no keys. It has one place,
	// which is never taken.
	empty *table

	// blanks holds states for transitions to work on: what is handed to a
	// kernel must live on the heap.
	blanks sync.Pool
}

// A wordKernel is one whose state may be a single word, which it can then
// decide on without touching memory.
type wordKernel interface {
	kernel

	// decide is ready and spend in one: it returns the instant at which n
	// events are granted, and if that is now, the state after them.
	decide(word uint64, now instant, n int) (next uint64, at instant)
}

func newTables(s *MemoryStore, t *Transition) *tables {
	width := t.kernel.width()
	sp := &tables{store: s, over: newOverflow(s, t), t: t, stride: idWords + uint64(width)}
	if width == 1 {
		sp.word, _ = t.kernel.(wordKernel)
	}
	sp.blanks.New = func() any { st := make([]uint64, width); return &st }
	sp.empty = &table{make([]uint64, sp.stride), 1}
	sp.shards = make([]shard, s.shardCount())
	for i := range sp.shards {
		sh := &sp.shards[i]
		sh.space = sp
		sh.table.Store(sp.empty)
	}
	return sp
}

// newTable returns a table for so many keys.
func newTable(keys, stride uint64) *table {
	places := uint64(float64(keys)/minLoad) + 2
	return &table{make([]uint64, places*stride), places}
}

func (sp *tables) shard(id identity) *shard {
	return &sp.shards[id.lo&uint64(len(sp.shards)-1)]
}

// allow decides on n ≥ 1 events of key. It is Apply for those who want to know
// nothing else.
func (sp *tables) allow(tl *timeline, key string, n int) bool {
	id := sp.store.identify(key)
	if sp.word != nil {
		t := sp.shard(id).table.Load()
		if at, ok := t.find(id, sp.stride); ok {
			state := &t.words[at+idWords]
			for word := atomic.LoadUint64(state); word != gone; word = atomic.LoadUint64(state) {
				now, _ := tl.now()
				next, at := sp.word.decide(word, now, n)
				if at > now && atomic.LoadUint64(state) == word { // guarantee 5
					return false
				}
				if at <= now && atomic.CompareAndSwapUint64(state, word, next) {
					return true
				}
			}
		}
	}
	return sp.apply(id, sp.t, &Request{Op: OpTake, N: n, timeline: tl, brief: true}).Decision.Allowed
}

// Apply implements [States].
func (sp *tables) Apply(_ context.Context, key string, t *Transition, req Request) (Result, error) {
	return sp.apply(sp.store.identify(key), t, &req), nil
}

func (sp *tables) apply(id identity, t *Transition, req *Request) Result {
	if res, ok := sp.over.cancels(t, req); ok {
		return res
	}
	sh := sp.shard(id)
	if sp.word != nil {
		if res, ok := sh.swap(id, t, req); ok {
			return res
		}
	}
	for {
		sh.mu.Lock()
		res, done := sh.applyLocked(id, t, req)
		sh.mu.Unlock()
		if done {
			return res
		}
		now, _ := req.now()
		if freed, idle := sp.store.makeRoom(now); !freed {
			return sp.over.apply(t, req, idle)
		}
	}
}

// swap applies req to the state of id without the lock, if it is there, or if
// that changes nothing.
func (sh *shard) swap(id identity, t *Transition, req *Request) (res Result, ok bool) {
	blank := sh.space.blanks.Get().(*[]uint64)
	defer sh.space.blanks.Put(blank)
	st := *blank
	tbl := sh.table.Load()
	at, found := tbl.find(id, sh.space.stride)
	if !found {
		clear(st)
		_, changed, res := t.step(st, req)
		if changed || sh.table.Load() != tbl || !sh.space.store.answers(req.Op) {
			return Result{}, false
		}
		_, found = tbl.find(id, sh.space.stride) // guarantee 5
		return res, !found
	}
	state := &tbl.words[at+idWords]
	for {
		word := atomic.LoadUint64(state)
		if word == gone {
			return Result{}, false // guarantee 4
		}
		st[0] = word
		_, changed, res := t.step(st, req)
		if !changed && atomic.LoadUint64(state) == word || changed && atomic.CompareAndSwapUint64(state, word, st[0]) {
			return res, true // guarantee 5
		}
	}
}

// applyLocked applies req to the state of id, and takes a place for it if need
// be. If the store is full then, it does nothing and returns false.
func (sh *shard) applyLocked(id identity, t *Transition, req *Request) (res Result, done bool) {
	sp := sh.space
	if at, ok := sh.table.Load().find(id, sp.stride); ok {
		if sp.word != nil {
			return sh.swap(id, t, req) // it is not gone: that takes the lock
		}
		_, _, res = t.step(sh.table.Load().state(at, sp.stride), req)
		return res, true
	}
	if sh.used >= sh.table.Load().limit() {
		now, _ := req.now()
		sh.replaceLocked(now, 1)
	}
	blank := sp.blanks.Get().(*[]uint64)
	defer sp.blanks.Put(blank)
	clear(*blank)
	_, changed, res := t.step(*blank, req)
	if !changed {
		return res, sp.store.answers(req.Op)
	}
	if !sp.store.takeSeat() {
		return Result{}, false
	}
	sh.placeLocked(sh.table.Load(), id, *blank)
	if sp.time.Load() == nil {
		sp.time.Store(req.timeline)
	}
	return res, true
}

// limit returns how many places may be taken.
func (t *table) limit() uint64 { return uint64(float64(t.places) * maxLoad) }

// state returns the words of the state in the place that begins at a word.
func (t *table) state(at, stride uint64) []uint64 {
	return t.words[at+idWords : at+stride : at+stride]
}

// placeLocked takes a place in t for id, which is not in it. Guarantee 2.
func (sh *shard) placeLocked(t *table, id identity, st []uint64) {
	at, _ := t.find(id, sh.space.stride)
	for i, word := range st {
		atomic.StoreUint64(&t.words[at+idWords+uint64(i)], word)
	}
	atomic.StoreUint64(&t.words[at+1], id.lo)
	atomic.StoreUint64(&t.words[at], id.hi)
	sh.used++
}

// replaceLocked replaces the table by one with the keys that are in use, and
// room for some more.
func (sh *shard) replaceLocked(now instant, more uint64) {
	sp, old := sh.space, sh.table.Load()
	// Keys that are used meanwhile may be more than those in use now, so this
	// is where the new table begins, and it may have to be replaced itself.
	blank := sp.blanks.Get().(*[]uint64)
	defer sp.blanks.Put(blank)
	live := uint64(0)
	for at := range old.held(sp.stride) {
		if sp.t.kernel.fresh(sh.read(old, at, *blank)) > now {
			live++
		}
	}
	next := sp.empty
	if live+more > 0 {
		next = newTable(live+more, sp.stride)
	}
	sh.used = 0
	dropped := int64(0)
	for at := range old.held(sp.stride) {
		st := sh.take(old, at, *blank)
		if sp.t.kernel.fresh(st) <= now {
			dropped++
			continue
		}
		if sh.used >= next.limit() {
			next = sh.regrown(next)
		}
		sh.placeLocked(next, old.id(at), st)
	}
	sh.table.Store(next)
	sp.store.keys.Add(-dropped)
}

// regrown returns a larger copy of a table that nobody else has seen.
func (sh *shard) regrown(t *table) *table {
	larger := newTable(2*sh.used, sh.space.stride)
	sh.used = 0
	for at := range t.held(sh.space.stride) {
		sh.placeLocked(larger, t.id(at), t.state(at, sh.space.stride))
	}
	return larger
}

// held iterates over the places that hold a key. The caller has the lock.
func (t *table) held(stride uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for at := uint64(0); at < uint64(len(t.words)); at += stride {
			if t.words[at] != 0 && t.words[at+1] != 0 && !yield(at) {
				return
			}
		}
	}
}

func (t *table) id(at uint64) identity { return identity{t.words[at], t.words[at+1]} }

// read returns the state in a place; if it may change meanwhile, a copy in st.
func (sh *shard) read(t *table, at uint64, st []uint64) []uint64 {
	if sh.space.word == nil {
		return t.state(at, sh.space.stride)
	}
	st[0] = atomic.LoadUint64(&t.words[at+idWords])
	return st
}

// take is read, and makes sure that the state does not change any more.
func (sh *shard) take(t *table, at uint64, st []uint64) []uint64 {
	if sh.space.word == nil {
		return t.state(at, sh.space.stride)
	}
	st[0] = atomic.SwapUint64(&t.words[at+idWords], gone) // guarantee 3
	return st
}

// forgetLocked forgets the key in a place, whose state was taken.
func (sh *shard) forgetLocked(t *table, at uint64) {
	atomic.StoreUint64(&t.words[at+1], 0)
	sh.space.store.keys.Add(-1)
}

// Reset implements [States].
func (sp *tables) Reset(_ context.Context, key string) error {
	id := sp.store.identify(key)
	sh := sp.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.table.Load()
	if at, ok := t.find(id, sp.stride); ok {
		if sp.word != nil {
			atomic.StoreUint64(&t.words[at+idWords], gone) // guarantee 3
		}
		sh.forgetLocked(t, at)
	}
	return nil
}

func (sp *tables) shrink() {
	tl := sp.time.Load()
	if tl == nil {
		return // there was never a key
	}
	for i := range sp.shards {
		sh := &sp.shards[i]
		now, _ := tl.now()
		sh.mu.Lock()
		sh.replaceLocked(now, 0)
		sh.mu.Unlock()
	}
}

// bytes returns the memory of the shards and their tables.
func (sp *tables) bytes() (n uint64) {
	for i := range sp.shards {
		n += 64 + 8*uint64(len(sp.shards[i].table.Load().words))
	}
	return n
}

// takeIf is take for a state that is still st, and reports whether it was.
func (sh *shard) takeIf(t *table, at uint64, st []uint64) bool {
	if sh.space.word != nil {
		return atomic.CompareAndSwapUint64(&t.words[at+idWords], st[0], gone)
	}
	return true // whoever would change it waits for the lock
}

// offer shows keys to an eviction, from where the last one stopped.
func (sh *shard) offer(e *eviction) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k, t := sh.space.t.kernel, sh.table.Load()
	blank := sh.space.blanks.Get().(*[]uint64)
	defer sh.space.blanks.Put(blank)
	for range t.places {
		if sh.hand += sh.space.stride; sh.hand >= uint64(len(t.words)) {
			sh.hand = 0
		}
		at := sh.hand
		if t.words[at] == 0 || t.words[at+1] == 0 {
			continue
		}
		st := sh.read(t, at, *blank)
		v := victim{sh: sh, id: t.id(at), room: k.room(st, e.now), fresh: k.fresh(st)}
		if v.fresh <= e.now && sh.takeIf(t, at, st) {
			sh.forgetLocked(t, at)
			e.forgot()
		} else {
			e.look(v)
		}
		if e.done {
			return
		}
	}
}

// evict forgets v unless its loss forgives more by now.
func (sh *shard) evict(v victim, now instant) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.table.Load()
	at, ok := t.find(v.id, sh.space.stride)
	if !ok {
		return false
	}
	blank := sh.space.blanks.Get().(*[]uint64)
	defer sh.space.blanks.Put(blank)
	st := sh.read(t, at, *blank)
	if sh.space.t.kernel.room(st, now) < v.room || !sh.takeIf(t, at, st) {
		return false
	}
	sh.forgetLocked(t, at)
	return true
}

// evictees returns the shards, for evictions to choose from.
func (sp *tables) evictees() (all []evictee) {
	for i := range sp.shards {
		all = append(all, &sp.shards[i])
	}
	return all
}
