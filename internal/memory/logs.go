package memory

import (
	"math/bits"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// Logs is a space for states that grow with use, or whose limits vary by key: those
// with a SlidingLog in them, or WithLimits. As in Tables, a key is known by its
// identity, and a directory divides the space into shards that are split. Unlike in
// Tables, entries contain pointers, and are accessed only under the shard's lock, so
// that they can be moved.
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

// Apply applies req to the state of key, with the kernel k, and fills in the answer.
func (sp *Logs) Apply(key string, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) {
	if sp.over.cancels(k, req, a) {
		return
	}
	id := sp.store.identify(key)
	try := func() (ok bool) {
		for {
			if out := sp.apply(id, k, req, a); out != replaced {
				return out == updated
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

// Allow reports whether n events of key are granted, 1 ≤ n ≤ limit. It is a faster
// Apply for callers that need nothing else.
func (sp *Logs) Allow(clk *kernel.Timeline, key string, k *kernel.Compiled, n int) bool {
	id := sp.store.identify(key)
	if granted, ok := sp.allow(id, clk, k, n); ok {
		return granted
	}
	req, a := kernel.Request{Op: kernel.OpTake, N: n, Clock: clk}, kernel.Answer{}
	sp.Apply(key, k, &req, &a)
	return a.Allowed
}

// allow is Allow for a key that the space has a state for, which k left. Otherwise, ok is
// false.
func (sp *Logs) allow(id identity, clk *kernel.Timeline, k *kernel.Compiled, n int) (granted, ok bool) {
	sh := sp.lock(id)
	defer sh.mu.Unlock()
	i, ok := sh.find(id)
	if !ok || sh.slots[i].by != k {
		return false, false
	}
	e := &sh.slots[i]
	st, granted, _ := k.Allow(e.state, clk, n)
	sh.words += uint64(cap(st)) - uint64(cap(e.state))
	e.state = st
	return granted, true
}

// apply calls applyLocked under the lock, which it releases even if the user's clock
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

// A logShard is one part of a space, with its own lock. Its slots are an
// open-addressing table. An entry lies at the slot selected by its identity, in
// proportion to its range, or in a later one, with no free slot between. There is
// always a free slot, so that every search ends; a shard without keys has no slots at
// all.
type logShard struct {
	space *Logs
	first uint32 // index of its first directory entry

	depth   uint32     // its directory entries are 1<<depth apart
	mu      sync.Mutex // protects depth and the fields below
	slots   []logEntry
	keys    uint64 // keys held
	next    int    // the slot where the next eviction starts
	inserts uint64 // keys inserted so far
	words   uint64 // words of all states
	swept   uint64 // the instant of the last sweep
}

// logSplitAt is the most keys of a shard, chosen so that visiting all of them takes a
// fraction of a millisecond.
const logSplitAt = 1024

// A logEntry is a key, its state, and the kernel that left the state.
type logEntry struct {
	id    identity // hi is 0 if the slot is free
	by    *kernel.Compiled
	state []uint64
}

func (e *logEntry) free() bool { return e.id.hi == 0 }

func (e *logEntry) fresh() kernel.Instant { return e.by.Fresh(e.state) }

// mostOf returns how many of the given number of slots may be taken.
func mostOf(slots int) uint64 { return uint64(float64(slots) * maxLoad) }

// home returns the slot selected by an identity.
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

// find returns the slot of id or, if id is not in the shard, the slot for inserting it.
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

// applyLocked applies req to the state of id. If that takes a place for a new key and
// the store has none, it changes nothing and returns noRoom. If it returns replaced,
// the caller tries again.
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
	if sh.keys >= mostOf(len(sh.slots)) || sh.inserts%sweepInserts == sweepInserts-1 {
		if now, _ := req.Now(); sh.makeRoomLocked(now) {
			return replaced
		}
	}
	st, changed := k.Step(k.NewState(), req, a)
	if !changed {
		if sp.store.answers(req.Op) {
			return updated
		}
		return noRoom
	}
	if !sp.store.take(&sp.occupancy) {
		return noRoom
	}
	sh.slots[i] = logEntry{id, k, st}
	sh.keys++
	sh.inserts++
	sh.words += uint64(cap(st))
	sp.store.keepTime(req.Clock)
	return updated
}

// makeRoomLocked sweeps the shard if that is due, and replaces the table if it is full
// or, after a sweep, sparse. It returns true if it did any of this. See growth.go.
func (sh *logShard) makeRoomLocked(now kernel.Instant) bool {
	due, slots := now >= sh.swept+idleTime, float64(len(sh.slots))
	if due {
		sh.sweepLocked(now - min(now, idleTime))
		sh.swept = now
	}
	switch {
	case due && float64(sh.keys) < sparse*slots:
		sh.replaceLocked(uint64(max(1, minLoad/4*slots-float64(sh.keys))))
	case sh.keys >= mostOf(len(sh.slots)):
		sh.replaceLocked(1)
	default:
		return due
	}
	return true
}

// sweepLocked forgets the keys that have been idle since the given instant.
func (sh *logShard) sweepLocked(since kernel.Instant) {
	for i := 0; i < len(sh.slots); {
		if e := &sh.slots[i]; !e.free() && e.fresh() <= since {
			sh.removeLocked(i) // and look next at what takes its place
		} else {
			i++
		}
	}
}

// removeLocked forgets the key in a slot, and moves later entries that could no longer
// be found.
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

// forgotLocked counts a key that was forgotten.
func (sh *logShard) forgotLocked(e *logEntry) {
	sh.keys--
	sh.words -= uint64(cap(e.state))
	sh.space.store.leave(&sh.space.occupancy)
}

// replaceLocked replaces the table with one for the keys held and more further keys, or
// splits the shard if it has too many.
func (sh *logShard) replaceLocked(more uint64) {
	if sh.space.splits(sh.keys, sh.depth) {
		sh.splitLocked(more)
		return
	}
	old := sh.slots
	sh.resizeLocked(more)
	for i := range old {
		sh.putLocked(&old[i])
	}
}

// resizeLocked gives the shard a new table, without entries.
func (sh *logShard) resizeLocked(more uint64) {
	sh.slots, sh.next = nil, 0
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

// splitLocked gives half of the shard's directory entries, and their keys, to a new
// shard.
func (sh *logShard) splitLocked(more uint64) {
	bit, old := uint64(1)<<sh.depth, sh.slots
	sh.depth++
	other := &logShard{space: sh.space, first: sh.first | uint32(bit), depth: sh.depth, swept: sh.swept}
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
	sh.space.publish(other.first, other.depth, other) // only when complete; the other entries of sh stay the same
}

func (sh *logShard) offer(e *eviction, most int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	most = min(most, int(sh.keys))
	for looks := len(sh.slots); looks > 0 && most > 0 && !e.done; {
		if sh.next >= len(sh.slots) {
			sh.next = 0
		}
		entry := &sh.slots[sh.next]
		if entry.free() {
			sh.next++
			looks--
			continue
		}
		most--
		if v := (candidate{sh: sh, id: entry.id, fresh: entry.fresh()}); v.fresh <= e.now {
			sh.removeLocked(sh.next) // and look next at what takes its place
			e.forgot()
		} else {
			e.look(entry.by, entry.state, v)
			sh.next++
			looks--
		}
	}
}

func (sh *logShard) evict(v candidate, now kernel.Instant, least int) bool {
	sp := sh.space
	sh = sp.lock(v.id) // the key may have moved to another shard
	defer sh.mu.Unlock()
	i, ok := sh.find(v.id)
	if !ok {
		return false
	}
	e := &sh.slots[i]
	idle := e.fresh() <= now
	if !idle && spares(e.by.Remaining(e.state, now), least) {
		return false
	}
	sh.removeLocked(i)
	sp.store.lost(idle)
	return true
}

// shrink forgets idle keys, and moves the others to tables that fit them.
func (sp *Logs) shrink() {
	for _, e := range sp.list() {
		e.(*logShard).shrink()
	}
}

func (sh *logShard) shrink() {
	now := sh.space.store.now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.sweepLocked(now)
	sh.replaceLocked(0)
}

// count adds the totals of all shards to stats.
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
