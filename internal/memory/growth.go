package memory

import (
	"iter"
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
	minLoad    = 0.46
	maxNewLoad = 0.56
	maxLoad    = 0.85

	// sparse is the load below which a sweep replaces a table by a smaller one.
	sparse = 0.15

	// stateWeight is the number of keys that a state in the arena counts as when a shard is split,
	// and wordsPerKey that of words of states that count as a key, so that copying all of them
	// takes a fraction of a millisecond, too.
	stateWeight = 8
	wordsPerKey = 4

	// sweepInserts is the number of insertions after which a shard reads the clock, to see
	// whether a sweep is due. Reading it takes a sixth of the time of an insertion.
	sweepInserts = 4
)

// noKeys are the words of the table of every shard without keys.
var noKeys = make([]uint64, groupHead+groupSlots)

func (sh *shard) newTable(keys uint32) *table {
	width := sh.space.width
	t := &table{
		words:  noKeys,
		groups: 1,
		width:  width,
		size:   groupHead + groupSlots*width,
		shard:  sh,
	}
	if keys > 0 {
		t.groups = uint64(float64(keys)/loadOf(sh.first))/groupSlots + 1
		t.words = make([]uint64, t.groups*t.size)
		t.most = uint32(float64(t.groups*groupSlots) * maxLoad)
	}
	return t
}

// crowded reports whether makeRoomLocked is called before new keys are inserted.
func (sh *shard) crowded(t *table, keys uint32) bool {
	return sh.used+keys > t.most || sh.inserts%sweepInserts == sweepInserts-1
}

// makeRoomLocked sweeps the shard if that is due, and replaces the table if it has no room for new
// keys or, after a sweep, is sparse.
func (sh *shard) makeRoomLocked(t *table, keys uint32, now kernel.Instant) (swept, replaced bool) {
	due, slots := now >= sh.swept+idleTime, float64(t.groups*groupSlots)
	if due {
		sh.sweepLocked(t, now-min(now, idleTime))
		sh.swept = now
	}
	switch {
	case due && float64(sh.keys) < sparse*slots:
		sh.replaceLocked(t, uint32(max(1, minLoad/4*slots-float64(sh.keys))))
	case sh.used+keys > t.most:
		sh.replaceLocked(t, keys)
	default:
		if due && sh.arena != nil {
			sh.arena.shrink()
		}
		return due, false
	}
	return due, true
}

// weight is the number of keys, as far as copying them takes time.
func (sh *shard) weight() uint64 {
	keys := uint64(sh.keys)
	if keys <= splitEarlyAt {
		return keys
	}
	weight := max(keys, keys*sh.space.width/wordsPerKey)
	if a := sh.arena; a != nil {
		weight = max(weight, uint64(a.keys())*stateWeight, a.used/wordsPerKey)
	}
	return weight
}

// heavy reports whether the states in the arena have grown so much that the shard is to be split.
func (sh *shard) heavy() bool {
	return sh.arena != nil && sh.arena.used > splitAt*wordsPerKey &&
		sh.space.splits(sh.weight(), sh.depth)
}

// replaceLocked replaces the table with one for the keys held and more further keys. If the shard
// has too many, it first gives half of its directory entries, and their keys, to a new shard.
func (sh *shard) replaceLocked(old *table, more uint32) {
	from, of := sh.arena, sh.keys
	if sh.space.splits(sh.weight(), sh.depth) {
		other := &shard{
			space: sh.space,
			first: sh.first | 1<<sh.depth,
			depth: sh.depth + 1,
			swept: sh.swept,
		}
		other.mu.Lock() // until all its entries lead to it. Lock order: the older shard first
		defer other.mu.Unlock()
		for p := range old.held() {
			if other.owns(old.id(p)) {
				other.keys++
			}
		}
		sh.depth++
		sh.keys -= other.keys
		other.renewLocked(old, more, from, of)
	}
	sh.renewLocked(old, more, from, of)
}

func (sh *shard) owns(id identity) bool { return id.entry()&(1<<sh.depth-1) == uint64(sh.first) }

// renewLocked makes a table for the keys of sh, which are in old, and more, and an arena for their
// share of the states in from, which had those of a number of keys.
func (sh *shard) renewLocked(old *table, more uint32, from *arena, of uint32) {
	sh.used, sh.arena = sh.keys, nil
	if from != nil && from.keys() > 0 {
		share := float64(sh.keys+more) / float64(of)
		sh.arena = sh.newArena(share*float64(from.keys()), share*float64(from.used))
	}
	t := sh.newTable(sh.keys + more)
	for p := range old.held() {
		if sh.owns(old.id(p)) {
			t.copyFrom(old, p, from)
		}
	}
	sh.space.publish(t)
}

// copyFrom copies a key of an old table, whose states are in from, to t, which is not published
// yet, and makes the old word final.
func (t *table) copyFrom(old *table, p place, from *arena) {
	id := old.id(p)
	to, _ := t.find(id)
	t.words[to.group+to.slot] = id.hi
	second, shift := t.secondWord(to)
	*second |= uint64(id.lo) << shift
	t.setNumber(to, old.number(p))
	if word, ok := old.refers(p); ok {
		e := from.at(word)
		t.refer(to, t.shard.arena.add(from.kernel(e), from.fitting(e)))
	} else if t.width > 1 {
		copy(t.state(to), old.state(p))
	} else {
		*t.word(to) = atomic.SwapUint64(old.word(p), gone) // guarantee 3
	}
}

// held iterates over the places that hold a key. The caller holds the lock.
func (t *table) held() iter.Seq[place] {
	return func(yield func(place) bool) {
		for group := uint64(0); group < uint64(len(t.words)); group += t.size {
			for slot := range uint64(groupSlots) {
				if p := (place{group, slot}); t.holds(p) && !yield(p) {
					return
				}
			}
		}
	}
}

// holds reports whether there is a key at p. The caller holds the lock.
func (t *table) holds(p place) bool { return t.words[p.group+p.slot] != 0 && t.second(p) != 0 }

// current returns the table of sh. The caller holds the lock.
func (sh *shard) current() *table { return (*sh.space.entries.Load())[sh.first].Load() }
