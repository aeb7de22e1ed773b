package ratelimit

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// logs are the states of one limiter, if they grow with use: those with a
// SlidingLog in them, or WithLimits. They are kept in maps, by key, under locks.
type logs struct {
	seated
	store  *MemoryStore
	over   overflow
	t      *Transition
	shards []logShard // a power of two
	all    []evictee  // the same
}

func newLogs(s *MemoryStore, t *Transition) *logs {
	sp := &logs{store: s, over: newOverflow(s, t), t: t, shards: make([]logShard, s.shardCount(256))}
	for i := range sp.shards {
		sp.shards[i].space = sp
		sp.shards[i].index = make(map[string]int)
		sp.all = append(sp.all, &sp.shards[i])
	}
	return sp
}

func (sp *logs) shard(key string) *logShard {
	return &sp.shards[sp.store.identify(key).hi>>1&uint64(len(sp.shards)-1)]
}

// Apply implements [States].
func (sp *logs) Apply(_ context.Context, key string, t *Transition, req Request) (Result, error) {
	if err := req.check(); err != nil {
		return Result{}, err
	}
	if res, ok := sp.over.cancels(t, &req); ok {
		return res, nil
	}
	sh := sp.shard(key)
	res, done := sh.apply(key, t, &req)
	if done {
		return res, nil
	}
	idle, full := sp.store.admit(&req, victim{sh: sh, key: key}, func() bool {
		res, done = sh.apply(key, t, &req)
		return done
	})
	if full {
		return sp.over.apply(t, &req, idle), nil
	}
	return res, nil
}

// Reset implements [States].
func (sp *logs) Reset(_ context.Context, key string) error {
	sh := sp.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if i, ok := sh.index[key]; ok {
		sh.removeLocked(i)
	}
	return nil
}

// A logShard is a part of the states under one lock. Entries lie side by side in no
// order, without gaps; a map finds them.
type logShard struct {
	mu      sync.Mutex // protects everything below
	space   *logs
	index   map[string]int // where a key is
	entries []logEntry
	hand    int // the key to be looked at next for being idle

	inserts uint64 // so far
	bytes   int    // of keys and states
}

// A logEntry is a key, its state, and the transition that left it.
type logEntry struct {
	key   string
	state []uint64
	by    *Transition
}

func (e *logEntry) fresh() instant { return e.by.kernel.fresh(e.state) }

// weigh returns how many bytes it takes, with its place in the map.
func (e *logEntry) weigh() int { return len(e.key) + 8*cap(e.state) + 16 + 24 + 8 + 8 }

// apply takes the lock for applyLocked. It gives it back even if the user's clock
// panics.
func (sh *logShard) apply(key string, t *Transition, req *Request) (res Result, done bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.applyLocked(key, t, req)
}

// applyLocked applies req to key. If that needs a seat for a new key and there
// is none, it does nothing and returns false.
func (sh *logShard) applyLocked(key string, t *Transition, req *Request) (res Result, done bool) {
	if i, ok := sh.index[key]; ok {
		e := &sh.entries[i]
		by, st, _, res := t.stepFrom(e.by, e.state, req)
		sh.bytes += 8 * (cap(st) - cap(e.state))
		e.state, e.by = st, by
		return res, true
	}
	var st []uint64
	if width := t.kernel.width(); width > 0 {
		st = make([]uint64, width)
	}
	st, changed, res := t.step(st, req)
	if !changed {
		return res, sh.space.store.answers(req.Op)
	}
	now, _ := req.now()
	sh.sweepLocked(now)
	if !sh.space.store.takeSeat(&sh.space.seated) {
		return Result{}, false
	}
	e := logEntry{strings.Clone(key), st, t} // not to keep alive what the key was cut out of
	sh.index[e.key] = len(sh.entries)
	sh.entries = append(sh.entries, e)
	sh.inserts++
	sh.bytes += e.weigh()
	sh.space.store.keepTime(req)
	return res, true
}

// sweepLocked looks at a few keys, and forgets those that are idle.
func (sh *logShard) sweepLocked(now instant) {
	for range 4 {
		if len(sh.entries) == 0 {
			return
		}
		if sh.hand >= len(sh.entries) || sh.hand < 0 {
			sh.hand = 0
		}
		if sh.entries[sh.hand].fresh() <= now {
			sh.removeLocked(sh.hand) // and look next at the one that takes its place
		} else {
			sh.hand++
		}
	}
}

// removeLocked forgets the i-th key, and puts the last one in its place.
func (sh *logShard) removeLocked(i int) {
	last := len(sh.entries) - 1
	sh.bytes -= sh.entries[i].weigh()
	delete(sh.index, sh.entries[i].key)
	if i < last {
		sh.entries[i] = sh.entries[last]
		sh.index[sh.entries[i].key] = i
	}
	sh.entries[last] = logEntry{}
	sh.entries = sh.entries[:last]
	sh.space.store.leaveSeat(&sh.space.seated)
}

func (sh *logShard) offer(e *eviction, most int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for range min(len(sh.entries), most) {
		if sh.hand++; sh.hand >= len(sh.entries) {
			sh.hand = 0
		}
		of := &sh.entries[sh.hand]
		v := victim{sh: sh, key: of.key, fresh: of.fresh()}
		if v.fresh <= e.now {
			sh.removeLocked(sh.hand)
			sh.hand-- // and look next at the one that takes its place
			e.forgot()
		} else {
			e.look(of.by.kernel, of.state, v)
		}
		if e.done {
			return
		}
	}
}

func (sh *logShard) evict(v victim, now instant, room int) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i, ok := sh.index[v.key]
	if !ok {
		return false
	}
	e := &sh.entries[i]
	idle := e.fresh() <= now
	if !idle && spares(e.by.kernel.room(e.state, now), room) {
		return false
	}
	sh.removeLocked(i)
	sh.space.store.lost(idle)
	return true
}

// shrink forgets idle keys, and moves the others to maps and slices of their size.
func (sp *logs) shrink() {
	now := sp.store.now()
	for i := range sp.shards {
		sp.shards[i].shrink(now)
	}
}

func (sh *logShard) shrink(now instant) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for i := len(sh.entries) - 1; i >= 0; i-- {
		if sh.entries[i].fresh() <= now {
			sh.removeLocked(i)
		}
	}
	sh.entries = slices.Clip(slices.Clone(sh.entries))
	sh.index = make(map[string]int, len(sh.entries))
	for i := range sh.entries {
		sh.index[sh.entries[i].key] = i
	}
}

// count adds up what the shards hold, without the memory of their maps.
func (sp *logs) count(stats *MemoryStats) {
	sp.over.count(stats)
	for i := range sp.shards {
		sh := &sp.shards[i]
		sh.mu.Lock()
		stats.Keys += len(sh.entries)
		stats.Inserts += sh.inserts
		stats.Bytes += uint64(sh.bytes)
		sh.mu.Unlock()
	}
}

func (sp *logs) evictees() []evictee { return sp.all }
