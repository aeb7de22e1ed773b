package memory

// This file counts the keys of a store with a bound. A key has a place while it is held, and there
// are MaxKeys places.

// keysHeld returns the number of keys that a store with a bound holds.
func (s *Store) keysHeld() int { return int(s.held.Load() + s.owed.Load()) }

// claimPlace claims a place for a new key. It returns false if the store is full.
func (sp *Space) claimPlace() bool {
	if sp.store.MaxKeys > 0 {
		if !sp.store.claimPlaces(1) {
			return false
		}
		sp.keys.Add(1)
	}
	return true
}

// returnPlace gives back the place of a key that is forgotten.
func (sp *Space) returnPlace() {
	if sp.store.MaxKeys > 0 {
		sp.keys.Add(-1)
		sp.store.held.Add(-1)
	}
}

// claimPlaces claims places for new keys of a store with a bound. It returns false, and claims
// none, if there are fewer.
func (s *Store) claimPlaces(keys int64) bool {
	for {
		held := s.held.Load()
		if held+keys > s.MaxKeys {
			return false
		}
		if s.held.CompareAndSwap(held, held+keys) {
			return true
		}
	}
}

// claimPlacesUpTo claims as many places as there are for new keys of a store with a bound, and
// returns their number.
func (s *Store) claimPlacesUpTo(keys int64) (claimed int64) {
	for {
		held := s.held.Load()
		claimed = max(0, min(keys, s.MaxKeys-held))
		if s.held.CompareAndSwap(held, held+claimed) {
			return claimed
		}
	}
}
