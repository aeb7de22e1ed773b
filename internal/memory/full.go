package memory

import (
	"math"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides what a full store forgets for a new key, and answers the requests of new keys for
// which it forgets nothing.
//
// For each new key, a full store looks at a sample of its keys. It forgets those that are idle: whose state equals a fresh
// one. (Any store forgets keys that have been idle for five seconds: whoever inserts a key sweeps its shard for them, unless
// that was done within the last five: growth.go.) If it finds none, it evicts the key of the sample with the most events
// remaining, among equals the one that regains capacity, and then is Fresh, soonest. With RefuseNew it denies the new key
// instead, until the first key of the sample becomes idle; Wait and Reserve then fail with ErrFull.
//
// So a flood of new keys evicts keys of the flood. Samples go through all keys in turn. Shards hold keys in the
// order of their hashes, so which ones are in a sample is random.
type sampleSizes struct {
	few  int // keys of each shard in turn; enough if one of them is idle, or has events remaining and may be evicted
	most int // keys of other samples
	all  int // a store with no more keys looks at all of them
}

// A look takes about 50 ns: with these, a flood of keys that use up their limits at once evicts some 150,000 a second.
var usualSizes = sampleSizes{few: 16, most: 128, all: 512}

// A candidate is a key that may be evicted.
type candidate struct {
	space     *Space
	id        identity
	remaining int            // events that it would still be granted
	ready     kernel.Instant // when it regains capacity; 0 if some are remaining
	fresh     kernel.Instant // when it is idle
}

// A sample is what a full store has seen of some of its keys.
type sample struct {
	sampleSizes
	now   kernel.Instant
	seen  int            // keys looked at
	freed int            // idle keys that were forgotten
	idle  kernel.Instant // when the first of the others is idle
	best  candidate      // of the others, unless the store refuses new keys
}

// done reports whether the store need not look at more keys.
func (e *sample) done() bool {
	return e.freed > 0 || e.seen >= e.most || e.seen >= e.few && e.best.remaining > 0
}

// look considers the key at p, and forgets it at once if it is idle.
func (e *sample) look(sh *shard, t *table, p place) {
	e.seen++
	k, st, idle := sh.forgetIdle(t, p, e.now, &sh.space.store.admission.room)
	if idle {
		e.freed++
		return
	}
	fresh := k.Fresh(st)
	if e.idle = min(e.idle, fresh); e.freed > 0 || sh.space.store.RefuseNew {
		return
	}
	remaining, ready := k.Remaining(st, e.now), kernel.Instant(0)
	if remaining < e.best.remaining {
		return
	}
	if remaining == 0 {
		ready = k.Ready(st, e.now, 1)
	}
	if e.best.space == nil || remaining > e.best.remaining || ready < e.best.ready || ready == e.best.ready && fresh < e.best.fresh {
		e.best = candidate{sh.space, t.id(p), remaining, ready, fresh}
	}
}

// offer passes the next few keys of the shard to the sample.
func (sh *shard) offer(e *sample) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	left := min(e.few, int(sh.keys))
	if left == 0 {
		return
	}
	t := sh.current()
	slots := t.groups * groupSlots
	for range slots {
		if sh.next++; uint64(sh.next) >= slots {
			sh.next = 0
		}
		p := place{uint64(sh.next) / groupSlots * t.size, uint64(sh.next) % groupSlots}
		if !t.holds(p) {
			continue
		}
		e.look(sh, t, p)
		if left--; left == 0 {
			return
		}
	}
}

// evict forgets a key, and counts the eviction, if the key is idle or has at least as many events remaining as when it
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
	if idle || k.Remaining(st, now) < v.remaining || !sh.freeze(t, p, st) {
		return
	}
	sh.forgetLocked(t, p)
	s.evicted.Add(1)
}

// take takes a place for a new key. It returns false if the store is full.
func (sp *Space) take() bool {
	if sp.store.MaxKeys > 0 {
		if !sp.store.take(1) {
			return false
		}
		sp.keys.Add(1)
	}
	return true
}

// take takes places for new keys of a store with a bound. It returns false, and takes none, if there are fewer.
func (s *Store) take(keys int64) bool {
	for {
		held := s.held.Load()
		if held+keys > s.MaxKeys {
			return false
		}
		if s.held.CompareAndSwap(held, held+keys) {
			return true
		}
	}
}

// takeUpTo is take, but takes as many places as there are. It returns their number.
func (s *Store) takeUpTo(keys int64) (taken int64) {
	for {
		held := s.held.Load()
		taken = max(0, min(keys, s.MaxKeys-held))
		if s.held.CompareAndSwap(held, held+taken) {
			return taken
		}
	}
}

func (sp *Space) leave() {
	if sp.store.MaxKeys > 0 {
		sp.keys.Add(-1)
		sp.store.held.Add(-1)
	}
}

// answers reports whether a request that changes nothing can be answered for a new key
// without a place in the store. That is true except for an OpPeek when the store may
// have to reject the OpTake that it foretells.
func (s *Store) answers(op kernel.Op) bool {
	return op != kernel.OpPeek || !s.RefuseNew || s.MaxKeys == 0 || s.held.Load() < s.MaxKeys
}

// An admission makes room for new keys, one at a time, if the store has a bound.
type admission struct {
	mu     sync.Mutex  // protects the fields below; locked before a shard's
	sizes  sampleSizes // usualSizes, except in tests
	next   cursor      // where the next sample starts
	sample sample      // the last one, whose memory is reused
	room   [1]uint64   // for a state: see read
}

// A cursor points at the shards of a space from an entry of its directory on.
type cursor struct{ space, shard int }

// admit calls try, which takes a place for a new key, and makes room until try
// succeeds. If the store refuses new keys, admit reports full, and the instant at
// which a key may be idle.
//
// Only one call runs at a time: a key has its place before the next one looks for
// another.
func (s *Store) admit(req *kernel.Request, try func() (ok bool)) (idle kernel.Instant, full bool) {
	a := &s.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	for !try() {
		now, _ := req.Now()
		if idle, full = s.makeRoom(now); full {
			return idle, true
		}
	}
	return 0, false
}

// makeRoom looks at a sample, and frees a place, or reports full if the store refuses new keys. It frees none if
// the key to be evicted was used meanwhile, or if all places are taken by keys that are still being inserted: admit
// calls it until there is a place.
//
// It judges the keys of all spaces at now, because limiters that share a store share a
// clock.
func (s *Store) makeRoom(now kernel.Instant) (idle kernel.Instant, full bool) {
	e := s.look(now)
	switch {
	case e.freed > 0 || e.seen == 0:
	case s.RefuseNew:
		return e.idle, true
	default:
		e.best.evict(now)
	}
	return 0, false
}

// look takes a sample: keys of each shard, from the cursor on, until it is done, or has found no key in any space.
func (s *Store) look(now kernel.Instant) *sample {
	a := &s.admission
	e := &a.sample
	*e = sample{sampleSizes: a.sizes, now: now, idle: math.MaxUint64}
	if held := s.Len(); held <= e.all {
		e.few, e.most = held, held
	}
	spaces := s.spaces()
	for empty := 0; empty <= len(spaces); {
		sp, seen := spaces[a.next.space%len(spaces)], e.seen
		if sp.keys.Load() > 0 {
			for sh := range sp.shards(a.next.shard) {
				if sh.offer(e); e.done() {
					a.next.shard = int(sh.first) + 1
					return e
				}
			}
		}
		a.next = cursor{a.next.space + 1, 0}
		if empty++; e.seen > seen {
			empty = 0
		}
	}
	return e
}

// refuse answers req, for whose key the store has no room. Another key may be idle at idle.
func (s *Store) refuse(k *kernel.Compiled, req *kernel.Request, idle kernel.Instant, a *kernel.Answer) {
	if req.Op != kernel.OpPeek {
		s.rejected.Add(1)
	}
	now, lag := req.Now()
	wait := kernel.Until(max(idle, now+1), now, lag)
	*a = kernel.Answer{Decision: kernel.Decision{Limit: k.Limit(), RetryAfter: wait}, Wait: wait, Full: true}
}
