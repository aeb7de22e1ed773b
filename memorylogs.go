package ratelimit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// logs are the states of one limiter, if they grow with use: those with a
// SlidingLog in them. They are kept in maps, by key, under locks.
type logs struct {
	seated
	store  *MemoryStore
	over   overflow
	t      *Transition
	time   atomic.Pointer[timeline] // the one of the first key
	shards []logShard               // a power of two
	all    []evictee                // the same
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

// A logShard is a part of the states under one lock. Keys and states lie side
// by side in no order, without gaps; a map finds them.
type logShard struct {
	mu     sync.Mutex // protects everything below
	space  *logs
	index  map[string]int // where a key is
	keys   []string
	states [][]uint64
	hand   int // the key to be looked at next for being idle

	inserts uint64 // so far
	bytes   int    // of keys and states
}

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
		st, _, res := t.step(sh.states[i], req)
		sh.bytes += 8 * (cap(st) - cap(sh.states[i]))
		sh.states[i] = st
		return res, true
	}
	st, changed, res := t.step(nil, req)
	if !changed {
		return res, sh.space.store.answers(req.Op)
	}
	now, _ := req.now()
	sh.sweepLocked(now)
	if !sh.space.store.takeSeat(&sh.space.seated) {
		return Result{}, false
	}
	key = strings.Clone(key) // not to keep alive what it was cut out of
	sh.index[key] = len(sh.keys)
	sh.keys = append(sh.keys, key)
	sh.states = append(sh.states, st)
	sh.inserts++
	sh.bytes += sh.weigh(len(sh.keys) - 1)
	if sh.space.time.Load() == nil {
		sh.space.time.Store(req.timeline)
	}
	return res, true
}

// sweepLocked looks at a few keys, and forgets those that are idle.
func (sh *logShard) sweepLocked(now instant) {
	for range 4 {
		if len(sh.keys) == 0 {
			return
		}
		if sh.hand >= len(sh.keys) || sh.hand < 0 {
			sh.hand = 0
		}
		if sh.space.t.kernel.fresh(sh.states[sh.hand]) <= now {
			sh.removeLocked(sh.hand) // and look next at the one that takes its place
		} else {
			sh.hand++
		}
	}
}

// weigh returns how many bytes the i-th key and its state take.
func (sh *logShard) weigh(i int) int { return len(sh.keys[i]) + 8*cap(sh.states[i]) + 16 + 24 + 8 }

// removeLocked forgets the i-th key, and puts the last one in its place.
func (sh *logShard) removeLocked(i int) {
	last := len(sh.keys) - 1
	sh.bytes -= sh.weigh(i)
	delete(sh.index, sh.keys[i])
	if i < last {
		sh.keys[i], sh.states[i] = sh.keys[last], sh.states[last]
		sh.index[sh.keys[i]] = i
	}
	sh.keys[last], sh.states[last] = "", nil
	sh.keys, sh.states = sh.keys[:last], sh.states[:last]
	sh.space.store.leaveSeat(&sh.space.seated)
}

func (sh *logShard) offer(e *eviction, most int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := sh.space.t.kernel
	for range min(len(sh.keys), most) {
		if sh.hand++; sh.hand >= len(sh.keys) {
			sh.hand = 0
		}
		st := sh.states[sh.hand]
		v := victim{sh: sh, key: sh.keys[sh.hand], fresh: k.fresh(st)}
		if v.fresh <= e.now {
			sh.removeLocked(sh.hand)
			sh.hand-- // and look next at the one that takes its place
			e.forgot()
		} else {
			e.look(k, st, v)
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
	k := sh.space.t.kernel
	idle := k.fresh(sh.states[i]) <= now
	if !idle && spares(k.room(sh.states[i], now), room) {
		return false
	}
	sh.removeLocked(i)
	sh.space.store.lost(idle)
	return true
}

// shrink forgets idle keys, and moves the others to maps and slices of their size.
func (sp *logs) shrink() {
	tl := sp.time.Load()
	if tl == nil {
		tl = newTimeline(nil) // there are no keys, or all from requests with a time of their own
	}
	now, _ := tl.now()
	for i := range sp.shards {
		sp.shards[i].shrink(now)
	}
}

func (sh *logShard) shrink(now instant) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for i := len(sh.keys) - 1; i >= 0; i-- {
		if sh.space.t.kernel.fresh(sh.states[i]) <= now {
			sh.removeLocked(i)
		}
	}
	sh.keys, sh.states = slices.Clip(slices.Clone(sh.keys)), slices.Clip(slices.Clone(sh.states))
	sh.index = make(map[string]int, len(sh.keys))
	for i, key := range sh.keys {
		sh.index[key] = i
	}
}

// count adds up what the shards hold, without the memory of their maps.
func (sp *logs) count(stats *MemoryStats) {
	sp.over.count(stats)
	for i := range sp.shards {
		sh := &sp.shards[i]
		sh.mu.Lock()
		stats.Keys += len(sh.keys)
		stats.Inserts += sh.inserts
		stats.Bytes += uint64(sh.bytes)
		sh.mu.Unlock()
	}
}

func (sp *logs) evictees() []evictee { return sp.all }
