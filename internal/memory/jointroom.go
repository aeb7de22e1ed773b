package memory

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file finds the states of the keys of a Joint, and makes room for new keys and new events.

// find finds the state of a key, or where that of a new key is to be. It returns false if it had to make
// room in a table, so that other keys may be elsewhere.
func (j *Joint) find(e *Asked) (ok bool) {
	if e.sh.heavy() {
		e.sh.replaceLocked(e.t, 1)
		return false
	}
	e.at, e.found = e.t.find(e.id)
	e.word, e.k = nil, e.Limit.loose
	fits := e.Limit.places(&j.req)
	if !e.found {
		if fits {
			e.word, e.k = e.t.word(e.at), e.Limit.k
		} else {
			e.fresh = e.k.NewState()
		}
		return !e.mayEnter() || !e.makeRoom(uint32(len(j.Asked)))
	}
	_, refers := e.t.refers(e.at)
	switch was := e.Space.limitAt(e.t, e.at); {
	case refers:
	case e.t.width > 1 && !j.req.Opens():
		return true
	case e.t.width > 1:
		e.t.refer(e.at, e.sh.states().insert(e.k, e.t.state(e.at)))
	case fits && was == e.Limit:
		e.word, e.k = e.t.word(e.at), was.k
		return true
	default: // a word has no room for it
		wide := was.word.Widen(atomic.SwapUint64(e.t.word(e.at), gone)) // guarantee 3
		e.t.refer(e.at, e.sh.states().insert(was.loose, wide[:]))
	}
	e.sh.arena.makeRoom(e.sh.entry(e.t, e.at), e.N, j.req.Opens())
	return true
}

// nothing else has to be done before the next attempt.
func nothing() {}

// mayEnter reports whether the request may change the state of a new key.
func (e *Asked) mayEnter() bool { return e.N > 0 && e.N <= e.k.Limit() }

// makeRoom makes room for new keys in the shard, and sweeps it if that is due. It reports whether it had to.
func (e *Asked) makeRoom(keys uint32) (had bool) {
	if e.sh.used+keys > e.t.most {
		e.sh.replaceLocked(e.t, keys)
		return true
	}
	if !e.sh.looks() {
		return false
	}
	now, _ := inside(e)
	return e.sh.makeRoomLocked(e.t, now)
}

// takePlaces takes places for the new keys whose states change. It returns false if a store is full.
func (j *Joint) takePlaces() (ok bool) {
	ok = true
	for e := range j.leading {
		e.enters = !e.found && e.mayEnter() && (j.granted || j.notes && e.k.Notes())
		ok = ok && (!e.enters || e.takePlace())
	}
	return ok
}

func (e *Asked) takePlace() (ok bool) {
	e.placed = e.placed || e.Space.take()
	return e.placed
}

// admit makes room for the new keys that takePlaces has found. It is admit of the Store, for several
// stores: until the decision is made, nobody else makes room in them. Whoever waits for that has no
// places.
func (j *Joint) admit() {
	if len(j.stores) == 0 {
		j.dismiss()
		for i := range j.Asked {
			if s := j.Asked[i].Space.store; s.MaxKeys > 0 && !slices.Contains(j.stores, s) {
				j.stores = append(j.stores, s)
			}
		}
		slices.SortFunc(j.stores, func(a, b *Store) int { return cmp.Compare(a.serial, b.serial) })
		for _, s := range j.stores {
			s.admission.mu.Lock()
		}
	}
	for e := range j.leading {
		for e.enters && !e.takePlace() {
			e.now, e.lag = inside(e)
			if idle, full := e.Space.store.makeRoom(e.now); full {
				j.refuse(e, idle)
				return // the others need no places
			}
		}
	}
}

// dismiss gives back the places that no key has taken, and ends admit.
func (j *Joint) dismiss() {
	for i := range j.Asked {
		if e := &j.Asked[i]; e.placed {
			e.Space.leave()
			e.placed = false
		}
	}
	for _, s := range j.stores {
		s.admission.mu.Unlock()
	}
	clear(j.stores)
	j.stores = j.stores[:0]
}

// refuse lets the store of a new key refuse it. Another key may be idle at idle.
func (j *Joint) refuse(e *Asked, idle kernel.Instant) {
	e.Space.store.rejected.Add(1)
	e.refused, e.Answer = true, noRoomUntil(idle, e.Limit.loose, e.now, e.lag)
}
