package memory

import "github.com/ratelimit-go/ratelimit/internal/kernel"

// This file replaces the tables of log shards, as growth.go does with those of other
// states: when their slots or words are taken, when a sweep leaves them sparse, and in
// Shrink.

const (
	// logSplitAt is the most keys of a log shard, chosen so that visiting all of them
	// takes a fraction of a millisecond.
	logSplitAt = 1024

	// logSplitWords is the number of words of states that counts as a key when a shard is
	// split, so that copying all of them takes a fraction of a millisecond, too.
	logSplitWords = 32

	// logWordLoad is the part of the words of a new table that is taken, divided by the
	// part of the slots.
	logWordLoad = 1.7

	// logSparse is the part of a table's words below which a sweep makes them fewer.
	logSparse = 0.25
)

// makeRoomLocked sweeps the shard if that is due, and replaces the table if it is full
// or, after a sweep, sparse. It returns true if it did any of this. See growth.go.
func (sh *logShard) makeRoomLocked(now kernel.Instant) bool {
	due, few := sh.sweep(now, sh.sweepLocked), int(logSparse*float64(cap(sh.words)))
	switch more := spare(sh.keys, uint64(len(sh.slots))); {
	case due && more > 0:
		sh.replaceLocked(more)
	case sh.full():
		sh.replaceLocked(1)
	case due && int(sh.used) < few:
		sh.repackLocked(few - int(sh.used))
	default:
		return due
	}
	return true
}

// sweepLocked forgets the keys that have been idle since the given instant.
func (sh *logShard) sweepLocked(since kernel.Instant) {
	for i := 0; i < len(sh.slots); {
		if e := &sh.slots[i]; !e.free() && sh.fresh(e) <= since {
			sh.forgetLocked(i, true) // and look next at what takes its place
		} else {
			i++
		}
	}
}

// replaceLocked replaces the table with one for the keys held and more further keys, or
// splits the shard if it has too many.
func (sh *logShard) replaceLocked(more uint64) {
	sh.rebuildLocked(sh.slotsFor(sh.keys+more), more*kernel.FirstCapacity)
}

// repackLocked replaces the table with one that has as many slots and lacks more words
// for states, or splits the shard if it has too many.
func (sh *logShard) repackLocked(lacks int) { sh.rebuildLocked(len(sh.slots), uint64(lacks)) }

func (sh *logShard) slotsFor(keys uint64) int {
	if keys == 0 {
		return 0
	}
	return 2 + int(float64(keys)/loadOf(sh.first))
}

// rebuildLocked gives the shard a table with the given number of slots and room for that
// many more words of states, or splits the shard.
func (sh *logShard) rebuildLocked(slots int, words uint64) {
	keys := sh.keys
	if keys > splitEarlyAt {
		keys = max(keys, sh.used/logSplitWords)
	}
	old := sh.logTable
	if sh.space.splits(keys, sh.depth) {
		sh.splitLocked(&old, words)
	} else {
		sh.fillLocked(&old, slots, words)
	}
}

// splitLocked gives half of the shard's directory entries, and their keys, to a new
// shard.
func (sh *logShard) splitLocked(old *logTable, words uint64) {
	bit := uint32(1) << sh.depth
	sh.depth++
	other := &logShard{space: sh.space, first: sh.first | bit, depth: sh.depth, upkeep: upkeep{swept: sh.swept}}
	sh.fillLocked(old, 0, words)
	other.fillLocked(old, 0, words)
	sh.space.add(other)
	sh.space.publish(other.first, other.depth, other) // only when complete; the other entries of sh stay the same
}

// owns reports whether e is a key of the shard.
func (sh *logShard) owns(e *logEntry) bool {
	return !e.free() && uint32(e.id().entry())&(1<<sh.depth-1) == sh.first
}

// fillLocked gives the shard a new table with its keys in an old one. If slots is 0, it
// has as many as the keys need.
func (sh *logShard) fillLocked(old *logTable, slots int, words uint64) {
	keys := uint64(0)
	for i := range old.slots {
		if e := &old.slots[i]; sh.owns(e) {
			keys++
			if size := old.fitting(e); size <= mostBlock {
				words += uint64(size)
			}
		}
	}
	if slots == 0 {
		slots = sh.slotsFor(keys)
	}
	sh.logTable, sh.next = newLogTable(slots, uint64(float64(words)/(logWordLoad*loadOf(sh.first)))), 0
	for i := range old.slots {
		if e := &old.slots[i]; sh.owns(e) {
			sh.copyFrom(old, e)
		}
	}
}

func (sh *logShard) offer(e *sample, most int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.keys == 0 {
		return
	}
	// Keys that were looked at may take the places of forgotten ones, and are then looked at
	// again. So the loop ends after all slots, and not after as many looks as there are keys.
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
		if v := (candidate{sh: sh, id: entry.id(), fresh: sh.fresh(entry)}); v.fresh <= e.now {
			sh.forgetLocked(sh.next, true) // and look next at what takes its place
			e.forgot()
		} else {
			e.look(sh.kernel(entry), sh.state(entry), v)
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
	idle := sh.fresh(e) <= now
	if !idle && spares(sh.kernel(e).Remaining(sh.state(e), now), least) {
		return false
	}
	sh.forgetLocked(i, idle)
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
func (sp *Logs) empty() {
	for _, e := range sp.list() {
		sh := e.(*logShard)
		sh.mu.Lock()
		for i := 0; sh.keys > 0; i = sh.after(i) {
			for !sh.slots[i].free() { // another key may take its slot
				sh.forgetLocked(i, false)
			}
		}
		sh.mu.Unlock()
	}
}

func (sp *Logs) count(stats *Stats) {
	stats.Bytes += sizeOf[Logs]() + sp.bytes()
	for _, e := range sp.list() {
		sh := e.(*logShard)
		sh.mu.Lock()
		stats.Keys += int(sh.keys)
		stats.Inserts += sh.inserts
		stats.Ended += sh.ended
		stats.Bytes += sizeOf[logShard]() + sh.bytes()
		sh.mu.Unlock()
	}
}

func (sp *Logs) evictees() []evictee { return sp.list() }
