package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file finds the states of the keys of a joint, and makes room for new keys and new events.

// find finds the state of a key, or where that of a new key is to be. It returns false if it had to make
// room in a table, so that other keys may be elsewhere.
func (j *joint) find(e *asked) (ok bool) {
	if e.sh.heavy() {
		e.sh.replaceLocked(e.t, 1)
		return false
	}
	e.at, e.found = e.t.find(e.id)
	e.word, e.k = nil, e.lim.loose
	fits := e.lim.places(&e.Request)
	if !e.found {
		if fits {
			e.word, e.k = e.t.word(e.at), e.lim.k
		} else {
			e.fresh = e.k.NewState()
		}
		if keys := uint32(len(j.asked)); e.mayEnter() && e.sh.crowded(e.t, keys) {
			now, _ := e.Request.Clock.Now()
			return !e.sh.makeRoomLocked(e.t, keys, now)
		}
		return true
	}
	_, refers := e.t.refers(e.at)
	switch was := e.space.limitAt(e.t, e.at); {
	case refers:
	case e.t.width > 1 && !e.Request.Opens():
		return true
	case fits && was == e.lim:
		e.word, e.k = e.t.word(e.at), was.k
		return true
	default: // the slot has no room for what the request may leave
		by, st := e.k, e.t.state(e.at)
		if e.t.width == 1 {
			by, st = was.widen(atomic.SwapUint64(e.t.word(e.at), gone)) // guarantee 3
		}
		a := e.sh.states()
		e.t.refer(e.at, a.add(by, a.copied(by, st, e.Request.Opens())))
	}
	e.sh.arena.makeRoom(e.sh.entry(e.t, e.at), e.Request.N, e.Request.Opens())
	return true
}

// mayEnter reports whether the request may change the state of a new key.
func (e *asked) mayEnter() bool { return e.Request.N > 0 && e.Request.N <= e.k.Limit() }

// enter counts the new keys whose states change, or returns a store that has no room for them. But a store that has made
// room, and is full again, exceeds its bound until shed.
func (j *joint) enter() (full *Store) {
	for i := range j.asked {
		e := &j.asked[i]
		e.enters = !e.found && e.mayEnter() && (j.granted || j.notes && e.k.Notes())
	}
	for i := range j.asked {
		e := &j.asked[i]
		if s := e.space.store; e.enters && (s.RefuseNew || !j.made) && s.lacks(j.enterIn(s)) {
			return s
		}
	}
	for i := range j.asked {
		if e := &j.asked[i]; e.enters {
			e.space.enter()
		}
	}
	return nil
}

// enterIn returns how many keys enter a store.
func (j *joint) enterIn(s *Store) (keys int64) {
	for i := range j.asked {
		if e := &j.asked[i]; e.enters && e.space.store == s {
			keys++
		}
	}
	return keys
}

// makeRoom has full stores evict keys for the new ones, which would otherwise be among those that shed finds: so that
// a new key is not forgotten at once, again and again, if others have less remaining. It takes no places: others
// may come first, and a joint may have more keys than a store may hold.
func (j *joint) makeRoom() {
	j.made = true
	for i := range j.asked {
		if e := &j.asked[i]; e.enters {
			e.space.store.evict(j.enterIn(e.space.store), e.now)
		}
	}
}

// shed brings the stores of new keys within their bounds again.
func (j *joint) shed() {
	for i := range j.asked {
		if e := &j.asked[i]; e.enters {
			e.space.store.evict(0, e.now)
		}
	}
}

// enter counts a new key, even if the store is full.
func (sp *Space) enter() {
	if sp.store.MaxKeys > 0 {
		sp.keys.Add(1)
		sp.store.held.Add(1)
	}
}

// lacks reports whether a store has no room for more keys.
func (s *Store) lacks(more int64) bool { return s.MaxKeys > 0 && s.held.Load()+more > s.MaxKeys }

// evict makes room for more keys, unless that takes too long because others come first.
func (s *Store) evict(more int64, now kernel.Instant) {
	if !s.lacks(more) {
		return
	}
	s.admission.mu.Lock()
	defer s.admission.mu.Unlock()
	for looks := 0; looks < 2*mostKept && s.lacks(more); looks++ {
		s.makeRoom(now)
	}
}
