package memory

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides what a full store forgets for a new key, and answers the requests of new keys for
// which it forgets nothing.
//
// A full store looks at a sample of its keys. It forgets those that are idle: whose state equals a fresh
// one. (Any store also forgets keys that have been idle for a while, when it inserts one: see growth.go.)
// If it finds none, it evicts the key of the sample with the most events remaining, among equals the one that
// regains capacity, and then is Fresh, soonest. With RefuseNew it denies the new key instead, until the first
// key of the sample becomes idle; Wait and Reserve then fail with ErrFull.
//
// So a flood of new keys evicts keys of the flood. A sample has perShard keys of each shard in turn: fewest,
// or up to most while all of them are exhausted, or while none is idle if only an idle key may go. A store
// with no more than most keys looks at all of them. Shards hold keys in the order of their hashes, so
// which ones are looked at is random.
//
// Unless it has all keys, a sample serves several evictions: it is remembered for a second, as far as its
// other keys are as good as the best one. If all are exhausted, these are a few that regain capacity soonest.
type sampleSizes struct {
	fewest, most, perShard int
	remembered             int // of equal keys with events remaining
	exhausted              int // remembered if all keys are
}

var usualSizes = sampleSizes{fewest: 64, most: 512, perShard: 16, remembered: 16, exhausted: 64}

const rememberedNs = 1e9

// unlessIdle, as what remains of a candidate, means that it may be evicted only if it is idle.
const unlessIdle = -1

// A candidate is a key that may be evicted.
type candidate struct {
	sh        *shard
	id        identity
	remaining int            // events that it would still be granted, or unlessIdle
	from      kernel.Instant // when it regains capacity or, if only an idle key may go, when it is idle
	fresh     kernel.Instant // when it is idle
}

const candidateSize = 48 // bytes, on 64-bit machines

// prefer compares two candidates: the better one comes first.
func prefer(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.remaining, a.remaining), cmp.Compare(a.from, b.from), cmp.Compare(a.fresh, b.fresh))
}

// A sample is some keys of a store.
type sample struct {
	now       kernel.Instant
	idle      bool // whether only an idle key may go
	fewest    int  // keys, if some have events remaining
	most      int
	seen      int         // keys looked at
	freed     int         // idle keys that were forgotten
	remaining int         // the most remaining
	keys      []candidate // in use
	done      bool
}

// look considers a key that is in use.
func (e *sample) look(k *kernel.Compiled, st []uint64, v candidate) {
	if e.idle {
		v.from, v.remaining = v.fresh, unlessIdle
	} else if v.remaining = k.Remaining(st, e.now); v.remaining == 0 {
		v.from = k.Ready(st, e.now, 1)
	}
	e.remaining = max(e.remaining, v.remaining)
	e.keys = append(e.keys, v)
}

// count counts a key that was looked at.
func (e *sample) count() {
	e.seen++
	e.done = e.seen >= e.fewest && (e.freed > 0 || e.remaining > 0) || e.seen >= e.most
}

// offer passes up to most keys of the shard to the sample, until it is done, and forgets idle keys at once. It
// starts where the last eviction stopped.
func (sh *shard) offer(e *sample, most int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	most = min(most, int(sh.keys))
	if most == 0 {
		return
	}
	t := sh.current()
	room := &sh.space.store.admission.room
	slots := t.groups * groupSlots
	for range slots {
		if sh.next++; uint64(sh.next) >= slots {
			sh.next = 0
		}
		p := place{uint64(sh.next) / groupSlots * t.size, uint64(sh.next) % groupSlots}
		if !t.holds(p) {
			continue
		}
		if k, st, idle := sh.forgetIdle(t, p, e.now, room); idle {
			e.freed++
		} else {
			e.look(k, st, candidate{sh: sh, id: t.id(p), fresh: k.Fresh(st)})
		}
		e.count()
		if most--; most == 0 || e.done {
			return
		}
	}
}

// evict forgets a key, and counts the eviction, if the key is idle or has at least as many events remaining as v. It
// reports whether it did.
func (sh *shard) evict(v candidate, now kernel.Instant) bool {
	sp := sh.space
	sh, t := sp.lock(v.id) // the key may have moved to another shard
	defer sh.mu.Unlock()
	p, ok := t.find(v.id)
	if !ok {
		return false
	}
	k, st, idle := sh.forgetIdle(t, p, now, &sp.store.admission.room)
	if idle {
		return true
	}
	if v.remaining == unlessIdle || k.Remaining(st, now) < v.remaining || !sh.freeze(t, p, st) {
		return false
	}
	sh.forgetLocked(t, p)
	sp.store.evicted.Add(1)
	return true
}

// take counts a new key. It returns false if the store is full.
func (sp *Space) take() bool {
	s := sp.store
	if s.MaxKeys == 0 {
		return true
	}
	for {
		n := s.held.Load()
		if n >= s.MaxKeys {
			return false
		}
		if s.held.CompareAndSwap(n, n+1) {
			sp.keys.Add(1)
			return true
		}
	}
}

// leave counts a key that was forgotten.
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
	bytes atomic.Uint64 // memory of the fields below

	mu          sync.Mutex     // protects the fields below; locked before a shard's
	sampleSizes                // usualSizes, except in tests
	next        cursor         // where the next sample starts
	found       kernel.Instant // when the last one was taken
	candidates  []candidate    // remembered from it and not yet used, best first
	sample      sample         // the last one, whose memory is reused
	room        [1]uint64      // for a state: see read
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

// makeRoom frees a place, or remembers the keys that may go, or reports full if the store refuses new keys. admit
// calls it until there is a place.
//
// It judges the keys of all spaces at now, because limiters that share a store share a
// clock.
func (s *Store) makeRoom(now kernel.Instant) (idle kernel.Instant, full bool) {
	a := &s.admission
	if now >= a.found+rememberedNs {
		a.candidates = nil
	}
	if a.recall(now) {
		return 0, false
	}
	if !s.RefuseNew || len(a.candidates) == 0 || now >= a.found+s.rest() {
		s.look(now)
		if e := &a.sample; !s.RefuseNew || e.freed > 0 || e.seen == 0 { // if seen is 0, all places are taken by keys that are still being inserted
			return 0, false
		}
	}
	return a.candidates[0].from, true
}

// rest returns how long a store that refuses new keys waits before it looks for idle ones again: long enough
// that it looks at every key about once a second.
func (s *Store) rest() kernel.Instant {
	most := int64(s.admission.most)
	return rememberedNs / uint64(max(1, (s.MaxKeys+most-1)/most))
}

// look takes a sample, and remembers the keys of it that may be evicted.
func (s *Store) look(now kernel.Instant) {
	a := &s.admission
	held := int(s.held.Load())
	e := &a.sample
	*e = sample{now: now, idle: s.RefuseNew, fewest: a.fewest, most: min(a.most, held), keys: e.keys[:0]}
	each := a.perShard
	if held <= a.most {
		e.fewest, each = held, held
	}
	a.walk(s.spaces(), each)
	keep := e.keys
	slices.SortFunc(keep, prefer)
	switch {
	case e.freed > 0:
		keep = nil
	case s.RefuseNew:
	case held <= a.most:
		keep = keep[:min(len(keep), 1)]
	case e.remaining > 0:
		keep = slices.DeleteFunc(keep, func(v candidate) bool { return v.remaining < e.remaining })
		keep = keep[:min(len(keep), a.remembered)]
	default:
		keep = keep[:min(len(keep), a.exhausted)]
	}
	a.candidates, a.found = keep, now
	a.bytes.Store(uint64(cap(e.keys)) * candidateSize)
}

// walk passes up to each keys of each shard to the sample, from the cursor on, until it is done, or has found no key in
// any space.
func (a *admission) walk(spaces []*Space, each int) {
	e := &a.sample
	for empty := 0; empty <= len(spaces); {
		sp, seen := spaces[a.next.space%len(spaces)], e.seen
		if sp.keys.Load() > 0 {
			for sh := range sp.shards(a.next.shard) {
				if sh.offer(e, each); e.done {
					a.next.shard = int(sh.first) + 1
					return
				}
			}
		}
		a.next = cursor{a.next.space + 1, 0}
		if empty++; e.seen > seen {
			empty = 0
		}
	}
}

// recall evicts a remembered candidate, unless it was used since. It returns false if none qualifies any
// more.
func (a *admission) recall(now kernel.Instant) bool {
	for len(a.candidates) > 0 && (a.candidates[0].remaining > unlessIdle || a.candidates[0].from <= now) {
		v := a.candidates[0]
		a.candidates = a.candidates[1:]
		if v.sh.evict(v, now) {
			return true
		}
	}
	return false
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
