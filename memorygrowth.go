package ratelimit

import (
	"iter"
	"sync/atomic"
)

// # Growth
//
// When more than maxLoad of its slots are taken, a table is replaced. First the
// keys that are idle are forgotten: that is all there is of a sweeper. The new
// table begins with a smaller share of its slots taken, between minLoad and
// maxNewLoad, another for each shard. So they do not all grow at once: neither
// does the memory of all come to its worst at the same moment, nor do many
// callers wait at the same time. It grows, or shrinks, to about one and a half
// of what is in use, and not to the next power of two, which would waste half
// of the memory right after.
//
//	place    ┌─────────────────────────────────────────┐
//	old      │ a · B · · c │ D e · F │ · · g · │ H · i │  capitals are idle
//	         └─────────────────────────────────────────┘
//	new      │ a · · · c · · │ · e · · · │ · · g · · · │ · · i │
//
// Keys keep their order, since their places are in proportion to their
// identities, so that both tables are gone through from one end to the other.

const (
	minLoad    = 0.46
	maxNewLoad = 0.56
	maxLoad    = 0.85
)

// newLoad returns the load that new tables of the i-th of some shards begin
// with.
func newLoad(i, shards int) float64 {
	return minLoad + (maxNewLoad-minLoad)*float64(i)/float64(shards)
}

// newTable returns a table with so many groups for states of so many words.
func newTable(groups, width uint64) *table {
	size := groupHead + groupSlots*width
	return &table{
		words:  make([]uint64, groups*size),
		groups: groups,
		size:   size,
		width:  width,
		most:   uint64(float64(groups*groupSlots) * maxLoad),
	}
}

// replaceLocked replaces the table by one with the keys that are in use, and
// room for some more.
func (sh *shard) replaceLocked(now instant, more uint64) *table {
	old := sh.table.Load()
	sh.sweepLocked(old, now)
	t := sh.space.empty
	if sh.keys+more > 0 {
		t = newTable(uint64(float64(sh.keys+more)/sh.newLoad)/groupSlots+1, sh.space.width)
	}
	for p := range old.held() {
		id := old.id(p)
		to, _ := t.find(id)
		t.words[to.group+to.slot] = id.hi
		word, shift := t.secondWord(to)
		*word |= uint64(id.lo) << shift
		if sh.space.word != nil {
			*t.word(to) = atomic.SwapUint64(old.word(p), gone) // guarantee 3
		} else {
			copy(t.state(to), old.state(p))
		}
	}
	sh.used = sh.keys
	sh.table.Store(t)
	return t
}

// sweepLocked forgets the keys that are idle.
func (sh *shard) sweepLocked(t *table, now instant) {
	blank := sh.space.blanks.Get().(*[]uint64)
	defer sh.space.blanks.Put(blank)
	for p := range t.held() {
		if st := sh.read(t, p, *blank); sh.space.t.kernel.fresh(st) <= now && sh.freeze(t, p, st) {
			sh.forgetLocked(t, p)
		}
	}
}

// held iterates over the places that hold a key. The caller has the lock.
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

// holds reports whether there is a key in a place. The caller has the lock.
func (t *table) holds(p place) bool { return t.words[p.group+p.slot] != 0 && t.second(p) != 0 }

// read returns the state in a place; if it may change meanwhile, a copy in st.
// The caller has the lock.
func (sh *shard) read(t *table, p place, st []uint64) []uint64 {
	if sh.space.word == nil {
		return t.state(p)
	}
	st[0] = atomic.LoadUint64(t.word(p))
	return st
}

// freeze makes the state in a place final, unless it is no longer st. The caller
// has the lock.
func (sh *shard) freeze(t *table, p place, st []uint64) bool {
	return sh.space.word == nil || atomic.CompareAndSwapUint64(t.word(p), st[0], gone) // guarantee 3
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

// count adds up what the shards hold.
func (sp *tables) count(stats *MemoryStats) {
	for i := range sp.shards {
		sh := &sp.shards[i]
		sh.mu.Lock()
		stats.Keys += int(sh.keys)
		stats.Inserts += sh.inserts
		stats.Bytes += 64 + 8*uint64(len(sh.table.Load().words))
		sh.mu.Unlock()
	}
}

// offer shows keys to an eviction, from where the last one stopped.
func (sh *shard) offer(e *eviction) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k, t := sh.space.t.kernel, sh.table.Load()
	blank := sh.space.blanks.Get().(*[]uint64)
	defer sh.space.blanks.Put(blank)
	slots := t.groups * groupSlots
	for range slots {
		if sh.hand++; sh.hand >= slots {
			sh.hand = 0
		}
		p := place{sh.hand / groupSlots * t.size, sh.hand % groupSlots}
		if !t.holds(p) {
			continue
		}
		st := sh.read(t, p, *blank)
		v := victim{sh: sh, id: t.id(p), room: k.room(st, e.now), fresh: k.fresh(st)}
		if v.fresh <= e.now && sh.freeze(t, p, st) {
			sh.forgetLocked(t, p)
			e.forgot()
		} else {
			e.look(v)
		}
		if e.done {
			return
		}
	}
}

// evict implements evictee.
func (sh *shard) evict(v victim, now instant) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.table.Load()
	p, ok := t.find(v.id)
	if !ok {
		return false
	}
	blank := sh.space.blanks.Get().(*[]uint64)
	defer sh.space.blanks.Put(blank)
	st := sh.read(t, p, *blank)
	k := sh.space.t.kernel
	idle := k.fresh(st) <= now
	if k.room(st, now) < v.room || !sh.freeze(t, p, st) {
		return false
	}
	sh.forgetLocked(t, p)
	sh.space.store.lost(idle)
	return true
}

// evictees returns the shards, for evictions to choose from.
func (sp *tables) evictees() (all []evictee) {
	for i := range sp.shards {
		all = append(all, &sp.shards[i])
	}
	return all
}
