package memory

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file makes room for a new key in a full store: it decides which key to forget.
//
// For each new key, a full store looks at a sample of its keys. It forgets those that are idle:
// whose state equals a fresh one. (Any store forgets keys that have been idle for five seconds:
// whoever inserts a key sweeps its shard for them, unless that was done within the last five:
// idle.go.) If it finds none, it evicts the key with the most events remaining; among equals one of
// the flooded limiter, and then the one that regains capacity, and then is Fresh, soonest. With
// RefuseNew, the request of the new key is denied instead, until the first key of the sample
// becomes idle. A Wait then fails with ErrFull, and Reserve denies.
//
// So a flood of new keys evicts keys of the flood. Samples go through all keys in turn. Shards hold
// keys in the order of their hashes, so which ones are in a sample is random.
//
// The best candidates of samples stay in a pool, as in Redis' own eviction. So a sample need not be
// large: once a store has looked at many keys in a row that are used up, the best of a few more and
// of the pool is as good as the best of many.
//
// The flooded limiter is the one whose new key was the last to find the store full, if it holds
// more than its share of the keys. Half of a sample is keys of it. (A limiter with fewer keys may
// take the places of others: if its keys could only take each other's, those that come in turns
// would all be forgotten before they come again.)

// An admission makes room for new keys, one at a time, if the store has a bound.
type admission struct {
	mu      sync.Mutex  // protects the fields below; locked before a shard's
	sizes   sampleSizes // usualSizes, except in tests
	next    cursor      // where the next sample starts
	flooded *Space      // the flooded limiter, if any
	inFlood int         // the directory entry of flooded where the next sample starts
	sample  sample      // the last one, whose memory is reused
	room    [1]uint64   // for a state: see lockedSlot.read
}

// A cursor points at the shards of a space from an entry of its directory on.
type cursor struct{ space, shard int }

// sampleSizes are numbers of keys at which a store looks.
type sampleSizes struct {
	// few is the number of keys of each sample. They are enough if one of them is idle, or the pool
	// has one with events remaining.
	few int

	// most is the number of used-up keys in a row after which a store does not look further for one
	// with events remaining.
	most int

	// all is the size of a store that looks at all of its keys.
	all int
}

var usualSizes = sampleSizes{few: 16, most: 128, all: 512}

// sharePart is the part of MaxKeys that is the share of a limiter, as a divisor.
const sharePart = 32

// A candidate is a key that may be evicted, as it was when it was looked at.
type candidate struct {
	space     *Space
	id        identity
	flooded   bool           // whether its limiter was the flooded one
	remaining int            // events that it would still be granted
	ready     kernel.Instant // when it regains capacity; 0 if some are remaining
	fresh     kernel.Instant // when it is idle
}

// compare returns a positive number if c is to be evicted before other, a negative one if after it,
// and 0 for equals.
func (c candidate) compare(other candidate) int {
	order := cmp.Compare(c.remaining, other.remaining)
	if order != 0 {
		return order
	}
	if c.flooded != other.flooded {
		if c.flooded {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(other.ready, c.ready), cmp.Compare(other.fresh, c.fresh))
}

// candidate returns the key as a candidate. k and st are what read has returned.
func (ls *lockedSlot) candidate(k *step.Machine, st step.State, now kernel.Instant) candidate {
	c := candidateOf(k, st, now)
	c.space, c.id = ls.space, ls.table.id(ls.at)
	return c
}

// candidateOf returns a key whose state k left as a candidate that is nowhere.
func candidateOf(k *step.Machine, st step.State, now kernel.Instant) candidate {
	c := candidate{remaining: k.RemainingIn(st, now), fresh: k.FreshIn(st)}
	if c.remaining == 0 {
		c.ready = k.ReadyIn(st, now, 1)
	}
	return c
}

// A pool is the best candidates of the last samples, the best of them last.
type pool []candidate

// poolSize is the most candidates of a pool.
const poolSize = 16

// add adds a candidate, unless all others are better, and replaces what the pool knew of the key.
func (p *pool) add(c candidate) {
	if len(*p) == poolSize && c.compare((*p)[0]) <= 0 {
		return
	}
	known := slices.IndexFunc(*p, func(other candidate) bool {
		return other.id == c.id && other.space == c.space
	})
	switch {
	case known >= 0:
		*p = slices.Delete(*p, known, known+1)
	case len(*p) == poolSize:
		*p = slices.Delete(*p, 0, 1)
	}
	at, _ := slices.BinarySearchFunc(*p, c, candidate.compare)
	*p = slices.Insert(*p, at, c)
}

// removeBest removes the best candidate, and returns it.
func (p *pool) removeBest() candidate {
	last := len(*p) - 1
	c := (*p)[last]
	*p = slices.Delete(*p, last, last+1)
	return c
}

// remains reports whether the best candidate has events remaining.
func (p pool) remains() bool { return len(p) > 0 && p[len(p)-1].remaining > 0 }

// A sample is what a full store sees of some of its keys.
type sample struct {
	sampleSizes
	refuses bool // whether the store refuses new keys
	now     kernel.Instant
	flooded *Space
	seen    int            // keys looked at
	freed   int            // idle keys that were forgotten
	idle    kernel.Instant // when the first of the others is idle
	usedUp  int            // keys in a row, also in the samples before, that were used up
	pool    pool           // also of the samples before
}

// done reports whether the store need not look at more keys.
func (sm *sample) done() bool {
	switch {
	case sm.freed > 0:
		return true
	case sm.refuses:
		return sm.seen >= sm.most
	}
	return sm.seen >= sm.few && (sm.pool.remains() || sm.usedUp >= sm.most)
}

// addKey adds a key to the sample. It forgets the key at once if that is idle.
func (sm *sample) addKey(ls *lockedSlot) {
	sm.seen++
	k, st, idle := ls.forgetIdle(sm.now, &ls.space.store.admission.room)
	if idle {
		sm.freed++
		return
	}
	if sm.refuses {
		sm.idle = min(sm.idle, k.FreshIn(st))
		return
	}
	c := ls.candidate(k, st, sm.now)
	c.flooded = ls.space == sm.flooded
	if c.remaining > 0 {
		sm.usedUp = 0
	} else {
		sm.usedUp++
	}
	sm.pool.add(c)
}

// addKeys adds the next few keys of a shard of sp to the sample.
func (sm *sample) addKeys(sp *Space, sh *shard, few int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	left := min(few, int(sh.keys))
	if left == 0 {
		return
	}
	t := sp.current(sh)
	slots := t.groups * groupSlots
	for range slots {
		sh.next++
		if uint64(sh.next) >= slots {
			sh.next = 0
		}
		at := t.nth(uint64(sh.next))
		if !t.holds(at) {
			continue
		}
		sm.addKey(&lockedSlot{sp, sh, t, at})
		left--
		if left == 0 {
			return
		}
	}
}

// evict forgets a key, and counts the eviction, if the key is idle or has not been used since it
// was looked at.
func (c *candidate) evict(now kernel.Instant) {
	s := c.space.store
	sh, t := c.space.lock(c.id)
	defer sh.mu.Unlock()
	at, ok := t.find(c.id)
	if !ok {
		return
	}
	ls := lockedSlot{c.space, sh, t, at}
	k, st, idle := ls.forgetIdle(now, &s.admission.room)
	if idle {
		return
	}
	present := ls.candidate(k, st, now)
	present.flooded = c.flooded
	if present.compare(*c) < 0 || !ls.freeze(st) {
		return
	}
	ls.forget()
	s.evicted.Add(1)
}

// makeRoom looks at a sample, and frees a place for a new key of sp, or reports full if the store
// refuses new keys. It frees none if the key to be evicted was used meanwhile, or if all places are
// taken by keys that are still being inserted: admit calls it until there is a place.
//
// It judges the keys of all spaces at now, because limiters that share a store share a
// clock.
func (sp *Space) makeRoom(now kernel.Instant) (idle kernel.Instant, full bool) {
	s := sp.store
	s.admission.noteFlood(sp)
	sm := s.sampleKeys(now)
	switch {
	case sm.freed > 0:
	case s.RefuseNew:
		return sm.idle, sm.seen > 0
	case len(sm.pool) > 0:
		c := sm.pool.removeBest()
		c.evict(now)
	}
	return 0, false
}

// noteFlood notes which limiter is flooded when a new key of sp finds the store full.
func (a *admission) noteFlood(sp *Space) {
	share := max(int64(a.sizes.few), sp.store.MaxKeys/sharePart)
	switch {
	case sp.keys.Load() > share:
		a.flooded = sp
	case a.flooded != nil && a.flooded.keys.Load() <= share:
		a.flooded = nil
	}
}

// sampleKeys takes a sample: a few keys of the flooded limiter, and then keys of each shard, from
// the cursor on, until the sample is done, or no space has a key.
func (s *Store) sampleKeys(now kernel.Instant) *sample {
	a := &s.admission
	spaces := s.spaces()
	sm := &a.sample
	*sm = sample{
		sampleSizes: a.sizes,
		refuses:     s.RefuseNew,
		now:         now,
		flooded:     a.flooded,
		idle:        math.MaxUint64,
		usedUp:      sm.usedUp,
		pool:        sm.pool,
	}
	few := sm.few
	switch held := s.keysHeld(); {
	case held <= sm.all:
		clear(sm.pool)
		sm.few, sm.most, sm.usedUp, sm.pool = held, held, 0, sm.pool[:0]
		few = held
	case a.flooded != nil && len(spaces) > 1 && !sm.refuses:
		few /= 2
		a.sampleFlooded(few)
	}
	for empty := 0; empty <= len(spaces) && sm.freed == 0; {
		sp, seen := spaces[a.next.space%len(spaces)], sm.seen
		if sp.keys.Load() > 0 {
			for sh := range sp.shards(a.next.shard) {
				sm.addKeys(sp, sh, few)
				if sm.done() {
					a.next.shard = int(sh.first) + 1
					return sm
				}
			}
		}
		a.next = cursor{a.next.space + 1, 0}
		empty++
		if sm.seen > seen {
			empty = 0
		}
	}
	return sm
}

// sampleFlooded adds a few keys of the flooded limiter to the sample.
func (a *admission) sampleFlooded(few int) {
	for range 2 { // from the cursor on, and then from the start
		for sh := range a.flooded.shards(a.inFlood) {
			a.inFlood = int(sh.first) + 1
			a.sample.addKeys(a.flooded, sh, few-a.sample.seen)
			if a.sample.seen >= few {
				return
			}
		}
		a.inFlood = 0
	}
}
