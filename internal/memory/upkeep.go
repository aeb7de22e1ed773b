package memory

import "github.com/ratelimit-go/ratelimit/internal/timeline"

// This file goes through all shards of a store: for its statistics, to shrink it, and to drop a
// space.

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
		return s.keysHeld()
	}
	return s.Stats().Keys
}

// Stats returns the counts of the store. They are not read at a single instant, but none that only
// grows is ever less than it was.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := Stats{
		Inserts:   s.inserts,
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
			t := sp.current(sh)
			if t.most > 0 { // else the words are noKeys, which are shared
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
			sp.sweep(sh, sp.current(sh), now)
			sp.replaceTable(sh, sp.current(sh), 0)
			sh.mu.Unlock()
		}
	}
}

// Drop forgets a space that nobody uses any more, and its keys.
func (s *Store) Drop(sp *Space) {
	sp.dropped.Store(true) // no key enters a shard that is locked from now on
	for sh := range sp.shards(0) {
		sh.mu.Lock()
		t := sp.current(sh)
		for at := range t.held() {
			ls := lockedSlot{sp, sh, t, at}
			ls.forget()
		}
		sp.replaceTable(sh, t, 0)
		sh.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped++
	all := s.spaces()
	if s.dropped > len(all)/2 {
		// This bound lets each be copied only a few times, however many there are.
		left := make([]*Space, 0, len(all)-s.dropped)
		for _, other := range all {
			if !other.dropped.Load() {
				left = append(left, other)
				continue
			}
			for sh := range other.shards(0) {
				sh.mu.Lock()
				s.inserts += sh.inserts
				sh.mu.Unlock()
			}
		}
		s.all.Store(&left)
		s.dropped = 0
	}
}
