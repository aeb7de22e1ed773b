package memory

import (
	"math"
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

// enter counts the new keys whose states change. If a store is full, it counts none and returns that store. But a store that
// has made room, and is full again, exceeds its bound until shed.
func (j *joint) enter() (full *Store) {
	for i := range j.asked {
		e := &j.asked[i]
		e.enters = !e.found && e.mayEnter() && (j.granted || j.notes && e.k.Notes())
	}
	for i := range j.asked {
		e := &j.asked[i]
		switch s := e.space.store; {
		case !e.enters || e.space.take():
		case j.made && !s.RefuseNew:
			e.space.keys.Add(1)
			s.held.Add(1)
		default:
			for k := range j.asked[:i] {
				if j.asked[k].enters {
					j.asked[k].space.leave()
				}
			}
			return s
		}
	}
	return nil
}

// makeRoom has full stores evict keys for the new ones, which would otherwise be among those that shed finds: so that
// a new key is not forgotten at once, again and again, if others have less remaining. It takes no places: others
// may come first, and a joint may have more keys than a store may hold.
func (j *joint) makeRoom() {
	j.made = true
	for i := range j.asked {
		e := &j.asked[i]
		if !e.enters {
			continue
		}
		s, keys := e.space.store, int64(1)
		for k := range j.asked[:i] {
			if other := &j.asked[k]; other.enters && other.space.store == s {
				keys++
			}
		}
		s.evict(s.MaxKeys-min(keys, s.MaxKeys), e.now, 2)
	}
}

// shed brings the stores of new keys within their bounds again.
func (j *joint) shed() {
	for i := range j.asked {
		if e := &j.asked[i]; e.enters {
			e.space.store.evict(e.space.store.MaxKeys, e.now, math.MaxInt)
		}
	}
}

// evict evicts keys until there are no more than most, or it has looked that many times.
func (s *Store) evict(most int64, now kernel.Instant, looks int) {
	if s.held.Load() <= most {
		return
	}
	s.admission.mu.Lock()
	defer s.admission.mu.Unlock()
	for ; looks > 0 && s.held.Load() > most; looks-- {
		s.makeRoom(now)
	}
}
