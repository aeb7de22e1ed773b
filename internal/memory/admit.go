package memory

import (
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file admits a new key to a full store, for which evict.go makes room, or denies its request.

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
func (s *Store) refuse(k *step.Machine, req *step.Request, idle kernel.Instant, a *step.Answer) {
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

// answers reports whether a request that changes nothing can be answered for a new key
// without a place in the store. That is true except for an OpPeek when the store may
// have to reject the OpTake that it foretells.
func (s *Store) answers(op step.Op) bool {
	return op != step.OpPeek || !s.RefuseNew || s.MaxKeys == 0 || s.held.Load() < s.MaxKeys
}
