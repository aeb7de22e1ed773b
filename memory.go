package ratelimit

import (
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
)

// A MemoryStore keeps states in the memory of the process. It is safe for any
// number of goroutines and limiters, needs no goroutine of its own and need
// not be closed. The zero MemoryStore is empty and ready to use. Limiters that
// share one should share a clock, too: a key is idle if it is by the clock of
// whoever looks.
//
// It forgets a key only when that makes no difference: when its state equals
// that of a key never seen. It looks for such keys when it needs room for new
// ones, or when [MemoryStore.Shrink] tells it to. [WithMaxKeys] sets a bound for
// the case that too many are in use.
//
// Keys are known by 96 bits of hash, under secrets that each store draws for
// itself. That two of 100 million keys share a state has a chance below 10⁻¹²,
// which no attacker can raise. On average, two thirds of a table are in use. So a
// key costs 1.5 × (13⅓ bytes + its state). With a [SlidingLog] or [WithLimits] it
// costs 1.5 × 48 bytes + its state, which is 32 bytes for a log of one event.
// A limiter without keys takes about a kilobyte or less.
type MemoryStore struct {
	memoryConfig
	identifier              // with the secrets of this store
	seats      atomic.Int64 // taken, if there is a bound: as many as keys are held
	evicted    atomic.Uint64
	turned     atomic.Uint64
	time       atomic.Pointer[timeline] // of all limiters; nil until there is one

	mu     sync.Mutex // protects spaces, and all against another Open
	spaces map[string]space
	all    atomic.Pointer[[]space] // the same
	door   door
	blanks sync.Pool // of *[1]uint64, for kernels to work on copies of states: they must live on the heap
}

// A space is the states of one limiter: tables or logs.
type space interface {
	States
	transition() *Transition
	evictees() []evictee // its shards
	vacant() bool        // whether it has no keys, if there is a bound
	share()              // says that another limiter has it, too
	shared() bool        // whether one has
	shrink()
	count(stats *MemoryStats) // adds what it holds
}

// A MemoryOption changes how [NewMemoryStore] makes a store.
type MemoryOption func(*memoryConfig)

// memoryConfig is what options choose. The store keeps a copy, which nothing
// changes later. Every check of it is in check.
type memoryConfig struct {
	maxKeys int64 // 0 means no bound
	full    FullPolicy
	missing error // names the first option that is nil
}

// NewMemoryStore returns an empty store. If an option is nil or cannot be used,
// [New] returns an error for each limiter on the store.
func NewMemoryStore(opts ...MemoryOption) *MemoryStore {
	s := &MemoryStore{}
	for i, opt := range opts {
		switch {
		case opt != nil:
			opt(&s.memoryConfig)
		case s.missing == nil:
			s.missing = invalid(fmt.Sprintf("option %d of NewMemoryStore", i), nil, "must be WithMaxKeys's or WithFullPolicy's result")
		}
	}
	return s
}

func (c *memoryConfig) check() error {
	switch {
	case c.missing != nil:
		return c.missing
	case c.maxKeys < 0:
		return invalid("WithMaxKeys's n", c.maxKeys, "must be at least 1, or 0 for no bound")
	case c.full < EvictLeast || c.full > ShareUnseen:
		return invalid("WithFullPolicy's policy", int(c.full), "must be EvictLeast, RefuseUnseen or ShareUnseen")
	}
	return nil
}

// Len returns the number of keys held, idle ones not yet forgotten included.
func (s *MemoryStore) Len() int {
	if s.maxKeys > 0 {
		return int(s.seats.Load())
	}
	return s.Stats().Keys
}

// MemoryStats are the counts of a [MemoryStore].
type MemoryStats struct {
	Keys      int    // held now, idle ones not yet forgotten included
	Inserts   uint64 // keys that were new, or had been forgotten, so far
	Evictions uint64 // keys in use that WithMaxKeys forced the store to forget, so far
	Turned    uint64 // requests of new keys that RefuseUnseen denied or ShareUnseen decided, so far
	Bytes     uint64 // of memory for keys, states and limiters, to within a fifth
}

// Stats returns the counts of the store. They are read one after the other, which
// takes about a microsecond for each limiter, and a few more for each thousand of
// keys.
func (s *MemoryStore) Stats() MemoryStats {
	stats := MemoryStats{Evictions: s.evicted.Load(), Turned: s.turned.Load(), Bytes: s.door.bytes.Load()}
	for _, sp := range s.open() {
		sp.count(&stats)
		stats.Bytes += sp.transition().bytes() + sizeOf[limiter]() + spaceBytes
	}
	return stats
}

// spaceBytes is what the list and the map of spaces take for each, about.
const spaceBytes = 72

// tagBytes is what is kept for [Transition.Tag], about.
const tagBytes = 100

// bytes returns the memory that the transition takes, about.
func (t *Transition) bytes() uint64 {
	of := func(v any) uint64 { return uint64(reflect.Indirect(reflect.ValueOf(v)).Type().Size()) }
	sum := sizeOf[Transition]() + of(t.alg) + of(t.kernel)
	if t.Varies() {
		sum += sizeOf[limits]() + tagBytes
	}
	if k, ok := t.kernel.(*all); ok {
		for i, part := range k.parts {
			sum += 16 + of(part) + 16 + of(t.alg.(All)[i])
		}
	}
	return sum
}

// Shrink forgets all idle keys and gives the memory that they took back to the
// garbage collector. A store does the same by itself as new keys come; call it
// if a flood has passed and few come any more. It looks at every key held, and
// holds up callers for the part of the keys that it is at.
func (s *MemoryStore) Shrink() {
	s.door.mu.Lock()
	s.door.forget()
	s.door.newcomers, s.door.eviction = nil, eviction{}
	s.door.bytes.Store(0)
	s.door.mu.Unlock()
	for _, sp := range s.open() {
		sp.shrink()
	}
}

// open returns the spaces.
func (s *MemoryStore) open() []space {
	if all := s.all.Load(); all != nil {
		return *all
	}
	return nil
}

// Open implements [Store].
func (s *MemoryStore) Open(name string, t *Transition) (States, error) {
	if err := s.memoryConfig.check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spaces == nil {
		s.spaces = make(map[string]space)
		s.draw()
		if s.door.parts == 0 {
			s.door.lookSizes = usualSizes
		}
	}
	if sp := s.spaces[name]; sp != nil {
		if err := sp.transition().shares(name, t); err != nil {
			return nil, err
		}
		sp.share()
		return sp, nil
	}
	sp := newSpace(s, t)
	s.spaces[name] = sp
	all := append(s.open(), sp) // in place: those who read the list see no more of it
	s.all.Store(&all)
	return sp, nil
}

func newSpace(s *MemoryStore, t *Transition) space {
	if t.kernel.width() > 0 && !t.Varies() {
		return newTables(s, t)
	}
	return newLogs(s, t)
}

func (sp *tables) transition() *Transition { return sp.t }
func (sp *logs) transition() *Transition   { return sp.t }

// blank returns a word for a kernel to work on, until it is put back into blanks.
func (s *MemoryStore) blank() *[1]uint64 {
	if b, ok := s.blanks.Get().(*[1]uint64); ok {
		return b
	}
	return new([1]uint64)
}
