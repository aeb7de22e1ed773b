package memory

import (
	"math"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file and growth.go are the engine of the in-memory store for states
// of fixed width: all but those with a SlidingLog in them, which logs.go
// keeps. Here is how a key is found and decided on; there, how tables come and
// go.
//
// # Terms and layout
//
// A key is known by its identity (identity.go), two parts of hash that are not 0;
// the key itself is not kept.
//
// A space (one limiter's states) has shards, and a directory that leads to the
// table of each, by the low bits of the identity (directory.go). A shard with
// many keys is split (growth.go). A table is one slice of words without pointers, for the
// garbage collector to pass over. Three slots make a group:
//
//	words 0–2   the first parts of three identities, 64 bits each; 0 if
//	            nobody ever took the slot
//	words 3–4   the second parts, 32 bits each; 0 if the key was forgotten
//	words 5 …   the three states, one after the other
//
//	       ┌──────┬──────┬──────┬──────┬──────┬───────┬───────┬───────┐
//	group  │ id 0 │ id 1 │ id 2 │ 0, 1 │ 2, – │ st. 0 │ st. 1 │ st. 2 │
//	       └──────┴──────┴──────┴──────┴──────┴───────┴───────┴───────┘
//
// So with states of one word a group is a cache line, and what is asked of a key
// most often touches no more than that one. Keys are looked for from the group
// that the first part of their identity points to, proportionally, and on to the
// next until there is a slot that nobody ever took.
//
// # What is atomic
//
// A state of one word is changed by compare-and-swap and by nothing else; a
// denial only reads. Wider states are changed under the shard's lock.
//
// Guarantees, by number where the code relies on them:
//
//  1. Under the lock only, slots are taken, forgotten, and the table replaced,
//     with the shard's entries of the directory. Whoever has waited for the lock
//     looks into the directory again: the shard may have been split, and the
//     directory doubled. An old directory leads to tables that are or were those
//     of their shards, as an entry does that was read before it changed.
//  2. The first part in a slot changes once, from 0, and last: who sees it sees
//     the second and a state (or that it was forgotten). A slot is not used
//     again; it goes when the table is replaced.
//  3. gone in a state of one word is final: no compare-and-swap succeeds on it.
//     It is swapped in, under the lock, before a key is forgotten and before
//     its state is copied to another table. So no update is lost: it came
//     before the swap, and is in the value that was swapped out, or it fails,
//     and its caller starts over with the lock.
//  4. Whoever finds gone, or no identity, and wants to change something, takes
//     the lock and looks again in the table that is current then (lock does).
//  5. The clock is read after the state, and then the state is seen to be what
//     it was: by the compare-and-swap, or if nothing changes, by loading it once
//     more. So there was an instant at which the clock and the state were both
//     what the decision was made on, and it is as if it had been made then; in
//     particular not at an earlier time than the one that left the state (see
//     docs/design.md, Time). A mere no needs no second look: what a state denies
//     now, it denied when it was loaded, too.

const (
	groupSlots = 3
	groupHead  = 5 // words of a group before the states
)

// A table is what a shard holds at one time. Its words are atomic once it is the
// shard's, but for states of more than one.
type table struct {
	words  []uint64
	groups uint64
	size   uint64 // words of a group
	width  uint64 // words of a state
	most   uint64 // slots that may be taken; fewer than there are, or looking would not end
	shard  *shard
}

// A place is a slot of a table: the first word of its group, and which of the
// three it is.
type place struct{ group, slot uint64 }

// A shard is one part of a space. Where words have 64 bits, it is as large as a
// cache line, so that neighbours' locks are apart.
type shard struct {
	space *Tables
	first uint32 // of its entries in the directory

	depth   uint32     // those after it are 2 to the power of depth apart
	mu      sync.Mutex // protects depth and what follows, and as said above
	used    uint64     // slots taken in the table, those of forgotten keys included
	keys    uint64     // held
	inserts uint64     // so far
	hand    uint64     // the slot at which the next eviction looks first

	_ [64 - 7*8]byte
}

// Tables are the states of one limiter, if they are of fixed width.
type Tables struct {
	occupancy
	store *Store
	over  overflow
	k     *kernel.Compiled
	word  kernel.Word // k's, if a state is one word
	width uint64      // words of a state

	directory[table]
}

func newTables(s *Store, k *kernel.Compiled) *Tables {
	sp := &Tables{store: s, over: newOverflow(s, k), k: k, word: k.Word(), width: uint64(k.Width())}
	sh := &shard{space: sp}
	sp.init(s, min(splitAt, max(splitEarlyAt, splitWords/sp.width)), sh, sh.newTable(0))
	return sp
}

// lock locks the shard of id, and returns its table.
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

// find returns the place of id, or if it has none, the one that it would take.
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

// secondWord returns the word with the second part of the identity in a place,
// and how far up in it that is.
func (t *table) secondWord(p place) (word *uint64, shift uint64) {
	return &t.words[p.group+groupSlots+p.slot/2], p.slot % 2 * 32
}

func (t *table) second(p place) uint32 {
	word, shift := t.secondWord(p)
	return uint32(atomic.LoadUint64(word) >> shift)
}

// setSecond changes the second part. The caller has the lock.
func (t *table) setSecond(p place, lo uint32) {
	word, shift := t.secondWord(p)
	atomic.StoreUint64(word, *word&^(math.MaxUint32<<shift)|uint64(lo)<<shift)
}

// word returns the state of one word in a place.
func (t *table) word(p place) *uint64 { return &t.words[p.group+groupHead+p.slot] }

// state returns the state in a place.
func (t *table) state(p place) []uint64 {
	from := p.group + groupHead + p.slot*t.width
	return t.words[from : from+t.width : from+t.width]
}

// id returns the identity in a place. The caller has the lock.
func (t *table) id(p place) identity { return identity{t.words[p.group+p.slot], t.second(p)} }

// A change looks at a state, and may change it in place: then it returns true.
// It reads the clock itself, and may be called again with another state if that
// came to change meanwhile.
type change func(st []uint64) (changed bool)

// Allow decides on n events of key, from 1 to the limit. It is Apply for those who
// want to know nothing else.
func (sp *Tables) Allow(clk *kernel.Timeline, key string, n int) bool {
	id := sp.store.identify(key)
	if sp.word != nil {
		t := sp.at(id)
		if p, ok := t.find(id); ok {
			state, renewed := t.word(p), false
			for tries := 0; ; tries++ {
				word := atomic.LoadUint64(state)
				if word == kernel.Gone {
					break // guarantee 4
				}
				now, _ := clk.Now()
				next, granted := sp.word.Decide(word, now, n)
				if granted && atomic.CompareAndSwapUint64(state, word, next) {
					return true // guarantee 5
				}
				if !granted && (renewed || !clk.Renew()) {
					return false // guarantee 5
				}
				if renewed = !granted; granted {
					backOff(tries)
				}
			}
		}
	}
	return sp.allowLocked(id, clk, n)
}

// allowLocked is Allow, but takes the lock.
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
	id := sp.store.identify(key)
	step := func(st []uint64) (changed bool) {
		_, changed = sp.k.Step(st, req, a)
		return changed
	}
	if sp.word != nil {
		tbl := sp.at(id)
		if p, ok := tbl.find(id); ok && sp.swap(tbl.word(p), step) {
			return
		}
	}
	if idle, full := sp.update(id, req, step); full {
		sp.over.apply(sp.k, req, idle, a)
	}
}

// swap applies f to a state of one word, unless that is gone.
func (sp *Tables) swap(state *uint64, f change) (ok bool) {
	blank := sp.store.blank()
	defer sp.store.blanks.Put(blank)
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

// update applies f to the state of id under the lock, and takes a slot for it if
// need be. If the store is full then and may not forget any key, it returns
// when one may be idle.
func (sp *Tables) update(id identity, req *kernel.Request, f change) (idle kernel.Instant, full bool) {
	if sp.tryAll(id, req, f) {
		return 0, false
	}
	return sp.store.admit(req, candidate{sh: sp.at(id).shard, id: id}, func() bool { return sp.tryAll(id, req, f) })
}

// tryAll tries an update until it is done, or the store is full.
func (sp *Tables) tryAll(id identity, req *kernel.Request, f change) bool {
	for {
		switch sp.tryUpdate(id, req, f) {
		case updated:
			return true
		case noRoom:
			return false
		}
	}
}

// tryUpdate takes the lock for updateLocked. It gives it back even if the user's
// clock panics.
func (sp *Tables) tryUpdate(id identity, req *kernel.Request, f change) outcome {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	return sh.updateLocked(t, id, req, f)
}

// An outcome is what came of an update.
type outcome int

const (
	updated  outcome = iota
	replaced         // the table was, and the update is to be tried again
	noRoom           // the store is full
)

// updateLocked tries an update in the table that id belongs in.
func (sh *shard) updateLocked(t *table, id identity, req *kernel.Request, f change) outcome {
	sp := sh.space
	p, ok := t.find(id)
	switch {
	case ok && sp.word != nil:
		sp.swap(t.word(p), f) // it is not gone: that takes the lock
		return updated
	case ok:
		f(t.state(p))
		return updated
	case sh.used >= t.most:
		now, _ := req.Now()
		sh.replaceLocked(t, now, 1)
		return replaced
	}
	st := t.state(p) // which is zero, and nobody looks at before the slot is taken
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
	t.setSecond(p, id.lo)
	atomic.StoreUint64(&t.words[p.group+p.slot], id.hi) // guarantee 2
	sh.used++
	sh.keys++
	sh.inserts++
	sp.store.keepTime(req.Clock)
	return updated
}

// forgetLocked forgets the key in a place. A state of one word is gone by then.
func (sh *shard) forgetLocked(t *table, p place) {
	t.setSecond(p, 0)
	sh.keys--
	sh.space.store.leave(&sh.space.occupancy)
}

// Reset forgets key.
func (sp *Tables) Reset(key string) {
	id := sp.store.identify(key)
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	if p, ok := t.find(id); ok {
		if sp.word != nil {
			atomic.StoreUint64(t.word(p), kernel.Gone) // guarantee 3
		}
		sh.forgetLocked(t, p)
	}
}

// backOff waits a moment after a swap has failed for the tries-th time, so that
// whoever was faster has the cache line for a few more decisions before it moves
// on: to move it takes longer than to decide. BenchmarkHotKeyAllowedParallel
// shows what it is good for.
func backOff(tries int) {
	for i := range 2048 << min(tries, 3) {
		runtime.KeepAlive(i) // and so does not drop the loop
	}
}
