// Package memory is the engine of the store in memory: it keeps the states of keys,
// knows a key by a hash, makes room for new ones, and decides what becomes of a key
// for which there is none. It knows arithmetic only as a [kernel.Compiled].
package memory

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A Policy says what a store does with a new key when it is full, and finds no idle
// key among those that it looks at.
type Policy int

// The policies, in the order of those that users see.
const (
	EvictLeast   Policy = iota // forget the key whose loss forgives least
	RefuseUnseen               // deny the new key
	ShareUnseen                // let all new keys share one state
)

// A Store keeps states in the memory of the process, in spaces. It is safe for any
// number of goroutines. The zero Store is empty, and ready to use.
type Store struct {
	MaxKeys int64 // 0 means no bound; not changed once there is a space
	Full    Policy

	identifier              // with the secrets of this store
	held       atomic.Int64 // keys, if there is a bound
	evicted    atomic.Uint64
	rejected   atomic.Uint64
	time       atomic.Pointer[kernel.Timeline] // of all requests; nil until there is one
	overhead   atomic.Uint64                   // bytes that the users of spaces take
	mu         sync.Mutex                      // protects against another Open
	all        atomic.Pointer[[]space]
	admission  admission
	blanks     sync.Pool // of *[1]uint64, for kernels to work on copies of states: they must live on the heap
}

// A space is the states that belong together: Tables or Logs.
type space interface {
	evictees() []evictee // its shards
	vacant() bool        // whether it has no keys, if there is a bound
	shrink()
	count(stats *Stats) // adds what it holds
}

// Stats are the counts of a Store.
type Stats struct {
	Keys      int    // held now, idle ones not yet forgotten included
	Inserts   uint64 // keys that were new, or had been forgotten, so far
	Evictions uint64 // keys in use that the bound forced the store to forget, so far
	Rejected  uint64 // requests of new keys for which there was no room, so far
	Bytes     uint64 // of memory, to within a fifth
}

// Len returns the number of keys held, idle ones not yet forgotten included.
func (s *Store) Len() int {
	if s.MaxKeys > 0 {
		return int(s.held.Load())
	}
	return s.Stats().Keys
}

// Stats returns the counts of the store, read one after the other.
func (s *Store) Stats() Stats {
	stats := Stats{Evictions: s.evicted.Load(), Rejected: s.rejected.Load(), Bytes: s.admission.bytes.Load() + s.overhead.Load()}
	for _, sp := range s.spaces() {
		sp.count(&stats)
	}
	return stats
}

// Shrink forgets all idle keys and gives the memory that they took back to the
// garbage collector.
func (s *Store) Shrink() {
	s.admission.mu.Lock()
	s.admission.forget()
	s.admission.admitted, s.admission.eviction = nil, eviction{}
	s.admission.bytes.Store(0)
	s.admission.mu.Unlock()
	for _, sp := range s.spaces() {
		sp.shrink()
	}
}

// spaces returns all spaces.
func (s *Store) spaces() []space {
	if all := s.all.Load(); all != nil {
		return *all
	}
	return nil
}

// spaceBytes is what the list of spaces takes for each.
const spaceBytes = 16

// OpenTables returns a space for the states of k, which are of fixed width. Whoever
// uses it takes so many bytes more.
func (s *Store) OpenTables(k *kernel.Compiled, overhead uint64) *Tables {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(overhead)
	sp := newTables(s, k)
	s.add(sp)
	return sp
}

// OpenLogs returns a space for states that grow with use, or that several kernels leave.
func (s *Store) OpenLogs(overhead uint64) *Logs {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(overhead)
	sp := newLogs(s)
	s.add(sp)
	return sp
}

// begin prepares for a further space. The caller has the lock.
func (s *Store) begin(overhead uint64) {
	if s.all.Load() == nil {
		s.draw()
		if s.admission.parts == 0 {
			s.admission.lookSizes = usualSizes
		}
	}
	s.overhead.Add(overhead + spaceBytes)
}

func (s *Store) add(sp space) {
	all := append(s.spaces(), sp) // in place: those who read the list see no more of it
	s.all.Store(&all)
}

// Timeline returns the timeline that requests have, and if there is none yet, makes
// it that of first.
func (s *Store) Timeline(first func() *kernel.Timeline) *kernel.Timeline {
	if s.time.Load() == nil {
		s.time.CompareAndSwap(nil, first())
	}
	return s.time.Load()
}

// keepTime notes the timeline of a request.
func (s *Store) keepTime(clk *kernel.Timeline) {
	if s.time.Load() == nil && clk != nil {
		s.time.CompareAndSwap(nil, clk)
	}
}

// now returns the present instant, for what no request asked for.
func (s *Store) now() kernel.Instant {
	t := s.time.Load()
	if t == nil {
		t = kernel.NewTimeline(nil, nil) // there are no keys, or all from requests with a time of their own
	}
	now, _ := t.Now()
	return now
}

// blank returns a word for a kernel to work on, until it is put back into blanks.
func (s *Store) blank() *[1]uint64 {
	if b, ok := s.blanks.Get().(*[1]uint64); ok {
		return b
	}
	return new([1]uint64)
}
