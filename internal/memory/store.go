package memory

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file describes what a store consists of: a space for each limiter.

// A Store keeps states in the memory of the process, in spaces. It is safe for
// concurrent use. The zero Store is empty and ready to use.
type Store struct {
	// MaxKeys is the most keys that the store holds; 0 means no bound. It must not change once
	// there is a space.
	MaxKeys int64

	// RefuseNew says that a full store denies the requests of a new key, and does not evict the key
	// with the most events remaining. It must not change once there is a space.
	RefuseNew bool

	identifier // with the secrets of this store

	held atomic.Int64                      // with a bound: keys that have a place, at most MaxKeys
	owed atomic.Int64                      // keys that still owe a place: see Space.payPlace
	time atomic.Pointer[timeline.Timeline] // of all limiters; nil until the first

	evicted  atomic.Uint64 // keys in use evicted so far
	rejected atomic.Uint64 // requests of new keys for which there was no room
	ended    atomic.Uint64 // holds that ended by themselves

	// Protects inserts and dropped, and all against another change, also while its spaces are
	// counted.
	mu      sync.Mutex
	inserts uint64                   // keys inserted into spaces that have left all
	all     atomic.Pointer[[]*Space] // also those dropped, until these are more than half
	dropped int                      // spaces in all that were dropped

	admission admission
}

// A Space holds the states of the keys of one limiter. Its directory leads to the tables of its
// shards, and these to the states.
type Space struct {
	store  *Store
	base   *Limit       // of keys without a limit of their own
	word   kernel.Word  // that of base, if all keys have that limit; else nil
	varies bool         // whether keys have limits of their own
	width  uint64       // words of a slot's state
	serial uint64       // see lockAll
	keys   atomic.Int64 // keys held, if the store has a bound

	dropped atomic.Bool // whether the limiter is gone: then no key enters any more

	limits atomic.Pointer[[]*Limit] // by number; only appended to
	mu     sync.Mutex               // protects against another Limit
	byTag  map[any]*Limit           // those with a number, except the base

	directory
}

// serials numbers spaces, from 1.
var serials atomic.Uint64

// OpenSpace returns a space for the keys of a limit: k in words, if a state of k is one, and loose
// in all other states. If it varies, that is the limit of keys without one of their own.
func (s *Store) OpenSpace(k, loose *step.Machine, varies bool) *Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.Load() == nil {
		if !s.saves {
			s.draw()
		}
		if s.admission.sizes.most == 0 {
			s.admission.sizes = usualSizes
		}
	}
	sp := newSpace(s, k, loose, varies)
	all := append(s.spaces(), sp) // may append in place: readers keep their length
	s.all.Store(&all)
	return sp
}

// newSpace returns a space in which all keys have one limit: k if a state is one word, and loose
// otherwise. If it varies, that is the limit of the keys without one of their own.
func newSpace(s *Store, k, loose *step.Machine, varies bool) *Space {
	sp := &Space{store: s, varies: varies, width: 1, serial: serials.Add(1)}
	sp.base = &Limit{space: sp.serial, loose: loose}
	word := k.Word()
	if word != nil {
		sp.base.decider = decider{k, word}
	}
	if !varies {
		sp.word = word
		sp.width = max(1, uint64(k.Width()))
	}
	sp.limits.Store(&[]*Limit{sp.base})
	if sp.width > 1 {
		sp.limits.Store(&[]*Limit{sp.base, reference: sp.base})
	}
	sp.init(s.MaxKeys, newTable(&shard{space: sp.serial}, sp.width, 0))
	return sp
}

// spaces returns all spaces, also some that were dropped.
func (s *Store) spaces() []*Space {
	if all := s.all.Load(); all != nil {
		return *all
	}
	return nil
}

// Fingerprint returns a hash of key that depends on the secrets of the store.
func (sp *Space) Fingerprint(key string) uint64 { return sp.store.identify(key).hi }

func (s *Store) countEnded(a *step.Answer) {
	if a.Ended > 0 {
		s.ended.Add(uint64(a.Ended))
	}
}

// Timeline returns the timeline of the store's limiters. If there is none yet, it is what first
// returns.
func (s *Store) Timeline(
	first func() (*timeline.Timeline, error),
) (*timeline.Timeline, error) {
	if s.time.Load() == nil {
		t, err := first()
		if err != nil {
			return nil, err
		}
		s.time.CompareAndSwap(nil, t)
	}
	return s.time.Load(), nil
}

// InUse reports whether a limiter was made for the store, or was to be.
func (s *Store) InUse() bool { return s.all.Load() != nil || s.time.Load() != nil }

// Unnamed returns how many limiters have states in the store, besides those with names.
func (s *Store) Unnamed(named map[string]*States) (count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.spaces() {
		if !sp.dropped.Load() && sp.hasStates() {
			count++
		}
	}
	for _, states := range named {
		if states.Space.hasStates() {
			count--
		}
	}
	return count
}

// hasStates reports whether a key of the space may have a state.
func (sp *Space) hasStates() bool { return sp.varies || !sp.base.loose.Stateless() }

// keepTime remembers the timeline of a request, for a store behind another one, whose limiters do
// not ask for it.
func (s *Store) keepTime(clk *timeline.Timeline) {
	if clk != nil {
		s.time.CompareAndSwap(nil, clk)
	}
}
