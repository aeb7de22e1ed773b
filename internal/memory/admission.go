package memory

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// What a store does when it is full is in this file: which new keys are
// admitted, and what becomes of the others. Which keys go is in evict.go.

// An occupancy is how many keys a space has, if there is a bound.
type occupancy struct{ keys atomic.Int64 }

func (o *occupancy) vacant() bool { return o.keys.Load() == 0 }

// take counts a further key in, unless the store is full.
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

// leave counts a key out.
func (s *Store) leave(o *occupancy) {
	if s.MaxKeys > 0 {
		o.keys.Add(-1)
		s.held.Add(-1)
	}
}

// answers reports whether a request that changes nothing is answered for a new
// key as if there were room for it: always, but for an OpPeek, which must answer
// what OpTake would, if the store may have to reject that.
func (s *Store) answers(op kernel.Op) bool {
	return op != kernel.OpPeek || s.Full == EvictLeast || s.MaxKeys == 0 || s.held.Load() < s.MaxKeys
}

// An admission is where new keys wait if there is a bound, one after the other.
type admission struct {
	bytes atomic.Uint64 // of memory for what follows

	mu         sync.Mutex     // protects what follows; taken before that of a shard
	lookSizes                 // usualSizes, but for tests
	near       hand           // where the next sample begins
	far        hand           // where the next look at many begins
	found      kernel.Instant // when the last look was
	candidates []candidate    // that it remembered, those left, the best first
	scarce     bool           // whether it had to look at many
	admitted   []candidate    // if so: who came since, and may have something left
	eviction   eviction       // the last one, kept for its memory
}

// A hand points at a shard. Looks at many have one of their own, so that none is at
// keys that the last ones have seen while there are others.
type hand struct{ space, shard int }

// admit calls try, which takes a place for a new key, until it has found one, and
// makes room for it as often as need be. If the policy forbids that, it returns
// when a key may be idle.
//
// It is the only one to do so then: a key has its place before the next one
// looks for another.
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

// makeRoom frees at least one place, unless keys have moved meanwhile, or the
// policy forbids it.
//
// The keys of all spaces are looked at as of now: limiters that share a store
// are taken to share a clock.
func (s *Store) makeRoom(now kernel.Instant) (idle kernel.Instant, full bool) {
	a := &s.admission
	idleOnly := s.Full != EvictLeast
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

// rest returns how long a store that may not evict waits until it looks at keys
// again, since others may be idle: so long that it looks at all once a second.
func (s *Store) rest() kernel.Instant {
	stride := int64(s.admission.stride)
	return rememberedNs / uint64(max(1, (s.MaxKeys+stride-1)/stride))
}

// forget drops what was remembered.
func (a *admission) forget() {
	a.candidates = nil
	clear(a.admitted)
	a.admitted = a.admitted[:0]
}

// recall evicts a key that was remembered.
func (a *admission) recall(now kernel.Instant, idleOnly bool) bool {
	for len(a.candidates) > 0 && a.candidates[0].from <= now {
		v := a.candidates[0]
		a.candidates[0] = candidate{}
		a.candidates = a.candidates[1:]
		least := max(v.room, 1)
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

// An overflow decides on the requests of new keys for which there is no room.
type overflow struct {
	store *Store

	// With ShareUnseen, the one key that they all are, in a store of its own: one of
	// these. In logs, there is one for each kind of kernel.
	tables *Tables
	logs   *Logs
}

// newOverflow returns what Tables of k need, or if k is nil, Logs.
func newOverflow(s *Store, k *kernel.Compiled) overflow {
	o := overflow{store: s}
	switch {
	case s.Full != ShareUnseen:
	case k != nil:
		o.tables = new(Store).OpenTables(k, 0)
	default:
		o.logs = new(Store).OpenLogs(0)
	}
	return o
}

// count adds the memory of the shared state.
func (o *overflow) count(stats *Stats) {
	var shared Stats
	switch {
	case o.tables != nil:
		o.tables.count(&shared)
	case o.logs != nil:
		o.logs.count(&shared)
	}
	stats.Bytes += shared.Bytes
}

// shared applies req to the shared state.
func (o *overflow) shared(k *kernel.Compiled, req kernel.Request) (a kernel.Answer) {
	if o.tables != nil {
		o.tables.Apply("", &req, &a)
	} else {
		o.logs.Apply(k.Kind(), k, &req, &a)
	}
	return a
}

func (o *overflow) shares() bool { return o.tables != nil || o.logs != nil }

// A sharedGrant is one that was made in an overflow.
type sharedGrant struct{ grant any }

// cancels reports whether req is to cancel a grant that was made here, and does.
func (o *overflow) cancels(k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) bool {
	g, ok := req.Grant.(sharedGrant)
	if !ok || !o.shares() {
		return false
	}
	inner := *req
	inner.Grant = g.grant
	*a = o.shared(k, inner)
	return true
}

// apply decides on req, whose key found no room. Another may be idle at an
// instant.
func (o *overflow) apply(k *kernel.Compiled, req *kernel.Request, idle kernel.Instant, a *kernel.Answer) {
	if req.Op != kernel.OpPeek {
		o.store.rejected.Add(1)
	}
	if o.shares() {
		*a = o.shared(k, *req)
		if a.Grant != nil {
			a.Grant = sharedGrant{a.Grant}
		}
		return
	}
	now, lag := req.Now()
	wait := kernel.Until(max(idle, now+1), now, lag)
	*a = kernel.Answer{Limit: k.Limit(), RetryAfter: wait, Wait: wait, Full: true}
}
