package memory

import (
	"slices"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file finds the states of the keys of a joint, and makes room for new keys and new events.

// find finds the state of a key, or where that of a new key is to be. It returns false if it had to make
// room in a table, so that other keys may be elsewhere.
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
	was := e.space.limitAt(e.t, e.at)
	switch fits := e.lim.places(&e.Request); {
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
	if keys := uint32(len(j.asked)); !e.found && e.mayEnter() && sh.crowded(e.t, keys) {
		if e.clock.Now == 0 { // once: a clock that leaps on each reading would let each attempt sweep
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
	keys  int64
	now   kernel.Instant
}

// full finds out which keys enter, because they are new and their states change, and counts them. If a store has no room
// for them, it counts none, and returns that: first one that refuses new keys, for which no other is to evict any. But one that
// has made room, and is full again, exceeds its bound until evict.
func (j *joint) full() *Store {
	j.entering = j.entering[:0]
	for i := range j.asked {
		e := &j.asked[i]
		if e.enters = !e.found && e.mayEnter() && (j.granted || j.notes && e.k.Notes()); e.enters && e.space.store.MaxKeys > 0 {
			j.enter(e.space.store, e.clock.Now)
		}
	}
	for i, in := range j.entering {
		if !in.store.take(in.keys, j.made && !in.store.RefuseNew) {
			for _, in := range j.entering[:i] {
				in.store.held.Add(-in.keys)
			}
			return in.store
		}
	}
	return nil
}

func (j *joint) enter(s *Store, now kernel.Instant) {
	i := slices.IndexFunc(j.entering, func(in entries) bool { return in.store == s })
	switch {
	case i >= 0:
		j.entering[i].keys++
	case s.RefuseNew:
		j.entering = slices.Insert(j.entering, 0, entries{s, 1, now})
	default:
		j.entering = append(j.entering, entries{s, 1, now})
	}
}

// evict has full stores evict keys for those that are to enter, which would otherwise be found themselves once they have
// entered: so that a new key is not forgotten at once, again and again, if others have less remaining. It takes no places:
// others may come first, and a joint may have more keys than a store may hold. So once all is decided, it brings the stores
// within their bounds again.
func (j *joint) evict() {
	j.made = true
	for _, in := range j.entering {
		if j.decided {
			in.keys = 0
		}
		if !in.store.RefuseNew {
			in.store.evict(in.keys, in.now)
		}
	}
}

// evict makes room for more keys, unless that takes too long because others come first.
func (s *Store) evict(more int64, now kernel.Instant) {
	if s.held.Load()+more <= s.MaxKeys {
		return
	}
	s.admission.mu.Lock()
	defer s.admission.mu.Unlock()
	for looks := 0; looks < 2*mostKept && s.held.Load()+more > s.MaxKeys; looks++ {
		s.makeRoom(now)
	}
}
