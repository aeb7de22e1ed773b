package memory

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides which new keys a full store admits, and answers the requests of those
// that it does not. evict.go describes the policies.

// An occupancy counts the keys of a space, if the store has a bound.
type occupancy struct{ keys atomic.Int64 }

func (o *occupancy) vacant() bool { return o.keys.Load() == 0 }

// take counts a new key. It returns false if the store is full.
func (s *Store) take(o *occupancy) bool {
	if s.MaxKeys == 0 {
		return true
	}
	for {
		n := s.held.Load()
		if n >= s.MaxKeys {
			return false
		}
		if s.held.CompareAndSwap(n, n+1) {
			o.keys.Add(1)
			return true
		}
	}
}

// leave counts a key that was forgotten.
func (s *Store) leave(o *occupancy) {
	if s.MaxKeys > 0 {
		o.keys.Add(-1)
		s.held.Add(-1)
	}
}

// move counts a key that moves from one space to another.
func (s *Store) move(from, to *occupancy) {
	if s.MaxKeys > 0 {
		from.keys.Add(-1)
		to.keys.Add(1)
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

	mu         sync.Mutex     // protects the fields below; locked before a shard's
	lookSizes                 // usualSizes, except in tests
	near       cursor         // where the next sample starts
	far        cursor         // where the next scan starts
	found      kernel.Instant // when the last look was
	scanned    kernel.Instant // when the last scan was that found few idle keys
	candidates []candidate    // remembered from it and not yet used, best first
	scarce     bool           // whether it had to scan, and found few idle keys
	admitted   []candidate    // if so, keys admitted since, which may have events left
	eviction   eviction       // the last one, whose memory is reused
}

// A cursor points at a shard. Scans have their own, so that a scan revisits keys that
// the last scans have seen only after all others.
type cursor struct{ space, shard int }

// admit calls try, which takes a place for a new key, and makes room until try
// succeeds. If the policy forbids making room, admit reports full, and the instant at
// which a key may be idle.
//
// Only one call runs at a time: a key has its place before the next one looks for
// another.
func (s *Store) admit(req *kernel.Request, key candidate, try func() (ok bool)) (idle kernel.Instant, full bool) {
	a := &s.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	for !try() {
		now, _ := req.Now()
		if now >= a.found+rememberedNs {
			a.forget()
		}
		if idle, full = s.makeRoom(now); full {
			return idle, true
		}
	}
	if a.scarce && len(a.admitted) < a.eviction.keep {
		a.admitted = append(a.admitted, key)
	}
	return 0, false
}

// makeRoom frees at least one place, or reports full if the policy forbids that. (If
// keys move between shards meanwhile, it may free none; admit then calls it again.)
//
// It judges the keys of all spaces at now, because limiters that share a store share a
// clock.
func (s *Store) makeRoom(now kernel.Instant) (idle kernel.Instant, full bool) {
	a := &s.admission
	idleOnly := s.RefuseNew
	if a.recall(now, idleOnly) {
		return 0, false
	}
	if idleOnly && len(a.candidates) > 0 && now < a.found+s.rest() {
		return a.candidates[0].from, true
	}
	s.look(now, idleOnly)
	if a.choose() {
		return 0, false
	}
	return a.candidates[0].from, true
}

// rest returns how long a store waits before it scans for idle keys again: long enough that
// it looks at every key about once a second.
func (s *Store) rest() kernel.Instant {
	scan := int64(s.admission.scan)
	return rememberedNs / uint64(max(1, (s.MaxKeys+scan-1)/scan))
}

// forget drops the remembered candidates.
func (a *admission) forget() {
	a.candidates = nil
	clear(a.admitted)
	a.admitted = a.admitted[:0]
}

// recall evicts a remembered candidate. It returns false if none qualifies any more.
func (a *admission) recall(now kernel.Instant, idleOnly bool) bool {
	for len(a.candidates) > 0 && a.candidates[0].from <= now {
		v := a.candidates[0]
		a.candidates[0] = candidate{}
		a.candidates = a.candidates[1:]
		least := max(v.remaining, 1)
		if idleOnly {
			least = unlessIdle
		}
		if v.sh.evict(v, now, least) {
			return true
		}
	}
	for last := len(a.admitted) - 1; last >= 0; last-- {
		v := a.admitted[last]
		a.admitted[last] = candidate{}
		a.admitted = a.admitted[:last]
		if v.sh.evict(v, now, 1) {
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
	*a = noRoomUntil(idle, k, now, lag)
}

// noRoomUntil is the answer to a request for whose key the store has no room. Another key may be
// idle at idle.
func noRoomUntil(idle kernel.Instant, k *kernel.Compiled, now kernel.Instant, lag uint64) kernel.Answer {
	wait := kernel.Until(max(idle, now+1), now, lag)
	return kernel.Answer{Limit: k.Limit(), RetryAfter: wait, Wait: wait, Full: true}
}
