package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// # Growth
//
// A table is replaced when more than maxLoad of its slots are taken. Keys that were
// forgotten are not copied to the new table. The new table starts with a load between
// minLoad and maxNewLoad, which differs from shard to shard. So the shards do not all
// grow at once: their memory does not peak at the same moment, and not all callers wait
// at the same time. The new table has room for about two thirds more keys than are held,
// whether it grows or shrinks. Growing to the next power of two would leave up to half
// of the memory unused.
//
//	old      │ a · B · · c │ D e · F │ · · g · │ H · i │  capitals are idle
//	new      │ a · · · c · · │ · e · · · │ · · g · · · │ · · i │
//
// A key's place is in proportion to its identity, so keys keep their order, and a copy
// goes through both tables from start to end.
//
// Replacing a table takes time proportional to its keys. So a shard with more than
// splitAt keys is split in two (directory.go). A limiter starts with one shard. The
// first shards are split at a few keys each, so that concurrent callers seldom wait for
// the same lock.

const (
	// stateWeight is the number of keys that a state in the arena counts as when a shard is split,
	// and wordsPerKey that of words of states that count as a key, so that copying all of them
	// takes a fraction of a millisecond, too.
	stateWeight = 8
	wordsPerKey = 4

	// sweepInserts is the number of insertions after which a shard reads the clock, to see
	// whether a sweep is due. Reading it takes a sixth of the time of an insertion.
	sweepInserts = 4
)

// crowded reports whether makeRoomForKeys is to be called before new keys are inserted.
func (sh *shard) crowded(t *table, keys uint32) bool {
	return sh.used+keys > t.most || sh.inserts%sweepInserts == sweepInserts-1
}

// makeRoomForKeys sweeps a shard, whose lock the caller holds, if that is due. It replaces the
// table if that has no room for new keys or, after a sweep, is sparse.
func (sp *Space) makeRoomForKeys(
	sh *shard,
	t *table,
	keys uint32,
	now kernel.Instant,
) (swept, replaced bool) {
	due, slots := now >= sh.swept+idleTime, float64(t.groups*groupSlots)
	if due {
		sp.sweep(sh, t, now-min(now, idleTime))
		sh.swept = now
	}
	switch {
	case due && float64(sh.keys) < sparse*slots:
		sp.replaceTable(sh, t, uint32(max(1, minLoad/4*slots-float64(sh.keys))))
	case sh.used+keys > t.most:
		sp.replaceTable(sh, t, keys)
	default:
		if due && sh.arena != nil {
			sh.arena.shrink()
		}
		return due, false
	}
	return due, true
}

// weight returns the number of keys of a shard, as far as copying them takes time.
func (sp *Space) weight(sh *shard) uint64 {
	keys := uint64(sh.keys)
	if keys <= splitEarlyAt {
		return keys
	}
	weight := max(keys, keys*sp.width/wordsPerKey)
	if a := sh.arena; a != nil {
		weight = max(weight, uint64(a.keys())*stateWeight, a.used/wordsPerKey)
	}
	return weight
}

// heavy reports whether the states in the arena of a shard have grown so much that the shard is to
// be split.
func (sp *Space) heavy(sh *shard) bool {
	return sh.arena != nil && sh.arena.used > splitAt*wordsPerKey &&
		sp.splits(sp.weight(sh), sh.depth)
}

// replaceTable replaces the table of a shard, whose lock the caller holds, with one for the keys
// held and more further keys. If the shard has too many keys, it first gives half of its directory
// entries, and their keys, to a new shard.
func (sp *Space) replaceTable(sh *shard, old *table, more uint32) {
	from, of := sh.arena, sh.keys
	if sp.splits(sp.weight(sh), sh.depth) {
		other := &shard{
			space: sh.space,
			first: sh.first | 1<<sh.depth,
			depth: sh.depth + 1,
			swept: sh.swept,
		}
		other.mu.Lock() // until all its entries lead to it. Lock order: the older shard first
		defer other.mu.Unlock()
		for at := range old.held() {
			if other.owns(old.id(at)) {
				other.keys++
			}
		}
		sh.depth++
		sh.keys -= other.keys
		sp.renewTable(other, old, more, from, of)
	}
	sp.renewTable(sh, old, more, from, of)
}

// renewTable makes a table for the keys of sh, which are in old, and for more keys. It also makes
// an arena for their share of the states in from, which had the states of a number of keys.
func (sp *Space) renewTable(sh *shard, old *table, more uint32, from *arena, of uint32) {
	sh.used, sh.arena = sh.keys, nil
	if from != nil && from.keys() > 0 {
		share := float64(sh.keys+more) / float64(of)
		sh.arena = newArena(
			sh.newLoad(),
			share*float64(from.keys()),
			share*float64(from.used),
		)
	}
	t := newTable(sh, sp.width, sh.keys+more)
	for at := range old.held() {
		if sh.owns(old.id(at)) {
			t.copyFrom(old, at, from)
		}
	}
	sp.publish(t)
}

// copyFrom copies a key of an old table, whose states are in from, to t, which is not published
// yet, and makes the old word final.
func (t *table) copyFrom(old *table, at slot, from *arena) {
	id := old.id(at)
	to, _ := t.find(id)
	t.words[to.group+to.index] = id.hi
	second, shift := t.secondWord(to)
	*second |= uint64(id.lo) << shift
	t.setLimitNumber(to, old.limitNumber(at))
	word, refers := old.refers(at)
	switch {
	case refers:
		r := from.record(word)
		t.refer(to, t.shard.arena.add(from.kernel(r), from.fitting(r)))
	case t.width > 1:
		copy(t.state(to), old.state(at))
	default:
		*t.word(to) = atomic.SwapUint64(old.word(at), gone) // guarantee 3
	}
}
