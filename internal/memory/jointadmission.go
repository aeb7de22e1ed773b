package memory

import (
	"cmp"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file takes places for the new keys of a Joint, and makes room for them if a store is full.

// takePlaces takes places for new keys whose states change. If a store is full, it takes none,
// and returns a key for which there is none.
func (j *Joint) takePlaces() (lacks *Asked) {
	for i := range j.Asked {
		e := &j.Asked[i]
		if !j.leads(i) || e.found || !e.mayEnter() || !j.changes(e) {
			continue
		}
		if !e.store().take(e.occupancy()) {
			for f := range j.Asked[:i] {
				if g := &j.Asked[f]; j.leads(f) && g.entered {
					g.entered = false
					g.store().leave(g.occupancy())
				}
			}
			return e
		}
		e.entered = true
	}
	return nil
}

// changes reports whether the decision changes the state of a key.
func (j *Joint) changes(e *Asked) bool { return j.granted || j.notes && e.k.Notes() }

func (e *Asked) occupancy() *occupancy {
	if e.logged {
		return &e.ls.space.occupancy
	}
	return &e.Tables.occupancy
}

// admit makes room for new keys until an attempt succeeds. The store of lacks is full. It is
// admit of the Store, for several stores.
func (j *Joint) admit(lacks *Asked) {
	stores := j.bounded()
	for _, s := range stores {
		s.admission.mu.Lock()
		defer s.admission.mu.Unlock()
	}
	for ; lacks != nil; lacks = j.try() {
		now, _ := lacks.time()
		if idle, full := lacks.store().makeRoom(now); full {
			j.refuse(lacks, idle)
		}
	}
}

// bounded returns the stores with a bound, in the order of their locks.
func (j *Joint) bounded() (stores []*Store) {
	for i := range j.Asked {
		if s := j.Asked[i].store(); s.MaxKeys > 0 && !slices.Contains(stores, s) {
			stores = append(stores, s)
		}
	}
	slices.SortFunc(stores, func(a, b *Store) int { return cmp.Compare(a.serial, b.serial) })
	return stores
}

// refuse lets the store of a new key refuse it. Another key may be idle at idle.
func (j *Joint) refuse(e *Asked, idle kernel.Instant) {
	e.store().rejected.Add(1)
	for i := range j.Asked {
		if f := &j.Asked[i]; f.First == e.First {
			now, lag := f.time()
			f.refused, f.Answer = true, noRoomUntil(idle, f.kernel(), now, lag)
		}
	}
}
