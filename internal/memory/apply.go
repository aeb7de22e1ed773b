package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file applies a request to a key: to a word without a lock (decider.go) or, if that cannot
// be, under the lock of the key's shard.

// Apply applies req to the state of key, with the limit lim, and fills in the answer.
func (sp *Space) Apply(key string, lim *Limit, req *step.Request, a *step.Answer) {
	sp.apply(sp.store.identify(key), lim, req, a)
}

// ApplyAs is Apply of an OpTake or OpPeek with the limit that has the given tag. It returns
// false if the key is not there with that limit, or if its state is not one word.
func (sp *Space) ApplyAs(key string, tag any, req *step.Request, a *step.Answer) (ok bool) {
	id := sp.store.identify(key)
	t := sp.tableOf(id)
	at, ok := t.find(id)
	if !ok {
		return false
	}
	lim := sp.limitAt(t, at)
	return lim.tag == tag && lim.decide(t.word(at), req, a)
}

func (sp *Space) apply(id identity, lim *Limit, req *step.Request, a *step.Answer) {
	if lim.fitsWord(req) {
		t := sp.tableOf(id)
		if at, ok := t.find(id); ok && (!sp.varies || sp.limitAt(t, at) == lim) &&
			lim.decide(t.word(at), req, a) {
			return
		}
	}
	sp.applyLocked(id, lim, req, a)
}

// applyLocked is apply under the lock. If the key is new and the store is full, it makes room for
// the key, or denies the request.
func (sp *Space) applyLocked(id identity, lim *Limit, req *step.Request, a *step.Answer) {
	if sp.applyIfRoom(id, lim, req, a) {
		return
	}
	idle, full := sp.admit(req, func() bool { return sp.applyIfRoom(id, lim, req, a) })
	if full {
		sp.store.refuse(lim.loose, req, idle, a)
	}
}

// applyIfRoom is apply under the lock. It returns false, and does nothing, if the store is full and
// the key would need a place.
func (sp *Space) applyIfRoom(id identity, lim *Limit, req *step.Request, a *step.Answer) bool {
	for {
		ok, again := sp.tryApply(id, lim, req, a)
		if !again {
			return ok
		}
	}
}

// tryApply is one attempt of applyIfRoom, after which the lock is released even if the user's clock
// panics. again says that the table was replaced instead.
func (sp *Space) tryApply(
	id identity,
	lim *Limit,
	req *step.Request,
	a *step.Answer,
) (ok, again bool) {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	at, held := t.find(id)
	ls := lockedSlot{sp, sh, t, at}
	if !held {
		return ls.insert(id, lim, req, a)
	}
	fits, same := lim.fitsWord(req), ls.limit() == lim
	switch {
	case sp.heavy(sh) || fits && !same && sh.used >= t.most:
		sp.replaceTable(sh, t, 1)
		return false, true
	case !fits || !same || !lim.decide(t.word(at), req, a):
		ls.step(lim, req, a)
	}
	sp.store.countEnded(a)
	return true, false
}

// step applies a request to the state of a key, which is not a word of lim with room for what the
// request leaves.
func (ls *lockedSlot) step(lim *Limit, req *step.Request, a *step.Answer) {
	word, refers := ls.table.refers(ls.at)
	switch {
	case refers && !ls.returnToSlot(word, req):
		ls.stepInArena(word, lim, req, a)
	case ls.table.width > 1:
		ls.stepInSlot(lim, req, a)
	default:
		ls.stepWord(lim, req, a)
	}
}

// returnToSlot moves a state of several words from the arena to the slot, which has room for it, if
// events are taken. It reports whether it did.
func (ls *lockedSlot) returnToSlot(word uint64, req *step.Request) bool {
	r := ls.shard.arena.record(word)
	k := ls.space.base.loose
	if ls.table.width == 1 || !ls.shard.arena.isPlain(r, k) || req.Op != step.OpTake {
		return false
	}
	ls.put(k, ls.shard.arena.state(r))
	return true
}

// stepInArena applies a request to the state in the arena to which a word refers.
func (ls *lockedSlot) stepInArena(word uint64, lim *Limit, req *step.Request, a *step.Answer) {
	states := ls.shard.arena
	r := states.record(word)
	if ls.becomesWord(lim, states.kernel(r), states.state(r), req, a) {
		return
	}
	if req.Op != step.OpPeek {
		states.grow(r, req.Adds(), req.Opens())
	}
	k, st, _ := lim.loose.StepFrom(states.kernel(r), states.state(r), req, a)
	states.set(r, k, st)
}

// stepInSlot applies a request to the state of several words in the slot.
func (ls *lockedSlot) stepInSlot(lim *Limit, req *step.Request, a *step.Answer) {
	k, st := ls.space.base.loose, step.PlainState(ls.table.state(ls.at))
	if req.Opens() {
		st.Words = ls.shard.states().draftCopy(k, st.Words, true)
	}
	k, st, changed := lim.loose.StepFrom(k, st, req, a)
	if changed {
		ls.put(k, st)
	}
}

// stepWord applies a request to the word in the slot, as to the state in the arena that equals the
// word.
func (ls *lockedSlot) stepWord(lim *Limit, req *step.Request, a *step.Answer) {
	// The state is owned before the clock is read: otherwise another caller could decide on it
	// at a later time.
	t, at := ls.table, ls.at
	word := atomic.SwapUint64(t.word(at), gone) // guarantee 3
	defer func() {
		if t.holds(at) {
			// If it is still gone, it is unchanged, or the user's clock has panicked.
			atomic.CompareAndSwapUint64(t.word(at), gone, word)
		}
	}()
	old := ls.limit()
	wide := old.word.Widen(word)
	k, words := old.loose, ls.shard.states().draftCopy(old.loose, wide[:], req.Opens())
	st := step.PlainState(words)
	if ls.becomesWord(lim, k, st, req, a) {
		return
	}
	k, st, changed := lim.loose.StepFrom(k, st, req, a)
	if changed {
		ls.put(k, st)
	}
}

// becomesWord applies a request to a state that k left, if the next state is a word of lim, and
// reports whether it did.
func (ls *lockedSlot) becomesWord(
	lim *Limit,
	k *step.Machine,
	st step.State,
	req *step.Request,
	a *step.Answer,
) bool {
	if !st.IsPlain() || !lim.fitsWord(req) {
		return false
	}
	fixed := req.Fix()
	next, ok := lim.stepToWord(k, st, &fixed, a)
	if ok {
		ls.putWord(lim, next)
	}
	return ok
}

// insert applies req to the state of a key never seen. If that changes, insert puts the key into
// the slot, where the search for it has ended. ok and again are those of tryApply.
func (ls *lockedSlot) insert(
	id identity,
	lim *Limit,
	req *step.Request,
	a *step.Answer,
) (ok, again bool) {
	sp, sh, t := ls.space, ls.shard, ls.table
	if sp.dropped.Load() { // a key would take a place that nobody finds again
		lim.loose.StepFrom(lim.loose, step.PlainState(lim.loose.NewState()), req, a)
		return true, false
	}
	if sh.crowded(t, 1) {
		now, _ := req.Now()
		_, replaced := sp.makeRoomForKeys(sh, t, 1, now)
		if replaced {
			return false, true
		}
	}
	// The words of the state are 0. No other goroutine reads them until the slot is taken.
	st := step.PlainState(t.state(ls.at))
	decided := lim.fitsWord(req) && lim.decide(&st.Words[0], req, a)
	k, changed := lim.loose, decided && st.Words[0] != 0
	if !decided {
		if t.width == 1 || req.Opens() {
			st.Words = sh.states().draftNew(k, req.Opens())
		}
		k, st, changed = k.StepFrom(k, st, req, a)
	}
	if !changed || !sp.claimPlace() {
		clear(t.state(ls.at))
		return !changed && sp.store.answers(req.Op), false
	}
	if !decided {
		ls.put(k, st)
	}
	ls.fill(id, lim.number)
	sh.inserts++
	sp.store.keepTime(req.Clock)
	return true, false
}

// Reset forgets key.
func (sp *Space) Reset(key string) {
	id := sp.store.identify(key)
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	at, ok := t.find(id)
	if ok {
		ls := lockedSlot{sp, sh, t, at}
		ls.forget()
	}
}

// State returns a copy of the state of key, and the kernel that left it, as of an instant during
// the call, or nil if it has open holds.
func (sp *Space) State(key string) (k *step.Machine, st step.State) {
	id := sp.store.identify(key)
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	at, ok := t.find(id)
	if !ok {
		return sp.base.loose, step.PlainState(sp.base.loose.NewState())
	}
	ls := lockedSlot{sp, sh, t, at}
	word, refers := t.refers(at)
	if !refers && t.width == 1 {
		return ls.limit().widen(word)
	}
	k, st = ls.read(nil)
	if k.OpenHolds(st) > 0 {
		return nil, step.State{}
	}
	return k, st.Clone()
}
