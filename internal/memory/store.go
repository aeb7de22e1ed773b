// Package memory is the engine of the store in memory. It keeps the states of keys,
// which it identifies by a hash. It makes room for new keys when the store is full, and
// answers the requests of those for which there is none. It knows the arithmetic only
// as a [kernel.Compiled].
//
// A decision on a state of one word (a TokenBucket, LeakyBucket, FixedWindow, or SlidingWindow of
// one segment, with most limits) takes no lock: it finds the word in a table (table.go), reads the
// clock, and swaps the new state in; a denial only reads (decide.go). A shard's lock is taken for a
// new key, for all other states (locked.go), some of which are in the shard's arena (a SlidingLog,
// or a bucket of which events are held, say: arena.go), and while a table is replaced (growth.go).
//
// A key is idle when its state equals that of a new key. Who inserts a key forgets those of its
// shard that have been idle for a while (idle.go). A full store has a lock for admitting new keys,
// for which it forgets others (evict.go).
package memory

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// A Store keeps states in the memory of the process, in spaces. It is safe for
// concurrent use. The zero Store is empty and ready to use.
type Store struct {
	// Both must not change once there is a space.
	MaxKeys int64 // 0 means no bound
	// Whether a full store refuses a new key, and does not evict the key with most events left.
	RefuseNew bool

	identifier              // with the secrets of this store
	held       atomic.Int64 // keys that have a place, if there is a bound: never more than that
	owed       atomic.Int64 // keys that have none yet: see joint.pay
	evicted    atomic.Uint64
	rejected   atomic.Uint64
	time       atomic.Pointer[timeline.Timeline] // of all limiters; nil until the first
	inserts    atomic.Uint64                     // keys inserted into spaces that were dropped
	ended      atomic.Uint64                     // holds that ended by themselves
	mu         sync.Mutex                        // protects dropped, and against another Open or Drop
	// Also those that were dropped, until these are more than half.
	all       atomic.Pointer[[]*Space]
	dropped   int // spaces in all that were dropped
	admission admission
}

// Stats are the counts of a Store.
type Stats struct {
	Keys      int    // keys held now, including idle ones not yet forgotten
	Inserts   uint64 // keys inserted so far; a key that was forgotten counts again
	Evictions uint64 // keys in use evicted so far
	Rejected  uint64 // requests of new keys for which there was no room, so far
	Ended     uint64 // holds that ended by themselves, or early, so far
	Bytes     uint64 // memory of keys and states, to within a fifth
}

// Len returns the number of keys held, including idle ones not yet forgotten.
func (s *Store) Len() int {
	if s.MaxKeys > 0 {
		return int(s.held.Load() + s.owed.Load())
	}
	return s.Stats().Keys
}

// Stats returns the counts of the store. They are not read at a single instant.
func (s *Store) Stats() Stats {
	stats := Stats{
		Inserts:   s.inserts.Load(),
		Evictions: s.evicted.Load(),
		Rejected:  s.rejected.Load(),
		Ended:     s.ended.Load(),
	}
	for _, sp := range s.spaces() {
		stats.Bytes += sizeOf[Space]() + 24 + 8*uint64(len(*sp.entries.Load()))
		for sh := range sp.shards(0) {
			sh.mu.Lock()
			stats.Keys += int(sh.keys)
			stats.Inserts += sh.inserts
			stats.Bytes += sizeOf[shard]() + sizeOf[table]() + sh.arena.bytes()
			if t := sh.current(); t.most > 0 { // else the words are noKeys, which are shared
				stats.Bytes += 8 * uint64(len(t.words))
			}
			sh.mu.Unlock()
		}
	}
	return stats
}

// Shrink forgets all idle keys and releases their memory to the garbage collector.
func (s *Store) Shrink() {
	clk := s.time.Load()
	if clk == nil {
		clk = timeline.New(nil, nil) // no keys, or only keys of requests with a fixed time
	}
	for _, sp := range s.spaces() {
		for sh := range sp.shards(0) {
			now, _ := clk.Now()
			sh.mu.Lock()
			sh.sweepLocked(sh.current(), now)
			sh.replaceLocked(sh.current(), 0)
			sh.mu.Unlock()
		}
	}
}

// Fingerprint returns a hash of key that depends on the secrets of the store.
func (sp *Space) Fingerprint(key string) uint64 { return sp.store.identify(key).hi }

func (s *Store) spaces() []*Space {
	if all := s.all.Load(); all != nil {
		return *all
	}
	return nil
}

// OpenSpace returns a space for the keys of a limit: k in words, if a state of k is one, and loose
// in all other states. If it varies, that is the limit of keys without one of their own.
func (s *Store) OpenSpace(k, loose *step.Machine, varies bool) *Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.Load() == nil {
		s.draw()
		if s.admission.sizes.most == 0 {
			s.admission.sizes = usualSizes
		}
	}
	sp := newSpace(s, k, loose, varies)
	all := append(s.spaces(), sp) // may append in place: readers keep their length
	s.all.Store(&all)
	return sp
}

// Drop forgets a space that nobody uses any more, and its keys.
func (s *Store) Drop(sp *Space) {
	sp.dropped.Store(true) // no key enters a shard that is locked from now on
	for sh := range sp.shards(0) {
		sh.mu.Lock()
		for p := range sh.current().held() {
			sh.forgetLocked(sh.current(), p)
		}
		sh.replaceLocked(sh.current(), 0)
		s.inserts.Add(sh.inserts)
		sh.inserts = 0
		sh.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped++
	if all := s.spaces(); s.dropped > len(all)/2 {
		// So that each is copied only a few times, however many there are.
		left := make([]*Space, 0, len(all)-s.dropped)
		for _, other := range all {
			if !other.dropped.Load() {
				left = append(left, other)
			}
		}
		s.all.Store(&left)
		s.dropped = 0
	}
}

func (s *Store) countEnded(a *step.Answer) {
	if a.Ended > 0 {
		s.ended.Add(uint64(a.Ended))
	}
}

// Timeline returns the timeline of the store's limiters. If there is none yet, it is what first
// returns.
func (s *Store) Timeline(first func() *timeline.Timeline) *timeline.Timeline {
	if s.time.Load() == nil {
		s.time.CompareAndSwap(nil, first())
	}
	return s.time.Load()
}

// keepTime remembers the timeline of a request, for a store behind another one, whose limiters do
// not ask for it.
func (s *Store) keepTime(clk *timeline.Timeline) {
	if clk != nil {
		s.time.CompareAndSwap(nil, clk)
	}
}
