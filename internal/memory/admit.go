package memory

import (
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file admits new keys to a full store: it counts the places, has evict.go make room, and
// answers the requests of keys for which there is none.

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

// take takes places for new keys of a store with a bound. It returns false, and takes none, if
// there are fewer.
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
func (s *Store) answers(op step.Op) bool {
	return op != step.OpPeek || !s.RefuseNew || s.MaxKeys == 0 || s.held.Load() < s.MaxKeys
}

// An admission makes room for new keys, one at a time, if the store has a bound.
type admission struct {
	mu      sync.Mutex  // protects the fields below; locked before a shard's
	sizes   sampleSizes // usualSizes, except in tests
	next    cursor      // where the next sample starts
	flooded *Space      // the flooded limiter, if any
	own     int         // the directory entry of it where the next sample starts
	sample  sample      // the last one, whose memory is reused
	room    [1]uint64   // for a state: see read
}

// admit calls try, which takes a place for a new key of sp, and makes room until try
// succeeds. If the store refuses new keys, admit reports full, and the instant at
// which a key may be idle.
//
// Only one call runs at a time: a key has its place before the next one looks for
// another.
func (sp *Space) admit(req *step.Request, try func() (ok bool)) (idle kernel.Instant, full bool) {
	a := &sp.store.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	for !try() {
		now, _ := req.Now()
		idle, full = sp.makeRoom(now)
		if full {
			return idle, true
		}
	}
	return 0, false
}

// refuse answers req, for whose key the store has no room. Another key may be idle at idle.
func (s *Store) refuse(
	k *step.Machine,
	req *step.Request,
	idle kernel.Instant,
	a *step.Answer,
) {
	if req.Op != step.OpPeek {
		s.rejected.Add(1)
	}
	now, lag := req.Now()
	wait := kernel.Until(max(idle, now+1), now, lag)
	*a = step.Answer{
		Decision: step.Decision{Limit: k.Limit(), RetryAfter: wait},
		Wait:     wait,
		Full:     true,
	}
}
