package memory

import (
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// Logs is a space for states that grow with use (those with a SlidingLog in them), and
// for those that have no room in Tables. As in Tables, a key is known by its
// identity, and a directory divides the space into shards that are split. Unlike in
// Tables, a state is accessed only under the shard's lock, so that it can be moved.
// logtable.go describes where states are kept, and loggrowth.go how tables are replaced.
type Logs struct {
	occupancy
	store  *Store
	serial uint64 // see serials
	directory[logShard]
}

func newLogs(s *Store) *Logs {
	sp := &Logs{store: s, serial: serials.Add(1)}
	sh := &logShard{space: sp}
	sp.init(s, logSplitAt, sh, sh)
	return sp
}

// Apply applies req to the state of key, with the kernel k, and fills in the answer.
func (sp *Logs) Apply(key string, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) {
	id := sp.store.identify(key)
	try := func() (ok bool) {
		for {
			if out := sp.apply(id, k, req, a); out != replaced {
				return out == updated
			}
		}
	}
	if try() {
		return
	}
	if idle, full := sp.store.admit(req, try); full {
		sp.store.refuse(k, req, idle, a)
	}
}

// lock locks the shard of id, and returns it.
func (sp *Logs) lock(id identity) *logShard {
	for {
		sh := sp.at(id)
		sh.mu.Lock()
		if sp.at(id) == sh {
			return sh
		}
		sh.mu.Unlock() // it was split meanwhile
	}
}

// Allow reports whether n events of key are granted, 1 ≤ n ≤ limit. It is a faster
// Apply for callers that need nothing else.
func (sp *Logs) Allow(clk *kernel.Timeline, key string, k *kernel.Compiled, n int) bool {
	id := sp.store.identify(key)
	if granted, ok := sp.allow(id, clk, k, n); ok {
		return granted
	}
	req, a := kernel.Request{Op: kernel.OpTake, N: n, Clock: clk}, kernel.Answer{}
	sp.Apply(key, k, &req, &a)
	return a.Allowed
}

// allow is Allow for a key that the space has a state for, which k left, and whose table
// has room for the events. Otherwise, ok is false.
func (sp *Logs) allow(id identity, clk *kernel.Timeline, k *kernel.Compiled, n int) (granted, ok bool) {
	sh := sp.lock(id)
	defer sh.mu.Unlock()
	i, ok := sh.find(id)
	if !ok {
		return false, false
	}
	e := &sh.slots[i]
	if sh.kernel(e) != k || sh.makeRoom(e, n, false) > 0 {
		return false, false
	}
	st, granted, _ := k.Allow(sh.state(e), clk, n)
	sh.set(e, st)
	return granted, true
}

// apply calls applyLocked under the lock, which it releases even if the user's clock
// panics.
func (sp *Logs) apply(id identity, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) outcome {
	sh := sp.lock(id)
	defer sh.mu.Unlock()
	return sh.applyLocked(id, k, req, a)
}

// Reset forgets key.
func (sp *Logs) Reset(key string) { sp.reset(sp.store.identify(key)) }

func (sp *Logs) reset(id identity) {
	sh := sp.lock(id)
	defer sh.mu.Unlock()
	if i, ok := sh.find(id); ok {
		sh.forgetLocked(i, false)
	}
}

// A logShard is one part of a space, with its own lock.
type logShard struct {
	space *Logs
	first uint32 // index of its first directory entry

	depth    uint32     // its directory entries are 1<<depth apart
	mu       sync.Mutex // protects depth and the fields below
	logTable            // the keys held
	next     int        // the slot where the next eviction starts
	ended    uint64     // holds that ended by themselves, or early
	upkeep
}

// applyLocked applies req to the state of id. If that takes a place for a new key and
// the store has none, it changes nothing and returns noRoom. If it returns replaced,
// the caller tries again.
func (sh *logShard) applyLocked(id identity, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) outcome {
	sp := sh.space
	i, ok := sh.find(id)
	if ok {
		e := &sh.slots[i]
		if req.Op != kernel.OpPeek {
			if lacks := sh.makeRoom(e, req.Adds(), req.Opens()); lacks > 0 {
				sh.repackLocked(lacks)
				return replaced
			}
		}
		sh.step(e, k, req, a)
		return updated
	}
	if sh.full() || sh.looks() {
		if now, _ := req.Now(); sh.makeRoomLocked(now) {
			return replaced
		}
	}
	st, lacks := sh.blank(k, req.Opens())
	if lacks > 0 {
		sh.repackLocked(lacks)
		return replaced
	}
	by, st, changed := k.StepFrom(k, st, req, a)
	if !changed {
		if sp.store.answers(req.Op) {
			return updated
		}
		return noRoom
	}
	if !sp.store.take(&sp.occupancy) {
		return noRoom
	}
	sh.insert(i, id, by)
	sh.set(&sh.slots[i], st)
	sh.inserts++
	sp.store.keepTime(req.Clock)
	return updated
}

// step applies req, which asks for k, to the state of e.
func (sh *logShard) step(e *logEntry, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) {
	by, st, _ := k.StepFrom(sh.kernel(e), sh.state(e), req, a)
	sh.ended += uint64(a.Ended)
	sh.setKernel(e, by)
	sh.set(e, st)
}

// forgetLocked forgets the key in slot i. If it is idle, its holds have ended by themselves.
func (sh *logShard) forgetLocked(i int, idle bool) {
	if e := &sh.slots[i]; idle {
		sh.ended += uint64(sh.kernel(e).OpenHolds(sh.state(e)))
	}
	sh.remove(i)
	sh.space.store.leave(&sh.space.occupancy)
}
