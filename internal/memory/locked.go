package memory

import (
	"slices"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file applies requests: to a word without a lock (decide.go) or, if that cannot be, under the
// lock of a shard.
//
// A slot has no room for what a hold or a reservation leaves behind nor, if it has one word, for
// what a debt or a change of its limit does (kernel, narrow.go). A state with that is in the arena;
// so is one of another kind of limit, or of one that came when no number was left. It comes back
// when the key is granted events, if it has an equal for which there is room. A word of another
// limit gets another slot (guarantee 2).

// Apply applies req to the state of key, with the limit lim, and fills in the answer.
func (sp *Space) Apply(key string, lim *Limit, req *step.Request, a *step.Answer) {
	sp.apply(sp.store.identify(key), lim, req, a)
}

func (sp *Space) apply(id identity, lim *Limit, req *step.Request, a *step.Answer) {
	if lim.places(req) {
		t := sp.at(id)
		if p, ok := t.find(id); ok && (!sp.varies || sp.limitAt(t, p) == lim) &&
			lim.decide(t.word(p), req, a) {
			return
		}
	}
	sp.update(id, lim, req, a)
}

// places reports whether req may be decided on a state of one word.
func (lim *Limit) places(req *step.Request) bool {
	switch {
	case lim.word == nil || req.Op == step.OpHold:
		return false
	case req.Op == step.OpReserve:
		return req.Hold.For <= 0
	}
	return req.Op <= step.OpPeek || req.Op == step.OpCharge && req.N <= lim.k.Limit()
}

// update applies a request under the lock.
func (sp *Space) update(id identity, lim *Limit, req *step.Request, a *step.Answer) {
	if sp.hasUpdated(id, lim, req, a) {
		return
	}
	if idle, full := sp.admit(req, func() bool { return sp.hasUpdated(id, lim, req, a) }); full {
		sp.store.refuse(lim.loose, req, idle, a)
	}
}

// hasUpdated is update, or returns false if the store is full.
func (sp *Space) hasUpdated(id identity, lim *Limit, req *step.Request, a *step.Answer) bool {
	for {
		if ok, again := sp.tryUpdate(id, lim, req, a); !again {
			return ok
		}
	}
}

// tryUpdate tries an update under the lock, which it releases even if the user's clock panics. It
// is to be tried again if the table was replaced or swept; otherwise, ok is false if the store is
// full.
func (sp *Space) tryUpdate(
	id identity,
	lim *Limit,
	req *step.Request,
	a *step.Answer,
) (ok, again bool) {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	p, held := t.find(id)
	if !held {
		return sh.insertLocked(t, p, id, lim, req, a)
	}
	fits, same := lim.places(req), sp.limitAt(t, p) == lim
	switch {
	case sh.heavy() || fits && !same && sh.used >= t.most:
		sh.replaceLocked(t, 1)
		return false, true
	case !fits || !same || !lim.decide(t.word(p), req, a):
		sh.stepLocked(t, p, lim, req, a)
	}
	sp.store.countEnded(a)
	return true, false
}

// stepLocked applies a request to the state at p, which is not a word of lim with room for what the
// request leaves.
func (sh *shard) stepLocked(t *table, p place, lim *Limit, req *step.Request, a *step.Answer) {
	word, refers := t.refers(p)
	var by *step.Machine
	var st []uint64
	if refers || t.width > 1 {
		by, st = sh.read(t, p, nil)
	} else {
		// The state is owned before the clock is read: otherwise another caller could decide on it
		// at a later time.
		word = atomic.SwapUint64(t.word(p), gone) // guarantee 3
		defer func() {
			if t.holds(p) {
				// If it is still gone, it is unchanged, or the user's clock has panicked.
				atomic.CompareAndSwapUint64(t.word(p), gone, word)
			}
		}()
		was := sh.space.limitAt(t, p)
		wide := was.word.Widen(word)
		by, st = was.loose, sh.states().copied(was.loose, wide[:], req.Opens())
	}
	if by == by.Base() && lim.places(req) {
		at := req.Fix()
		if next, ok := lim.place(by, st, &at, a); ok {
			sh.replaceWord(t, p, lim, next)
			return
		}
	}
	switch {
	case refers && t.width > 1 && by == by.Base() && req.Op == step.OpTake:
		copy(t.state(p), st)
		sh.arena.remove(word)
		t.setNumber(p, 0)
		st = t.state(p)
	case refers:
		e := sh.arena.at(word)
		if req.Op != step.OpPeek {
			sh.arena.makeRoom(e, req.Adds(), req.Opens())
		}
		by, st, _ = lim.loose.StepFrom(sh.arena.kernel(e), sh.arena.state(e), req, a)
		sh.arena.set(e, by, st)
		return
	case t.width > 1 && req.Opens():
		st = sh.states().copied(by, st, true)
	}
	if by, st, changed := lim.loose.StepFrom(by, st, req, a); changed {
		sh.put(t, p, by, st)
	}
}

// put stores the state at p, which by left: in the slot, if that has room for it.
func (sh *shard) put(t *table, p place, by *step.Machine, st []uint64) {
	word, refers := t.refers(p)
	switch {
	case t.width > 1 && by == sh.space.base.loose:
		sh.release(t, p) // which leaves the words of st as they are
		copy(t.state(p), st)
	case refers:
		sh.arena.set(sh.arena.at(word), by, st)
	default:
		t.refer(p, sh.states().add(by, st))
	}
}

// widen returns the state of the arena that equals a word, and the kernel of it.
func (lim *Limit) widen(word uint64) (by *step.Machine, st []uint64) {
	wide := lim.word.Widen(word)
	return lim.loose, wide[:]
}

// place applies a request whose time is fixed to a state that by left, and returns the word that it
// leaves. It returns false, and changes nothing, if it does not change the state, or if that has no
// equal in a word, such as that of two limits.
func (lim *Limit) place(
	by *step.Machine,
	st []uint64,
	req *step.Request,
	a *step.Answer,
) (word uint64, ok bool) {
	k, met, _ := lim.loose.Reconcile(by, st, req.Fixed.Now)
	if k != lim.loose {
		return 0, false
	}
	if word, ok = lim.word.Narrow(met, req.Fixed.Now); !ok {
		return 0, false
	}
	next := word
	ok = lim.decide(&next, req, a)
	return next, ok && next != word
}

// replaceWord replaces the state at p, which nobody else uses, by a word of lim: there, if that is
// the limit of the slot, and otherwise in another slot, for which there is one.
func (sh *shard) replaceWord(t *table, p place, lim *Limit, word uint64) {
	if sh.space.limitAt(t, p) == lim {
		sh.release(t, p)
		atomic.StoreUint64(t.word(p), word)
		return
	}
	id := t.id(p)
	sh.dropLocked(t, p)
	p, _ = t.find(id)
	atomic.StoreUint64(t.word(p), word)
	sh.takeLocked(t, p, id, lim.number)
}

// insertLocked inserts id, with the limit lim, at p in t if req changes the state of a key never
// seen.
func (sh *shard) insertLocked(
	t *table,
	p place,
	id identity,
	lim *Limit,
	req *step.Request,
	a *step.Answer,
) (ok, again bool) {
	if sh.space.dropped.Load() { // a key would take a place that nobody finds again
		lim.loose.StepFrom(lim.loose, lim.loose.NewState(), req, a)
		return true, false
	}
	if sh.crowded(t, 1) {
		now, _ := req.Now()
		if _, replaced := sh.makeRoomLocked(t, 1, now); replaced {
			return false, true
		}
	}
	// The words of the state are 0. No other goroutine reads them until the slot is taken.
	st := t.state(p)
	decided := lim.places(req) && lim.decide(&st[0], req, a)
	by, changed := lim.loose, decided && st[0] != 0
	if !decided {
		if t.width == 1 || req.Opens() {
			st = sh.states().blank(by, req.Opens())
		}
		by, st, changed = by.StepFrom(by, st, req, a)
	}
	if !changed || !sh.space.take() {
		clear(t.state(p))
		return !changed && sh.space.store.answers(req.Op), false
	}
	if !decided {
		sh.put(t, p, by, st)
	}
	sh.takeLocked(t, p, id, lim.number)
	sh.inserts++
	sh.space.store.keepTime(req.Clock)
	return true, false
}

// takeLocked takes the slot at p, whose state is set.
func (sh *shard) takeLocked(t *table, p place, id identity, number uint64) {
	if number > 0 { // else there may be a reference
		t.setNumber(p, number)
	}
	t.setSecond(p, id.lo)
	atomic.StoreUint64(&t.words[p.group+p.slot], id.hi) // guarantee 2
	sh.used++
	sh.keys++
}

// forgetLocked forgets the key at p, whose state nobody else uses.
func (sh *shard) forgetLocked(t *table, p place) {
	sh.dropLocked(t, p)
	sh.space.leave()
}

// dropLocked is forgetLocked for a key that gets another slot.
func (sh *shard) dropLocked(t *table, p place) {
	sh.release(t, p)
	if t.width == 1 {
		atomic.StoreUint64(t.word(p), gone) // guarantee 3
	}
	t.setSecond(p, 0)
	sh.keys--
}

func (sh *shard) release(t *table, p place) {
	if word, ok := t.refers(p); ok {
		sh.arena.remove(word)
		if t.width > 1 {
			t.setNumber(p, 0)
		}
	}
}

// read returns the kernel of the state at p, and the state or, if that is a word, a copy of it in
// room.
func (sh *shard) read(t *table, p place, room *[1]uint64) (by *step.Machine, st []uint64) {
	word, ok := t.refers(p)
	switch {
	case ok:
		e := sh.arena.at(word)
		return sh.arena.kernel(e), sh.arena.state(e)
	case t.width > 1:
		return sh.space.base.loose, t.state(p)
	}
	room[0] = word
	return sh.space.limitAt(t, p).k, room[:]
}

// freeze makes the state at p, which read has returned, final. It returns false if that has
// changed.
func (sh *shard) freeze(t *table, p place, st []uint64) bool {
	if _, ok := t.refers(p); ok || t.width > 1 {
		return true
	}
	return atomic.CompareAndSwapUint64(t.word(p), st[0], gone) // guarantee 3
}

// states returns the arena, for another state.
func (sh *shard) states() *arena {
	if sh.arena == nil {
		sh.arena = sh.newArena(0, 0)
	}
	return sh.arena
}

// allowLocked is AllowBy under the lock.
func (sp *Space) allowLocked(clk *timeline.Timeline, id identity, lim *Limit, n int) (granted bool) {
	if lim.word == nil {
		if granted, ok := sp.allowState(clk, id, lim, n); ok {
			return granted
		}
	}
	req, a := step.Request{Op: step.OpTake, N: n, Clock: clk, Brief: true}, step.Answer{}
	sp.update(id, lim, &req, &a)
	return a.Allowed
}

// allowState is Allow for a key with a state of several words that lim has left. Otherwise, ok is
// false.
func (sp *Space) allowState(
	clk *timeline.Timeline,
	id identity,
	lim *Limit,
	n int,
) (granted, ok bool) {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	p, ok := t.find(id)
	if !ok || sh.heavy() {
		return false, false
	}
	word, refers := t.refers(p)
	switch {
	case refers:
		e := sh.arena.at(word)
		if t.width > 1 || sh.arena.kernel(e) != lim.loose {
			return false, false
		}
		sh.arena.makeRoom(e, n, false)
		st, granted, _ := lim.loose.Allow(sh.arena.state(e), clk, n)
		sh.arena.set(e, lim.loose, st)
		return granted, true
	case t.width == 1:
		return false, false // it is a word of another limit
	}
	_, granted, _ = lim.loose.Allow(t.state(p), clk, n)
	return granted, true
}

// Reset forgets key.
func (sp *Space) Reset(key string) {
	id := sp.store.identify(key)
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	if p, ok := t.find(id); ok {
		sh.forgetLocked(t, p)
	}
}

// State returns a copy of the state of key, and the kernel that left it, as of an instant during
// the call, or nil if it has open holds.
func (sp *Space) State(key string) (by *step.Machine, st []uint64) {
	id := sp.store.identify(key)
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	p, ok := t.find(id)
	if !ok {
		return sp.base.loose, sp.base.loose.NewState()
	}
	if word, refers := t.refers(p); !refers && t.width == 1 {
		return sp.limitAt(t, p).widen(word)
	}
	by, st = sh.read(t, p, nil)
	if by.OpenHolds(st) > 0 {
		return nil, nil
	}
	return by, slices.Clone(st)
}
