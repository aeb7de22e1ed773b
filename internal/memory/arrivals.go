package memory

import (
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file counts the new keys of a joint, and claims their places.
//
// A joint claims no places beforehand, because joints might wait for each other's places. If a full
// store evicts keys, it first makes room for the new ones as far as it can. If others have taken
// that room, or there are more new keys than MaxKeys, the keys enter all the same, and owe their
// places. Before the joint returns, it evicts a key for each, and nobody else does.

// arrivals are the new keys of a joint that are to enter a store with a bound.
type arrivals struct {
	store *Store
	keys  int64 // how many are to enter
	owed  int64 // of these, those that have entered without a place
	now   kernel.Instant
}

// An arrivalList has the arrivals of each store with a bound. Stores that refuse new keys come
// first, because no other store is to evict keys if one of them has no room.
type arrivalList []arrivals

// of returns the arrivals of a store, or nil if no key is to enter the store.
func (l arrivalList) of(s *Store) *arrivals {
	i := slices.IndexFunc(l, func(in arrivals) bool { return in.store == s })
	if i < 0 {
		return nil
	}
	return &l[i]
}

// add adds a key that is to enter a store.
func (l *arrivalList) add(s *Store, now kernel.Instant) {
	if in := l.of(s); in != nil {
		in.keys++
		return
	}
	in := arrivals{store: s, keys: 1, now: now}
	if s.RefuseNew {
		*l = slices.Insert(*l, 0, in)
	} else {
		*l = append(*l, in)
	}
}

// claimPlaces claims the places of all keys. If a store has no room for its keys, it claims none,
// and returns that store. If mayOwe is true, a store that evicts keys always has room, and keys for
// which there are no places owe them.
func (l arrivalList) claimPlaces(mayOwe bool) (full *Store) {
	for i := range l {
		in := &l[i]
		if mayOwe && !in.store.RefuseNew {
			in.owed = in.keys - in.store.claimPlacesUpTo(in.keys)
			in.store.owed.Add(in.owed)
			continue
		}
		if !in.store.claimPlaces(in.keys) {
			for _, claimed := range l[:i] {
				claimed.store.held.Add(-claimed.keys)
			}
			return in.store
		}
	}
	return nil
}

// makeRoomAhead evicts a key if the store has no places for that many more.
func (sp *Space) makeRoomAhead(more int64, now kernel.Instant) {
	s := sp.store
	s.admission.mu.Lock()
	defer s.admission.mu.Unlock()
	held := s.held.Load()
	if held > 0 && held+more > s.MaxKeys {
		sp.makeRoom(now)
	}
}

// payPlace claims the place of a key that has entered without one, for which it evicts another key.
func (sp *Space) payPlace(now kernel.Instant) {
	s := sp.store
	s.admission.mu.Lock()
	defer s.admission.mu.Unlock()
	for !s.claimPlaces(1) {
		sp.makeRoom(now)
	}
	s.owed.Add(-1)
}
