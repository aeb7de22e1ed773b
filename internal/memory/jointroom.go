package memory

import (
	"slices"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file finds the states of the keys of a joint, and makes room for new keys and new events.

// find finds the state of a key, or where that of a new key is to be. It returns false if it had to
// make room in a table, so that other keys may be elsewhere.
func (j *joint) find(e *asked) (ok bool) {
	sh, opens := e.t.shard, e.Request.Opens()
	if sh.heavy() {
		sh.replaceLocked(e.t, 1)
		return false
	}
	e.at, e.found = e.t.find(e.id)
	e.word, e.k = nil, e.lim.loose
	word, refers := uint64(0), false
	if e.found {
		word, refers = e.t.refers(e.at)
	}
	was, keys := e.space.limitAt(e.t, e.at), uint32(len(j.asked))
	fits := e.lim.places(&e.Request)
	if e.found && fits && was != e.lim && sh.used+keys > e.t.most {
		sh.replaceLocked(e.t, keys) // so that there is another slot, if the state returns to a word
		return false
	}
	switch {
	case fits && (!e.found || !refers && was == e.lim):
		e.word, e.k = e.t.word(e.at), e.lim.k
	case !e.found || refers || e.t.width > 1 && !opens:
	default: // the slot has no room for what the request may leave
		by, st := e.k, e.t.state(e.at)
		if e.t.width == 1 {
			by, st = was.widen(atomic.SwapUint64(e.t.word(e.at), gone)) // guarantee 3
		}
		word, refers = sh.states().add(by, sh.states().copied(by, st, opens)), true
		e.t.refer(e.at, word)
	}
	if refers {
		sh.arena.makeRoom(sh.arena.at(word), e.Request.N, opens)
	}
	if !e.found && e.mayEnter() && sh.crowded(e.t, keys) {
		if e.clock.Now == 0 {
			// once: a clock that leaps on each reading would let each attempt sweep.
			e.clock.Now, _ = e.Request.Clock.Now()
		}
		swept, replaced := sh.makeRoomLocked(e.t, keys, e.clock.Now)
		return !swept && !replaced
	}
	return true
}

// mayEnter reports whether the request may change the state of a new key.
func (e *asked) mayEnter() bool { return e.Request.N > 0 && e.Request.N <= e.k.Limit() }

// Entries are how many keys are to enter a store with a bound, and when.
type entries struct {
	store *Store
	keys  int64 // that enter
	owed  int64 // of these, those that have entered without a place: see pay
	now   kernel.Instant
}

// full finds out which keys enter, because they are new and their states change, and counts them.
// If a store has no room for them, it counts none, and returns that: first one that refuses new
// keys, for which no other is to evict any. But once the stores have made room, keys for which
// there is none enter one that evicts all the same, and owe their places.
func (j *joint) full() *Store {
	j.entering = j.entering[:0]
	for i := range j.asked {
		e := &j.asked[i]
		e.enters = !e.found && e.mayEnter() && (j.granted || j.notes && e.k.Notes())
		if e.enters && e.space.store.MaxKeys > 0 {
			j.enter(e.space.store, e.clock.Now)
		}
	}
	for i := range j.entering {
		in := &j.entering[i]
		if j.made && !in.store.RefuseNew {
			in.owed = in.keys - in.store.takeUpTo(in.keys)
			in.store.owed.Add(in.owed)
			continue
		}
		if !in.store.take(in.keys) {
			for _, counted := range j.entering[:i] {
				counted.store.held.Add(-counted.keys)
			}
			return in.store
		}
	}
	return nil
}

// into returns the entries of a store, or nil if no key is to enter it.
func (j *joint) into(s *Store) *entries {
	i := slices.IndexFunc(j.entering, func(in entries) bool { return in.store == s })
	if i < 0 {
		return nil
	}
	return &j.entering[i]
}

func (j *joint) enter(s *Store, now kernel.Instant) {
	if in := j.into(s); in != nil {
		in.keys++
		return
	}
	in := entries{store: s, keys: 1, now: now}
	if s.RefuseNew {
		j.entering = slices.Insert(j.entering, 0, in)
	} else {
		j.entering = append(j.entering, in)
	}
}

// makeRoom has full stores evict keys for those that are to enter, which would otherwise be found
// themselves once they have entered: so that a new key is not forgotten at once, again and again,
// if others have less remaining. It takes no places, because joints might wait for each other's:
// others may come first, and a joint may have more keys than a store may hold. It looks at one
// sample for each key that is to enter.
func (j *joint) makeRoom() {
	j.made = true
	for i := range j.asked {
		e := &j.asked[i]
		if !e.enters {
			continue
		}
		if in := j.into(e.space.store); in != nil && !in.store.RefuseNew {
			e.space.makeRoomAhead(in.keys, in.now)
		}
	}
}

// pay takes the places of the keys that have entered without one, so that the stores are within
// their bounds when the call returns. Nobody else evicts a key for them. The admission lock is
// acquired for each anew, so that others come in between.
func (j *joint) pay() {
	for i := range j.asked {
		e := &j.asked[i]
		if !e.enters {
			continue
		}
		if in := j.into(e.space.store); in != nil && in.owed > 0 {
			e.space.pay(in.now)
			in.owed--
		}
	}
}

// makeRoomAhead evicts a key if the store has no places for that many more.
func (sp *Space) makeRoomAhead(more int64, now kernel.Instant) {
	s := sp.store
	s.admission.mu.Lock()
	defer s.admission.mu.Unlock()
	if held := s.held.Load(); held > 0 && held+more > s.MaxKeys {
		sp.makeRoom(now)
	}
}

// pay takes the place of a key that has entered without one, for which it evicts another.
func (sp *Space) pay(now kernel.Instant) {
	s := sp.store
	s.admission.mu.Lock()
	defer s.admission.mu.Unlock()
	for !s.take(1) {
		sp.makeRoom(now)
	}
	s.owed.Add(-1)
}
