package memory

import (
	"math/bits"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// Logs are the states of one limiter, if they grow with use: those with a
// SlidingLog in them, or WithLimits. Like tables, they know a key by its identity,
// and have a directory and shards that are split. Unlike them, they hold pointers,
// and are looked at under the shard's lock only, so that an entry can be moved.
type Logs struct {
	occupancy
	store *Store
	over  overflow
	directory[logShard]
}

func newLogs(s *Store) *Logs {
	sp := &Logs{store: s, over: newOverflow(s, nil)}
	sh := &logShard{space: sp}
	sp.init(s, logSplitAt, sh, sh)
	return sp
}

// Apply applies req to the state of key, with k, and fills in the answer.
func (sp *Logs) Apply(key string, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) {
	if sp.over.cancels(k, req, a) {
		return
	}
	id := sp.store.identify(key)
	try := func() (ok bool) {
		for {
			if came := sp.apply(id, k, req, a); came != replaced {
				return came == updated
			}
		}
	}
	if try() {
		return
	}
	if idle, full := sp.store.admit(req, candidate{sh: sp.at(id), id: id}, try); full {
		sp.over.apply(k, req, idle, a)
	}
}

// lock locks the shard of id, and returns it.
func (sp *Logs) lock(id identity) *logShard {
	for {
		sh := sp.at(id)
		sh.mu.Lock()
		if sp.at(id) == sh {
			return sh
		}
		sh.mu.Unlock() // it was split meanwhile
	}
}

// apply takes the lock for applyLocked. It gives it back even if the user's clock
// panics.
func (sp *Logs) apply(id identity, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) outcome {
	sh := sp.lock(id)
	defer sh.mu.Unlock()
	return sh.applyLocked(id, k, req, a)
}

// Reset forgets key.
func (sp *Logs) Reset(key string) {
	id := sp.store.identify(key)
	sh := sp.lock(id)
	defer sh.mu.Unlock()
	if i, ok := sh.find(id); ok {
		sh.removeLocked(i)
	}
}

// A logShard is a part of the states under one lock. Its slots are an open
// addressing table: an entry lies at the slot that its identity points to,
// proportionally, or in one of those after it, with no free one between. There is
// always a free one, or looking would not end; a shard without keys has no slots.
type logShard struct {
	space *Logs
	first uint32 // of its entries in the directory

	depth   uint32     // those after it are 2 to the power of depth apart
	mu      sync.Mutex // protects depth and what follows
	slots   []logEntry
	keys    uint64 // held
	hand    int    // the slot to be looked at next for being idle
	inserts uint64 // so far
	words   uint64 // of the states
}

const (
	// logSplitAt is the most keys of a shard, so that it takes a fraction of a
	// millisecond to go through them.
	logSplitAt = 1024

	// sweepSlots is how many slots are looked at for idle keys when a new key comes.
	// Some are free; more than half are not.
	sweepSlots = 8

	// sparse is the share of its slots below which a table is replaced by a smaller
	// one. One that was replaced has at least minLoad.
	sparse = 0.15
)

// A logEntry is a key, its state, and the transition that left it.
type logEntry struct {
	id    identity // hi is 0 if the slot is free
	by    *kernel.Compiled
	state []uint64
}

func (e *logEntry) free() bool { return e.id.hi == 0 }

func (e *logEntry) fresh() kernel.Instant { return e.by.Fresh(e.state) }

// mostOf returns how many of some slots may be taken.
func mostOf(slots int) uint64 { return uint64(float64(slots) * maxLoad) }

// home returns the slot that an identity points to.
func (sh *logShard) home(id identity) int {
	i, _ := bits.Mul64(id.hi, uint64(len(sh.slots)))
	return int(i)
}

func (sh *logShard) after(i int) int {
	if i++; i == len(sh.slots) {
		return 0
	}
	return i
}

// find returns the slot of id, or if it has none, the one that it would take.
func (sh *logShard) find(id identity) (i int, ok bool) {
	if len(sh.slots) == 0 {
		return 0, false
	}
	for i = sh.home(id); ; i = sh.after(i) {
		switch e := &sh.slots[i]; {
		case e.free():
			return i, false
		case e.id == id:
			return i, true
		}
	}
}

// applyLocked applies req to the key of id. If that needs a place for a new key and
// there is none, it does nothing and returns noRoom. If it returns replaced, it is
// to be tried again.
func (sh *logShard) applyLocked(id identity, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) outcome {
	sp := sh.space
	i, ok := sh.find(id)
	if ok {
		e := &sh.slots[i]
		by, st, _ := k.StepFrom(e.by, e.state, req, a)
		sh.words += uint64(cap(st)) - uint64(cap(e.state))
		e.state, e.by = st, by
		return updated
	}
	if sh.keys >= mostOf(len(sh.slots)) {
		now, _ := req.Now()
		sh.replaceLocked(now, 1)
		return replaced
	}
	st, changed := k.Step(k.NewState(), req, a)
	if !changed {
		if sp.store.answers(req.Op) {
			return updated
		}
		return noRoom
	}
	now, _ := req.Now()
	if sh.sweepLocked(now) {
		return replaced // and so is the slot, perhaps
	}
	if !sp.store.take(&sp.occupancy) {
		return noRoom
	}
	i, _ = sh.find(id)
	sh.slots[i] = logEntry{id, k, st}
	sh.keys++
	sh.inserts++
	sh.words += uint64(cap(st))
	sp.store.keepTime(req.Clock)
	return updated
}

// sweepLocked looks at a few slots, and forgets keys that are idle. If few are left,
// it replaces the table, and returns true.
func (sh *logShard) sweepLocked(now kernel.Instant) (replaced bool) {
	for range sweepSlots {
		if sh.hand >= len(sh.slots) {
			sh.hand = 0
		}
		if e := &sh.slots[sh.hand]; !e.free() && e.fresh() <= now {
			sh.removeLocked(sh.hand) // and look next at what takes its place
		} else {
			sh.hand++
		}
	}
	if float64(sh.keys+1) < sparse*float64(len(sh.slots)) {
		sh.replaceLocked(now, 1)
		return true
	}
	return false
}

// removeLocked forgets the key in a slot, and moves those after it that would not be
// found any more.
func (sh *logShard) removeLocked(i int) {
	sh.forgotLocked(&sh.slots[i])
	for j := sh.after(i); !sh.slots[j].free(); j = sh.after(j) {
		home := sh.home(sh.slots[j].id)
		between := i < home && home <= j // so that it is found without going past i
		if i > j {
			between = i < home || home <= j
		}
		if !between {
			sh.slots[i] = sh.slots[j]
			i = j
		}
	}
	sh.slots[i] = logEntry{}
}

// forgotLocked counts a key out.
func (sh *logShard) forgotLocked(e *logEntry) {
	sh.keys--
	sh.words -= uint64(cap(e.state))
	sh.space.store.leave(&sh.space.occupancy)
}

// replaceLocked replaces the table by one with the keys that are in use, and room
// for some more, or by two if that is many.
func (sh *logShard) replaceLocked(now kernel.Instant, more uint64) {
	old := sh.slots
	for i := range old {
		if e := &old[i]; !e.free() && e.fresh() <= now {
			sh.forgotLocked(e)
			*e = logEntry{}
		}
	}
	if sh.space.splits(sh.keys, sh.depth) {
		sh.splitLocked(more)
		return
	}
	sh.resizeLocked(more)
	for i := range old {
		sh.putLocked(&old[i])
	}
}

// resizeLocked gives the shard a new table, without entries.
func (sh *logShard) resizeLocked(more uint64) {
	sh.slots, sh.hand = nil, 0
	if n := sh.keys + more; n > 0 {
		sh.slots = make([]logEntry, 2+int(float64(n)/loadOf(sh.first)))
	}
}

// putLocked puts an entry of an old table into the new one.
func (sh *logShard) putLocked(e *logEntry) {
	if !e.free() {
		i, _ := sh.find(e.id)
		sh.slots[i] = *e
	}
}

// splitLocked gives half of the entries in the directory, and the keys that belong
// there, to a new shard.
func (sh *logShard) splitLocked(more uint64) {
	bit, old := uint64(1)<<sh.depth, sh.slots
	sh.depth++
	other := &logShard{space: sh.space, first: sh.first | uint32(bit), depth: sh.depth}
	moves := func(e *logEntry) bool { return !e.free() && e.id.entry()&bit != 0 }
	for i := range old {
		if e := &old[i]; moves(e) {
			other.keys++
			other.words += uint64(cap(e.state))
		}
	}
	sh.keys -= other.keys
	sh.words -= other.words
	sh.resizeLocked(more)
	other.resizeLocked(more)
	for i := range old {
		if e := &old[i]; moves(e) {
			other.putLocked(e)
		} else {
			sh.putLocked(e)
		}
	}
	sh.space.add(other)
	sh.space.publish(other.first, other.depth, other) // when it is complete; all others of sh stay as they are
}

func (sh *logShard) offer(e *eviction, most int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	most = min(most, int(sh.keys))
	for looks := len(sh.slots); looks > 0 && most > 0 && !e.done; {
		if sh.hand >= len(sh.slots) {
			sh.hand = 0
		}
		entry := &sh.slots[sh.hand]
		if entry.free() {
			sh.hand++
			looks--
			continue
		}
		most--
		if v := (candidate{sh: sh, id: entry.id, fresh: entry.fresh()}); v.fresh <= e.now {
			sh.removeLocked(sh.hand) // and look next at what takes its place
			e.forgot()
		} else {
			e.look(entry.by, entry.state, v)
			sh.hand++
			looks--
		}
	}
}

func (sh *logShard) evict(v candidate, now kernel.Instant, room int) bool {
	sp := sh.space
	sh = sp.lock(v.id) // it may have come to another by now
	defer sh.mu.Unlock()
	i, ok := sh.find(v.id)
	if !ok {
		return false
	}
	e := &sh.slots[i]
	idle := e.fresh() <= now
	if !idle && spares(e.by.Room(e.state, now), room) {
		return false
	}
	sh.removeLocked(i)
	sp.store.lost(idle)
	return true
}

// shrink forgets idle keys, and moves the others to tables of their size.
func (sp *Logs) shrink() {
	for _, e := range sp.list() {
		e.(*logShard).shrink()
	}
}

func (sh *logShard) shrink() {
	now := sh.space.store.now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.replaceLocked(now, 0)
}

// count adds up what the shards hold.
func (sp *Logs) count(stats *Stats) {
	sp.over.count(stats)
	stats.Bytes += sizeOf[Logs]() + sp.bytes()
	for _, e := range sp.list() {
		sh := e.(*logShard)
		sh.mu.Lock()
		stats.Keys += int(sh.keys)
		stats.Inserts += sh.inserts
		stats.Bytes += sizeOf[logShard]() + uint64(len(sh.slots))*sizeOf[logEntry]() + 8*sh.words
		sh.mu.Unlock()
	}
}

func (sp *Logs) evictees() []evictee { return sp.list() }
