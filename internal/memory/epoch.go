package memory

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file finds out whether a key was forgotten since a grant, although it was in use: because it was
// evicted, or reset. What is known of the key now may then be the events of others, and nothing is
// given back. (Keys that are forgotten because they are idle do not matter: their grants do not count
// any more, and there is nothing to give back.)
//
// A stripe of keys counts epochs. One ends when a key of the stripe is forgotten while in use, before
// it can be inserted again. A grant remembers the epoch in which it was made. If another one has begun,
// the stripe knows which of its keys were reset since, unless they were too many. It does not know
// which were evicted, because a flood of keys must not take memory: then it says that all were forgotten.
// What it knows of a key is dropped by Shrink once nothing that the key was granted counts any more.
//
// A caller without a lock reads the epoch after the state: if the key is forgotten after that, its state
// is Gone, and the caller starts over.

// mostReset is the most keys that a stripe remembers.
const mostReset = 128

// epochs are those of the keys of a space. There are no stripes until the first one ends.
type epochs struct{ striped[epochStripe] }

// An epochStripe is the epoch of some of the keys.
type epochStripe struct {
	number atomic.Uint32
	known  uint32     // which keys were forgotten before this epoch is not known
	mu     sync.Mutex // protects known and reset; locked after that of a shard
	reset  map[identity]ending
}

// An ending is when a key was reset.
type ending struct {
	number uint32         // the epoch that began then
	until  kernel.Instant // when the key would have become idle
}

// now returns the epoch of id.
func (e *epochs) now(id identity) uint32 {
	if s := e.of(id); s != nil {
		return s.number.Load()
	}
	return 0
}

// evict ends the epoch of id, which is evicted. The caller holds the lock of its shard, and has not
// forgotten it yet.
func (e *epochs) evict(id identity) {
	s := e.made(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.reset = s.number.Add(1), nil
}

// reset is evict for a key that is reset, and would become idle at an instant.
func (e *epochs) reset(id identity, until kernel.Instant) {
	s := e.made(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reset == nil || len(s.reset) >= mostReset {
		s.reset, s.known = make(map[identity]ending), s.number.Load()
	}
	s.reset[id] = ending{s.number.Add(1), until}
}

// forgotten reports whether id may have been forgotten since an epoch.
func (e *epochs) forgotten(id identity, since uint32) bool {
	s := e.of(id)
	if s == nil || s.number.Load() == since {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.number.Load()
	age := now - since // numbers may have wrapped around
	ended, ok := s.reset[id]
	return now-s.known < age || ok && now-ended.number < age
}

// begin returns the epoch of id for the Grant that a request is about to make, and tells an OpSettle
// if its key may have been forgotten since its own.
func (e *epochs) begin(id identity, req *kernel.Request) (epoch uint32) {
	if !req.Op.Traces() {
		return 0
	}
	if made, ok := req.Made(); ok && e.forgotten(id, made) {
		req.Doubt = true
	}
	return e.now(id)
}

// shrink drops what no longer matters.
func (e *epochs) shrink(now kernel.Instant) {
	for s := range e.each() {
		s.mu.Lock()
		maps.DeleteFunc(s.reset, func(_ identity, ended ending) bool { return ended.until <= now })
		s.reset = maps.Clone(s.reset) // because the old map would not become smaller
		s.mu.Unlock()
	}
}

// count adds the memory to stats.
func (e *epochs) count(stats *Stats) {
	for s := range e.each() {
		s.mu.Lock()
		stats.Bytes += sizeOf[epochStripe]() + uint64(len(s.reset))*2*(sizeOf[identity]()+sizeOf[ending]())
		s.mu.Unlock()
	}
}
