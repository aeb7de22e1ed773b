package memory

import (
	"sync"
	"sync/atomic"
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

// nothing else has to be done before the next attempt.
func nothing() {}

// mayEnter reports whether the request may change the state of a new key.
func (e *asked) mayEnter() bool { return e.Request.N > 0 && e.Request.N <= e.k.Limit() }

// takePlaces takes places for the new keys whose states change. It returns false if a store is full.
func (j *joint) takePlaces() (ok bool) {
	ok = true
	for e := range j.leading {
		e.enters = !e.found && e.mayEnter() && (j.granted || j.notes && e.k.Notes())
		ok = ok && (!e.enters || e.takePlace())
	}
	return ok
}

func (e *asked) takePlace() (ok bool) {
	e.placed = e.placed || e.space.take()
	return e.placed
}

// admitting is held by the joint that makes room in full stores, until it has decided. The others wait for it without
// places, so that it gets all that it needs.
var admitting sync.Mutex

// admit makes room for the new keys that takePlaces has found.
func (j *joint) admit() {
	if !j.admits {
		j.dismiss()
		admitting.Lock()
		j.admits = true
	}
	for e := range j.leading {
		if !e.enters || e.placed {
			continue
		}
		e.now, e.lag = e.Request.Clock.Now()
		if idle, full := e.space.store.admit(j.as(e), e.takePlace); full {
			e.space.store.refuse(e.lim.loose, j.as(e), idle, &e.Answer)
			e.refused = true
			return // the others need no places
		}
	}
}

// dismiss gives back the places that no key has taken, and ends admit.
func (j *joint) dismiss() {
	for i := range j.asked {
		if e := &j.asked[i]; e.placed {
			e.space.leave()
			e.placed = false
		}
	}
	if j.admits {
		j.admits = false
		admitting.Unlock()
	}
}
