package memory

import (
	"cmp"
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file decides what a full store forgets for a new key, and answers the requests of new keys
// for which it forgets nothing.
//
// For each new key, a full store looks at a sample of its keys. It forgets those that are idle:
// whose state equals a fresh one. (Any store forgets keys that have been idle for five seconds:
// whoever inserts a key sweeps its shard for them, unless that was done within the last five:
// idle.go.) If it finds none, it evicts the key with the most events remaining; among equals one of
// the flooded limiter, and then the one that regains capacity, and then is Fresh, soonest. With
// RefuseNew it denies the new key instead, until the first key of the sample becomes idle. A Wait
// then fails with ErrFull, and Reserve denies.
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
type sampleSizes struct {
	// Keys of each sample; enough if one of them is idle, or the pool has one with events
	// remaining.
	few int
	// Used-up keys in a row after which a store does not look further for one with events
	// remaining.
	most int
	all  int // a store with no more keys looks at all of them
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

// compare returns a positive number if v is to be evicted before other, a negative one if after it,
// and 0 for equals.
func (v candidate) compare(other candidate) int {
	if order := cmp.Compare(v.remaining, other.remaining); order != 0 {
		return order
	}
	if v.flooded != other.flooded {
		if v.flooded {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(other.ready, v.ready), cmp.Compare(other.fresh, v.fresh))
}

// candidateAt returns the key at p, which has the state st of k, as a candidate.
func (sh *shard) candidateAt(
	t *table,
	p place,
	k *step.Machine,
	st []uint64,
	now kernel.Instant,
) candidate {
	v := candidate{
		space:     sh.space,
		id:        t.id(p),
		remaining: k.Remaining(st, now),
		fresh:     k.Fresh(st),
	}
	if v.remaining == 0 {
		v.ready = k.Ready(st, now, 1)
	}
	return v
}

// A pool is the best candidates of the last samples, the best of them last.
type pool []candidate

// poolSize is the most candidates of a pool.
const poolSize = 16

// add adds a candidate, unless all others are better, and replaces what the pool knew of the key.
func (c *pool) add(v candidate) {
	if len(*c) == poolSize && v.compare((*c)[0]) <= 0 {
		return
	}
	known := slices.IndexFunc(*c, func(other candidate) bool {
		return other.id == v.id && other.space == v.space
	})
	switch {
	case known >= 0:
		*c = slices.Delete(*c, known, known+1)
	case len(*c) == poolSize:
		*c = slices.Delete(*c, 0, 1)
	}
	at, _ := slices.BinarySearchFunc(*c, v, candidate.compare)
	*c = slices.Insert(*c, at, v)
}

// best returns the best candidate, and removes it.
func (c *pool) best() candidate {
	last := len(*c) - 1
	v := (*c)[last]
	*c = slices.Delete(*c, last, last+1)
	return v
}

// remains reports whether the best candidate has events remaining.
func (c pool) remains() bool { return len(c) > 0 && c[len(c)-1].remaining > 0 }

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
func (e *sample) done() bool {
	switch {
	case e.freed > 0:
		return true
	case e.refuses:
		return e.seen >= e.most
	}
	return e.seen >= e.few && (e.pool.remains() || e.usedUp >= e.most)
}

// look considers the key at p, and forgets it at once if it is idle.
func (e *sample) look(sh *shard, t *table, p place) {
	e.seen++
	k, st, idle := sh.forgetIdle(t, p, e.now, &sh.space.store.admission.room)
	if idle {
		e.freed++
		return
	}
	if e.refuses {
		e.idle = min(e.idle, k.Fresh(st))
		return
	}
	v := sh.candidateAt(t, p, k, st, e.now)
	v.flooded = sh.space == e.flooded
	if v.remaining > 0 {
		e.usedUp = 0
	} else {
		e.usedUp++
	}
	e.pool.add(v)
}

// offer passes the next few keys of the shard to the sample.
func (sh *shard) offer(e *sample, few int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	left := min(few, int(sh.keys))
	if left == 0 {
		return
	}
	t := sh.current()
	slots := t.groups * groupSlots
	for range slots {
		sh.next++
		if uint64(sh.next) >= slots {
			sh.next = 0
		}
		p := place{uint64(sh.next) / groupSlots * t.size, uint64(sh.next) % groupSlots}
		if !t.holds(p) {
			continue
		}
		e.look(sh, t, p)
		left--
		if left == 0 {
			return
		}
	}
}

// evict forgets a key, and counts the eviction, if the key is idle or has not been used since it
// was looked at.
func (v *candidate) evict(now kernel.Instant) {
	s := v.space.store
	sh, t := v.space.lock(v.id)
	defer sh.mu.Unlock()
	p, ok := t.find(v.id)
	if !ok {
		return
	}
	k, st, idle := sh.forgetIdle(t, p, now, &s.admission.room)
	if idle {
		return
	}
	is := sh.candidateAt(t, p, k, st, now)
	is.flooded = v.flooded
	if is.compare(*v) < 0 || !sh.freeze(t, p, st) {
		return
	}
	sh.forgetLocked(t, p)
	s.evicted.Add(1)
}

// A cursor points at the shards of a space from an entry of its directory on.
type cursor struct{ space, shard int }

// makeRoom looks at a sample, and frees a place for a new key of sp, or reports full if the store
// refuses new keys. It frees none if the key to be evicted was used meanwhile, or if all places are
// taken by keys that are still being inserted: admit calls it until there is a place.
//
// It judges the keys of all spaces at now, because limiters that share a store share a
// clock.
func (sp *Space) makeRoom(now kernel.Instant) (idle kernel.Instant, full bool) {
	s := sp.store
	s.admission.floods(sp)
	e := s.look(now)
	switch {
	case e.freed > 0:
	case s.RefuseNew:
		return e.idle, e.seen > 0
	case len(e.pool) > 0:
		v := e.pool.best()
		v.evict(now)
	}
	return 0, false
}

// floods notes which limiter is flooded when a new key of sp finds the store full.
func (a *admission) floods(sp *Space) {
	share := max(int64(a.sizes.few), sp.store.MaxKeys/sharePart)
	switch {
	case sp.keys.Load() > share:
		a.flooded = sp
	case a.flooded != nil && a.flooded.keys.Load() <= share:
		a.flooded = nil
	}
}

// look takes a sample: a few keys of the flooded limiter, and then keys of each shard, from the
// cursor on, until it is done, or has found no key in any space.
func (s *Store) look(now kernel.Instant) *sample {
	a := &s.admission
	spaces := s.spaces()
	e := &a.sample
	*e = sample{
		sampleSizes: a.sizes,
		refuses:     s.RefuseNew,
		now:         now,
		flooded:     a.flooded,
		idle:        math.MaxUint64,
		usedUp:      e.usedUp,
		pool:        e.pool,
	}
	few := e.few
	switch held := s.Len(); {
	case held <= e.all:
		clear(e.pool)
		e.few, e.most, e.usedUp, e.pool = held, held, 0, e.pool[:0]
		few = held
	case a.flooded != nil && len(spaces) > 1 && !e.refuses:
		few /= 2
		a.lookAtFlooded(e, few)
	}
	for empty := 0; empty <= len(spaces) && e.freed == 0; {
		sp, seen := spaces[a.next.space%len(spaces)], e.seen
		if sp.keys.Load() > 0 {
			for sh := range sp.shards(a.next.shard) {
				sh.offer(e, few)
				if e.done() {
					a.next.shard = int(sh.first) + 1
					return e
				}
			}
		}
		a.next = cursor{a.next.space + 1, 0}
		empty++
		if e.seen > seen {
			empty = 0
		}
	}
	return e
}

// lookAtFlooded adds a few keys of the flooded limiter to a sample.
func (a *admission) lookAtFlooded(e *sample, few int) {
	for range 2 { // from the cursor on, and then from the start
		for sh := range a.flooded.shards(a.own) {
			a.own = int(sh.first) + 1
			sh.offer(e, few-e.seen)
			if e.seen >= few {
				return
			}
		}
		a.own = 0
	}
}
