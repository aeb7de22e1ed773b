package ratelimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
)

// A MemoryStore keeps states in the memory of the process. It is safe for any
// number of goroutines and limiters, needs no goroutine of its own and need
// not be closed.
//
// It forgets a key only when that makes no difference: when its state equals
// that of a key never seen. It looks for such keys a few at a time whenever a
// new one comes, so that it holds at most about a third more keys than are in
// use. [WithMaxKeys] sets a bound for the case that too many are.
type MemoryStore struct {
	maxKeys int64 // 0 means no bound
	seed    maphash.Seed
	keys    atomic.Int64 // held in all shards; with a bound, seats taken
	inserts atomic.Uint64
	evicted atomic.Uint64

	mu     sync.Mutex // protects spaces
	spaces map[string]*space
	shards atomic.Pointer[[]*shard] // those of all spaces; written under mu
	hand   atomic.Uint64            // counts evictions, to begin each elsewhere
}

// A MemoryOption changes how [NewMemoryStore] makes a store.
type MemoryOption func(*MemoryStore)

// WithMaxKeys bounds the number of keys that a store holds, over all of its
// limiters, to n; 0, the default, sets no bound. When a further key comes, and
// no idle one is found, the store forgets the key whose loss forgives least:
// the one with the most Remaining, and among equals the one that resets
// soonest. So a flood of new keys pushes out its own, and not one that has used
// up its limit. The choice is among all keys up to 512, and among a sample of
// at least 64 beyond, which grows to 512 for as long as it holds nothing but
// exhausted keys.
//
// Each loss is counted in [MemoryStats].Evictions. A negative n is an error that
// [New] returns.
func WithMaxKeys(n int) MemoryOption {
	return func(s *MemoryStore) { s.maxKeys = int64(n) }
}

// NewMemoryStore returns an empty store.
func NewMemoryStore(opts ...MemoryOption) *MemoryStore {
	s := &MemoryStore{seed: maphash.MakeSeed(), spaces: make(map[string]*space)}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	return s
}

// Len returns the number of keys held, idle ones not yet forgotten included.
func (s *MemoryStore) Len() int { return int(s.keys.Load()) }

// MemoryStats are the counts of a [MemoryStore].
type MemoryStats struct {
	Keys      int    // held now, idle ones not yet forgotten included
	Inserts   uint64 // keys that were new, or had been forgotten, so far
	Evictions uint64 // keys in use that WithMaxKeys forced the store to forget, so far
}

// Stats returns the counts of the store. They are read one after the other.
func (s *MemoryStore) Stats() MemoryStats {
	return MemoryStats{Keys: s.Len(), Inserts: s.inserts.Load(), Evictions: s.evicted.Load()}
}

// Open implements [Store].
func (s *MemoryStore) Open(name string, t *Transition) (States, error) {
	if s.maxKeys < 0 {
		return nil, invalid("WithMaxKeys's n", s.maxKeys, "must be at least 1, or 0 for no bound")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.spaces[name]; sp != nil {
		if !reflect.DeepEqual(sp.t.alg, t.alg) {
			return nil, fmt.Errorf("ratelimit: the store already has a limiter named %q, with %+v: give the one with %+v another name with WithName: %w", name, sp.t.alg, t.alg, ErrInvalid)
		}
		return sp, nil
	}
	sp := newSpace(s, t)
	s.spaces[name] = sp
	var all []*shard
	if old := s.shards.Load(); old != nil {
		all = append(all, *old...)
	}
	for i := range sp.shards {
		all = append(all, &sp.shards[i])
	}
	s.shards.Store(&all)
	return sp, nil
}

// A space holds the states of one limiter, spread over shards by the hash of
// the key so that callers on different keys seldom meet.
type space struct {
	store  *MemoryStore
	t      *Transition
	shards []shard // a power of two
}

func newSpace(s *MemoryStore, t *Transition) *space {
	shards := 1 << bits.Len(uint(4*runtime.GOMAXPROCS(0)-1))
	sp := &space{store: s, t: t, shards: make([]shard, min(shards, 256))}
	for i := range sp.shards {
		sp.shards[i].init(sp)
	}
	return sp
}

func (sp *space) shard(key string) *shard {
	return &sp.shards[maphash.String(sp.store.seed, key)&uint64(len(sp.shards)-1)]
}

// Apply implements [States].
func (sp *space) Apply(_ context.Context, key string, t *Transition, req Request) (Result, error) {
	sh := sp.shard(key)
	for {
		sh.mu.Lock()
		res, seated := sh.applyLocked(key, t, &req)
		sh.mu.Unlock()
		if seated {
			return res, nil
		}
		now, _ := req.now()
		sp.store.evict(now)
	}
}

// Reset implements [States].
func (sp *space) Reset(_ context.Context, key string) error {
	sh := sp.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if i, ok := sh.index[key]; ok {
		sh.removeLocked(i)
	}
	return nil
}

// takeSeat counts a further key in, unless the store is full.
func (s *MemoryStore) takeSeat() bool {
	if n := s.keys.Add(1); s.maxKeys == 0 || n <= s.maxKeys {
		return true
	}
	s.keys.Add(-1)
	return false
}

// A shard is a part of a space under one lock. Its keys and their states lie
// side by side in no order, without gaps; a map finds them.
type shard struct {
	mu    sync.Mutex // protects everything below
	space *space
	index map[string]int // where a key is

	keys  []string
	words []uint64   // states of fixed width, one after the other
	grown [][]uint64 // states that grow with use
	width int        // of a state in words, or 0 for grown

	blank []uint64 // a fresh state to try a transition on
	hand  int      // the key to be looked at next for being idle

	_ [128 - (8+8+8+24+24+24+8+24+8)%128]byte // keeps neighbours' locks apart
}

func (sh *shard) init(sp *space) {
	sh.space = sp
	sh.index = make(map[string]int)
	sh.width = sp.t.kernel.width()
	sh.blank = make([]uint64, sh.width)
}

// stateLocked returns the state of the i-th key.
func (sh *shard) stateLocked(i int) []uint64 {
	if sh.width == 0 {
		return sh.grown[i]
	}
	return sh.words[i*sh.width : (i+1)*sh.width : (i+1)*sh.width]
}

// applyLocked applies req to key. If that needs a seat for a new key and there
// is none, it does nothing and returns false.
func (sh *shard) applyLocked(key string, t *Transition, req *Request) (res Result, seated bool) {
	if i, ok := sh.index[key]; ok {
		var st []uint64
		st, _, res = t.step(sh.stateLocked(i), req)
		if sh.width == 0 {
			sh.grown[i] = st
		}
		return res, true
	}
	clear(sh.blank)
	st, changed, res := t.step(sh.blank, req)
	if !changed {
		return res, true
	}
	now, _ := req.now()
	sh.sweepLocked(now)
	if !sh.space.store.takeSeat() {
		return Result{}, false
	}
	sh.space.store.inserts.Add(1)
	key = strings.Clone(key) // not to keep alive what it was cut out of
	sh.index[key] = len(sh.keys)
	sh.keys = append(sh.keys, key)
	if sh.width == 0 {
		sh.grown = append(sh.grown, st)
	} else {
		sh.words = append(sh.words, st...)
	}
	return res, true
}

// sweepLocked looks at a few keys, and forgets those that are idle.
func (sh *shard) sweepLocked(now instant) {
	for range 4 {
		if len(sh.keys) == 0 {
			return
		}
		if sh.hand >= len(sh.keys) {
			sh.hand = 0
		}
		if sh.space.t.kernel.fresh(sh.stateLocked(sh.hand)) <= now {
			sh.removeLocked(sh.hand) // and look next at the one that takes its place
		} else {
			sh.hand++
		}
	}
}

// removeLocked forgets the i-th key, and puts the last one in its place.
func (sh *shard) removeLocked(i int) {
	last := len(sh.keys) - 1
	delete(sh.index, sh.keys[i])
	if i < last {
		sh.keys[i] = sh.keys[last]
		sh.index[sh.keys[i]] = i
	}
	sh.keys[last] = ""
	sh.keys = sh.keys[:last]
	if sh.width == 0 {
		sh.grown[i] = sh.grown[last]
		sh.grown[last] = nil
		sh.grown = sh.grown[:last]
	} else {
		copy(sh.stateLocked(i), sh.words[last*sh.width:])
		sh.words = sh.words[:last*sh.width]
	}
	sh.space.store.keys.Add(-1)
}

// How many keys an eviction looks at: at least fewest, and up to most while
// all that it saw are exhausted or the store is so small that it can see all.
const (
	sampleFewest = 64
	sampleMost   = 512
)

// A victim is a key that may be evicted.
type victim struct {
	sh    *shard
	key   string
	room  int     // what it could still be granted
	fresh instant // when nothing is lost with it
}

// lesser reports whether losing v forgives less than losing w.
func (v victim) lesser(w victim) bool {
	return v.room > w.room || v.room == w.room && v.fresh < w.fresh
}

// evict frees at least one seat, unless somebody else does meanwhile. It holds
// one lock at a time. The keys of all spaces are looked at as of now: limiters
// that share a store are taken to share a clock.
func (s *MemoryStore) evict(now instant) {
	shards := *s.shards.Load()
	begin := s.hand.Add(1)
	exhaustive := s.maxKeys <= sampleMost
	var best victim
	seen := 0
	for i := range uint64(len(shards)) {
		sh := shards[(begin+i)%uint64(len(shards))]
		sh.mu.Lock()
		n := len(sh.keys)
		for j := range n {
			at := (sh.hand + j) % n
			st := sh.stateLocked(at)
			k := sh.space.t.kernel
			v := victim{sh, sh.keys[at], k.room(st, now), k.fresh(st)}
			if v.fresh <= now {
				sh.removeLocked(at)
				sh.mu.Unlock()
				return
			}
			if best.sh == nil || v.lesser(best) {
				best = v
			}
			if seen++; !exhaustive && seen >= sampleFewest && best.room > 0 || seen >= sampleMost {
				sh.hand = at + 1
				break
			}
		}
		sh.mu.Unlock()
		if !exhaustive && seen >= sampleFewest && best.room > 0 || seen >= sampleMost {
			break
		}
	}
	if best.sh == nil {
		return // another caller holds a seat that it has not used yet
	}
	best.sh.mu.Lock()
	defer best.sh.mu.Unlock()
	i, ok := best.sh.index[best.key]
	if !ok || best.sh.space.t.kernel.room(best.sh.stateLocked(i), now) < best.room {
		return // it has changed; the caller tries again
	}
	best.sh.removeLocked(i)
	s.evicted.Add(1)
}
