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
//
// # Idle keys
//
// Most clients are far below their limit, so their keys are idle when they come back.
// Inserting a key takes several times as long as a decision. So an idle key is kept for
// idleTime after it became idle, unless the store is full: then it goes first. Shrink
// also forgets all idle keys.
//
// There is no sweeper. A caller that inserts a key sweeps its shard first if the last
// sweep was at least idleTime ago (every fourth caller looks). So no key is looked at
// more often than that, and a key that nobody uses is forgotten between one and two
// idleTimes after it became idle, if its shard gets new keys. If a sweep leaves a table
// sparse, a smaller one replaces it, but not one of less than a quarter: the keys may come
// back.

const (
	minLoad    = 0.46
	maxNewLoad = 0.56
	maxLoad    = 0.85

	// sparse is the load below which a sweep replaces a table by a smaller one.
	sparse = 0.15

	// idleTime is how long an idle key is kept, in nanoseconds.
	idleTime = 5e9

	// sweepInserts is the number of insertions after which a shard reads the clock, to see
	// whether a sweep is due. Reading it takes a sixth of the time of an insertion.
	sweepInserts = 4
)

// An upkeep says when a shard, of tables or of logs, is swept, and when a sweep has left
// its table sparse.
type upkeep struct {
	inserts uint64 // keys inserted so far
	swept   uint64 // the instant of the last sweep
}

// looks reports whether the caller that inserts the next key sees whether a sweep is due.
func (u *upkeep) looks() bool { return u.inserts%sweepInserts == sweepInserts-1 }

// sweep calls forget if a sweep is due, for the keys that have been idle since an instant.
func (u *upkeep) sweep(now kernel.Instant, forget func(since kernel.Instant)) (due bool) {
	if now < u.swept+idleTime {
		return false
	}
	forget(now - min(now, idleTime))
	u.swept = now
	return true
}

// spare returns for how many further keys a table that a sweep has left sparse keeps
// room, or 0 if it is not sparse.
func spare(keys, slots uint64) uint64 {
	if float64(keys) >= sparse*float64(slots) {
		return 0
	}
	return uint64(max(1, minLoad/4*float64(slots)-float64(keys)))
}

// noKeys are the words of the table of every shard without keys.
var noKeys = make([]uint64, groupHead+groupSlots)

// newTable returns an empty table for the given number of keys.
func (sh *shard) newTable(keys uint64) *table {
	width := sh.space.width
	t := &table{words: noKeys, groups: 1, width: width, size: groupHead + groupSlots*width, shard: sh}
	if keys > 0 {
		t.groups = uint64(float64(keys)/loadOf(sh.first))/groupSlots + 1
		t.words = make([]uint64, t.groups*t.size)
		t.most = uint64(float64(t.groups*groupSlots) * maxLoad)
	}
	return t
}

// publishLocked makes t the table of sh.
func (sh *shard) publishLocked(t *table) { sh.space.publish(sh.first, sh.depth, t) }

// makeRoomLocked sweeps the shard if that is due, and replaces the table if it is full
// or, after a sweep, sparse. It returns true if it did any of this.
func (sh *shard) makeRoomLocked(t *table, now kernel.Instant) bool {
	due := sh.sweepIfDue(t, now)
	switch more := spare(sh.keys, t.groups*groupSlots); {
	case due && more > 0:
		sh.replaceLocked(t, more)
	case sh.used >= t.most:
		sh.replaceLocked(t, 1)
	default:
		return due
	}
	return true
}

// sweepIfDue sweeps the shard if that is due, and reports whether it did.
func (sh *shard) sweepIfDue(t *table, now kernel.Instant) (due bool) {
	return sh.sweep(now, func(since kernel.Instant) { sh.sweepLocked(t, since) })
}

// replaceLocked replaces the table with one for the keys held and more further keys, or
// splits the shard if it has too many.
func (sh *shard) replaceLocked(old *table, more uint64) {
	if sh.space.splits(sh.keys, sh.depth) {
		sh.splitLocked(old, more)
		return
	}
	t := sh.newTable(sh.keys + more)
	for p := range old.held() {
		sh.space.copyTo(t, old, p)
	}
	sh.used = sh.keys
	sh.publishLocked(t)
}

// splitLocked gives half of the shard's directory entries, and their keys, to a new
// shard.
func (sh *shard) splitLocked(old *table, more uint64) {
	sp, bit := sh.space, uint64(1)<<sh.depth
	sh.depth++
	other := &shard{space: sp, first: sh.first | uint32(bit), depth: sh.depth, upkeep: upkeep{swept: sh.swept}}
	other.mu.Lock() // until all its entries lead to it. Lock order: the older shard first
	defer other.mu.Unlock()
	for p := range old.held() {
		if old.id(p).entry()&bit != 0 {
			other.keys++
		}
	}
	sh.keys -= other.keys
	stay, move := sh.newTable(sh.keys+more), other.newTable(other.keys+more)
	for p := range old.held() {
		if old.id(p).entry()&bit != 0 {
			sp.copyTo(move, old, p)
		} else {
			sp.copyTo(stay, old, p)
		}
	}
	sh.used, other.used = sh.keys, other.keys
	sp.add(other)
	sh.publishLocked(stay)
	other.publishLocked(move)
}

// copyTo copies a key to a table that is not published yet, and makes the old state
// final.
func (sp *Tables) copyTo(t, old *table, p place) {
	id := old.id(p)
	to, _ := t.find(id)
	t.words[to.group+to.slot] = id.hi
	word, shift := t.secondWord(to)
	*word |= uint64(id.lo) << shift
	t.setNumber(to, old.number(p))
	if sp.single {
		*t.word(to) = atomic.SwapUint64(old.word(p), kernel.Gone) // guarantee 3
	} else {
		copy(t.state(to), old.state(p))
	}
}

// sweepLocked forgets the keys that have been idle since the given instant.
func (sh *shard) sweepLocked(t *table, since kernel.Instant) {
	blank := sh.space.store.blank()
	defer sh.space.store.blanks.Put(blank)
	for p := range t.held() {
		if st := sh.read(t, p, blank[:]); sh.space.kernelAt(t, p).Fresh(st) <= since && sh.freeze(t, p, st) {
			sh.forgetLocked(t, p)
		}
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

// read returns the state at p, or a copy of it in st if the state may change
// concurrently. The caller holds the lock.
func (sh *shard) read(t *table, p place, st []uint64) []uint64 {
	if !sh.space.single {
		return t.state(p)
	}
	st[0] = atomic.LoadUint64(t.word(p))
	return st
}

// freeze makes the state at p final. It returns false if the state is no longer st. The
// caller holds the lock.
func (sh *shard) freeze(t *table, p place, st []uint64) bool {
	return !sh.space.single || atomic.CompareAndSwapUint64(t.word(p), st[0], kernel.Gone) // guarantee 3
}

func (sp *Tables) shrink() {
	for _, e := range sp.list() {
		sh := e.(*shard)
		now := sp.store.now()
		sh.mu.Lock()
		sh.sweepLocked(sh.current(), now)
		sh.replaceLocked(sh.current(), 0)
		sh.mu.Unlock()
	}
}

func (sp *Tables) empty() {
	for _, e := range sp.list() {
		sh := e.(*shard)
		sh.mu.Lock()
		t := sh.current()
		for slot := range t.groups * groupSlots {
			p := place{slot / groupSlots * t.size, slot % groupSlots}
			if !t.holds(p) {
				continue
			}
			if sp.single {
				atomic.StoreUint64(t.word(p), kernel.Gone)
			}
			sh.forgetLocked(t, p)
		}
		sh.mu.Unlock()
	}
}

// count adds the totals of all shards to stats.
func (sp *Tables) count(stats *Stats) {
	stats.Bytes += sizeOf[Tables]() + sp.bytes()
	for _, e := range sp.list() {
		sh := e.(*shard)
		sh.mu.Lock()
		stats.Keys += int(sh.keys)
		stats.Inserts += sh.inserts
		stats.Bytes += sizeOf[shard]() + sizeOf[table]()
		if t := sh.current(); t.most > 0 { // else the words are noKeys, which are shared
			stats.Bytes += 8 * uint64(len(t.words))
		}
		sh.mu.Unlock()
	}
}

// current returns the table of sh. The caller holds the lock.
func (sh *shard) current() *table { return (*sh.space.entries.Load())[sh.first].Load() }

// offer implements evictee. It starts where the last eviction stopped.
func (sh *shard) offer(e *sample, most int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	most = min(most, int(sh.keys))
	if most == 0 {
		return
	}
	t := sh.current()
	blank := sh.space.store.blank()
	defer sh.space.store.blanks.Put(blank)
	slots := t.groups * groupSlots
	for range slots {
		if sh.next++; uint64(sh.next) >= slots {
			sh.next = 0
		}
		p := place{uint64(sh.next) / groupSlots * t.size, uint64(sh.next) % groupSlots}
		if !t.holds(p) {
			continue
		}
		k, st := sh.space.kernelAt(t, p), sh.read(t, p, blank[:])
		v := candidate{sh: sh, id: t.id(p), fresh: k.Fresh(st)}
		if v.fresh <= e.now && sh.freeze(t, p, st) {
			sh.forgetLocked(t, p)
			e.forgot()
		} else {
			e.look(k, st, v)
		}
		if most--; most == 0 || e.done {
			return
		}
	}
}

// evict implements evictee.
func (sh *shard) evict(v candidate, now kernel.Instant, least int) bool {
	sp := sh.space
	sh, t := sp.lock(v.id) // the key may have moved to another shard
	defer sh.mu.Unlock()
	p, ok := t.find(v.id)
	if !ok {
		return false
	}
	blank := sp.store.blank()
	defer sp.store.blanks.Put(blank)
	k, st := sp.kernelAt(t, p), sh.read(t, p, blank[:])
	idle := k.Fresh(st) <= now
	if !idle && spares(k.Remaining(st, now), least) || !sh.freeze(t, p, st) {
		return false
	}
	sh.forgetLocked(t, p)
	sp.store.lost(idle)
	return true
}

func (sp *Tables) evictees() []evictee { return sp.list() }
