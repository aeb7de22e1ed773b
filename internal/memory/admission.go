package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// What a store does when it is full is in this file: who gets a seat, and what
// becomes of those for whom there is none. Who loses a seat is in evict.go.

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
