package memory

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file finds the states of the keys of a Joint, and makes room for new keys and new events.

// find finds the state of a key, or where that of a new key is to be. It returns what has to be done
// before the key can be decided on, or nil.
func (j *Joint) find(e *Asked) (first func()) {
	opens, fits := j.req.Opens(), e.Tables != nil && e.Limit.places(&j.req)
	e.logged, e.found, e.word, e.fresh = !fits, false, nil, nil
	if e.sh != nil {
		e.at, e.found = e.t.find(e.id)
	}
	switch {
	case e.found && (!fits || e.Tables.limitAt(e.t, e.at) != e.Limit):
		return func() {
			j.dismiss()
			e.move(opens)
		}
	case !e.found && e.ls != nil:
		e.slot, e.found = e.ls.find(e.id)
		e.logged = e.found || !fits
	}
	if e.logged {
		e.k, e.upkeep, e.space = e.loose, &e.ls.upkeep, &e.ls.space.occupancy
	} else {
		e.k, e.upkeep, e.space = e.Limit.k, &e.sh.upkeep, &e.Tables.occupancy
	}
	switch {
	case !e.found:
		if e.fresh = e.k.NewState(); e.mayEnter() && e.makeRoom(uint64(len(j.Asked))) {
			return nothing
		}
	case e.logged:
		if lacks := e.ls.makeRoom(&e.ls.slots[e.slot], e.Sum, opens); lacks > 0 {
			e.ls.repackLocked(lacks)
			return nothing
		}
	case e.Limit.word != nil:
		e.word = e.t.word(e.at)
	}
	return nil
}

// nothing else has to be done before the next attempt.
func nothing() {}

// move moves the key from the tables to the logs, because it cannot be decided on in the tables.
func (e *Asked) move(opens bool) {
	sp := e.Tables
	sh, t := sp.lock(e.id)
	defer sh.mu.Unlock()
	p, ok := t.find(e.id)
	if !ok {
		return
	}
	was, st := sp.limitAt(t, p), t.state(p)
	if sp.single {
		wide := was.word.Widen(atomic.SwapUint64(t.word(p), kernel.Gone)) // guarantee 3
		st = wide[:]
	}
	now, _ := inside(e)
	sp.logLocked(e.id, was, st, now, opens, func() { sh.dropLocked(t, p) })
}

// mayEnter reports whether the request may change the state of a new key.
func (e *Asked) mayEnter() bool { return e.Sum > 0 && e.Sum <= e.k.Limit() }

// makeRoom makes room for new keys in the shard, and sweeps it and the other one if that is due. It
// reports whether it had to.
func (e *Asked) makeRoom(keys uint64) (again bool) {
	switch {
	case e.logged && e.ls.keys+keys > mostOf(len(e.ls.slots)):
		e.ls.replaceLocked(keys)
	case !e.logged && e.sh.used+keys > e.t.most:
		e.sh.replaceLocked(e.t, keys)
	case e.upkeep.looks():
		now, _ := inside(e)
		return e.sh != nil && e.sh.keys > 0 && e.sh.makeRoomLocked(e.t, now) ||
			e.ls != nil && e.ls.keys > 0 && e.ls.makeRoomLocked(now)
	default:
		return false
	}
	return true
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
	if e.placed == nil && e.store.take(e.space) {
		e.placed = e.space
	}
	return e.placed != nil
}

// admit makes room for the new keys that takePlaces has found. It is admit of the Store, for several
// stores: until the decision is made, nobody else makes room in them. Whoever waits for that has no
// places.
func (j *Joint) admit() {
	if len(j.stores) == 0 {
		j.dismiss()
		for i := range j.Asked {
			if s := j.Asked[i].store; s.MaxKeys > 0 && !slices.Contains(j.stores, s) {
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
			if idle, full := e.store.makeRoom(e.now); full {
				j.refuse(e, idle)
				return // the others need no places
			}
		}
	}
}

// dismiss gives back the places that no key has taken, and ends admit.
func (j *Joint) dismiss() {
	for i := range j.Asked {
		if e := &j.Asked[i]; e.placed != nil {
			e.store.leave(e.placed) // the key may be elsewhere now
			e.placed = nil
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
	e.store.rejected.Add(1)
	for i := range j.Asked {
		if f := &j.Asked[i]; f.First == e.First {
			f.refused, f.Answer = true, noRoomUntil(idle, f.loose, e.now, e.lag)
		}
	}
}
