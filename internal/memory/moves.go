package memory

import (
	"slices"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file gives keys limits of their own, and room for what a table has none for.
//
// Distinct limits are few. So those whose states are one word get a number, and a slot of
// the tables has the number of its key's limit, which never changes (tables.go, guarantee
// 2). A decision that finds the key with the limit that it is to be made by proceeds without a
// lock, as if all keys had that limit.
//
// A state of one word has nothing that a hold, a reservation, a debt or a change of its limit leaves
// behind (kernel, narrow.go). Keys with that are in the logs, whose states have room for it; so
// are those with another kind of limit, with a limit that came when no number was left, and those
// that have used more than their limit since it was lowered. A key moves from the tables to the
// logs when a request requires it, and back when it is granted events that can be decided on in
// the tables again.
//
// A state of several words is the same in the tables and in the logs. Its key moves to the logs
// when events are held, and stays there, because its state is not accessed without a lock anyway.
//
// A key is never in both:
//
//   - It is put into the tables or the logs only under the lock of its shard of the tables,
//     while it is in neither.
//   - It is taken out of the tables under that lock, and out of the logs under the lock of
//     its shard of the logs. That lock is always acquired second.
//
// So a caller that finds a key in one of them, under its lock, knows that it is not in the
// other one. A caller without a lock that does not find a key, or finds its state Gone,
// takes the lock of the tables and looks again.

// mostNumbers is the most limits of a space that have a number.
const mostNumbers = 1 << numberBits

// A Limit is a limit of keys of Tables. A limit with a number exists once, so that pointers can be
// compared.
type Limit struct {
	space   *Tables
	tag     any              // what the caller knows it by; nil for the base
	number  uint64           // 0 for the base
	decider                  // for states in tables; zero if they have none of this limit
	loose   *kernel.Compiled // for states in logs
}

// makeLogs returns the logs.
func (sp *Tables) makeLogs() *Logs {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.logs.Load() == nil {
		logs := newLogs(sp.store)
		sp.logs.Store(sp.store.openLogs(logs, 0))
	}
	return sp.logs.Load()
}

// Base returns the limit of keys without one of their own. Its tag is nil.
func (sp *Tables) Base() *Limit { return sp.base }

// Limit returns a limit. Limits with the same tag, which must be comparable and not nil,
// must have the same kernels: k in tables, and loose in logs.
func (sp *Tables) Limit(tag any, k, loose *kernel.Compiled) *Limit {
	lim := &Limit{space: sp, loose: loose}
	word := k.Word()
	if word == nil {
		return lim
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if known := sp.byTag[tag]; known != nil {
		return known
	}
	all := *sp.limits.Load()
	if len(all) == mostNumbers {
		return lim
	}
	lim.tag, lim.number, lim.k, lim.word = tag, uint64(len(all)), k, word
	if sp.byTag == nil {
		sp.byTag = make(map[any]*Limit)
	}
	sp.byTag[tag] = lim
	all = append(all, lim) // may append in place: readers keep their length
	sp.limits.Store(&all)
	return lim
}

// Of reports whether lim is a limit of sp.
func (lim *Limit) Of(sp *Tables) bool { return lim.space == sp }

// limitAt returns the limit at p.
func (sp *Tables) limitAt(t *table, p place) *Limit { return (*sp.limits.Load())[t.number(p)] }

// kernelAt returns the kernel of the state at p.
func (sp *Tables) kernelAt(t *table, p place) *kernel.Compiled { return sp.limitAt(t, p).k }

// places reports whether req may be decided in the tables.
func (lim *Limit) places(req *kernel.Request) bool {
	switch {
	case lim.k == nil || req.Op == kernel.OpHold:
		return false
	case req.Op == kernel.OpReserve:
		return req.Hold.For <= 0
	case lim.word == nil || req.Op <= kernel.OpPeek:
		return true
	}
	return req.Op == kernel.OpCharge && req.N <= lim.k.Limit()
}

// step applies a request that places allows to a state that nobody else uses. It reports
// whether the state is to be stored: not if it has a turn ahead or, as one word, is in debt.
func (lim *Limit) step(st []uint64, req *kernel.Request, a *kernel.Answer) (changed bool) {
	if lim.word != nil {
		if req.Op == kernel.OpCharge && !lim.k.Grants(st, req) {
			return false
		}
		_, changed = lim.k.Step(st, req, a)
		return changed && !waits(req, a)
	}
	_, next, changed := lim.k.StepFrom(lim.k, st, req, a) // opens no hold, and leaves st if a turn is ahead
	if waits(req, a) {
		return false
	}
	copy(st, next)
	return changed
}

// waits reports whether a reservation is made whose turn is ahead. So the key is to be in the logs.
func waits(req *kernel.Request, a *kernel.Answer) bool {
	return req.Op == kernel.OpReserve && a.Allowed && a.Wait > 0
}

// apply applies a request that places allows to a state of one word in the tables.
// It returns false if the state is Gone, or is to be in the logs.
func (lim *Limit) apply(state *uint64, req *kernel.Request, a *kernel.Answer) (ok bool) {
	if lim.decide(state, req, a) {
		return true
	}
	return req.Op != kernel.OpCharge && lim.space.store.swap(state, func(st []uint64) (changed bool) {
		return lim.step(st, req, a)
	}) && !waits(req, a)
}

// applyLogged applies a request to the state of a key in the logs. It returns false if the key is not
// there or, if it may move to the tables, has no open holds, or if its table was replaced to make room.
func (sp *Tables) applyLogged(id identity, lim *Limit, req *kernel.Request, a *kernel.Answer, moves bool) (ok bool) {
	logs := sp.logs.Load()
	if logs == nil {
		return false
	}
	sh := logs.lock(id)
	defer sh.mu.Unlock()
	i, ok := sh.find(id)
	if ok && moves {
		by := sh.kernel(&sh.slots[i])
		ok = by != by.Base()
	}
	return ok && sh.applyLocked(id, lim.loose, req, a) == updated
}

// update applies a request wherever the key is, or is to be.
func (sp *Tables) update(id identity, lim *Limit, req *kernel.Request, a *kernel.Answer) {
	try := func() (ok bool) {
		for {
			if out := sp.tryUpdate(id, lim, req, a); out != replaced {
				return out == updated
			}
		}
	}
	if try() {
		return
	}
	if idle, full := sp.store.admit(req, try); full {
		sp.store.refuse(lim.loose, req, idle, a)
	}
}

// tryUpdate tries an update under the lock, which it releases even if the user's clock panics.
func (sp *Tables) tryUpdate(id identity, lim *Limit, req *kernel.Request, a *kernel.Answer) outcome {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	u, fits := updating{sp, sh, t, id}, lim.places(req)
	p, held := t.find(id)
	if held && fits && sp.limitAt(t, p) == lim && u.stays(p, lim, req, a) {
		return updated
	}
	if held {
		now, _ := req.Now()
		if sh.replaces(t, now, fits) {
			return replaced
		}
		p, held = t.find(id) // it may have been idle
		if held && u.moves(p, now, lim, req, a) {
			return updated
		}
	}
	logs := sp.logs.Load()
	if !fits {
		logs = sp.makeLogs()
	}
	if logs != nil {
		if out, ok := u.applyLogged(logs, lim, req, a); ok {
			return out
		}
	}
	return sh.insertLocked(t, p, id, lim, req, a)
}

// An updating is a key to which a request is applied wherever it is, or is to be, under the lock of sh, whose table is
// t. It does not have the request, which would be allocated then.
type updating struct {
	sp *Tables
	sh *shard
	t  *table
	id identity
}

// stays applies a request that lim places in the tables to the state at p, which is of that limit. It returns false if
// the key is to be in the logs.
func (u *updating) stays(p place, lim *Limit, req *kernel.Request, a *kernel.Answer) (ok bool) {
	if u.sp.single {
		return lim.apply(u.t.word(p), req, a)
	}
	lim.step(u.t.state(p), req, a)
	return !waits(req, a)
}

// moves applies the request to the state at p, if it can be placed in the table again, with the limit that is asked.
// Otherwise, it moves the key to the logs.
func (u *updating) moves(p place, now kernel.Instant, lim *Limit, req *kernel.Request, a *kernel.Answer) (ok bool) {
	was := u.sp.limitAt(u.t, p)
	st, drop := u.t.state(p), func() { u.sh.dropLocked(u.t, p) }
	if u.sp.single {
		// The state is frozen before the clock is read to convert it: otherwise another
		// caller could decide on the old state at a later time.
		word, moved := atomic.SwapUint64(u.t.word(p), kernel.Gone), false // guarantee 3
		defer func() {
			if !moved { // the user's clock has panicked
				atomic.StoreUint64(u.t.word(p), word)
			}
		}()
		wide := was.word.Widen(word)
		st, drop = wide[:], func() {
			moved = true
			u.sh.dropLocked(u.t, p)
		}
	}
	if lim.places(req) && was != lim && u.place(lim, was.loose, st, req, a, drop) {
		return true
	}
	u.sp.logLocked(u.id, was, st, now, req.Opens(), drop)
	return false
}

// applyLogged applies the request to the state of the key in the logs. ok is false if the key is inserted in the
// table.
func (u *updating) applyLogged(logs *Logs, lim *Limit, req *kernel.Request, a *kernel.Answer) (out outcome, ok bool) {
	fits := lim.places(req)
	ls := logs.lock(u.id)
	defer ls.mu.Unlock()
	i, ok := ls.find(u.id)
	if ok && fits && u.sp.single {
		if now, _ := req.Now(); u.sh.replaces(u.t, now, true) {
			return replaced, true
		}
		e := &ls.slots[i]
		if u.place(lim, ls.kernel(e), ls.state(e), req, a, func() {
			ls.remove(i)
			u.sp.store.move(&logs.occupancy, &u.sp.occupancy)
		}) {
			return updated, true
		}
	}
	switch {
	case !ok && u.sp.sweepLocked(u.sh, u.t, ls, fits, req):
		return replaced, true
	case ok || !fits:
		return ls.applyLocked(u.id, lim.loose, req, a), true
	}
	return 0, false
}

// replaces sweeps the shard of a key that moves, if that is due, because it is not counted as
// inserted. If the key comes to the table, which is full, it replaces that, and returns true.
func (sh *shard) replaces(t *table, now kernel.Instant, comes bool) bool {
	sh.sweepIfDue(t, now)
	if comes && sh.used >= t.most {
		sh.replaceLocked(t, 1)
		return true
	}
	return false
}

// sweepLocked sweeps, if that is due, both shards of a key that is inserted into one of them:
// the other one may get no new keys any more. It reports whether it replaced anything.
func (sp *Tables) sweepLocked(sh *shard, t *table, ls *logShard, fits bool, req *kernel.Request) bool {
	into := &ls.upkeep
	if fits {
		into = &sh.upkeep
	}
	if !into.looks() {
		return false
	}
	now, _ := req.Now()
	return sh.keys > 0 && sh.makeRoomLocked(t, now) || ls.keys > 0 && ls.makeRoomLocked(now)
}

// place applies a request to a state that by left, and puts the key into the table, which has
// room, with the limit lim, once remove has taken it from where it is. It returns false, and
// changes nothing, if the request does not change the state, or if that has no equal in a word,
// such as that of two limits.
func (u *updating) place(lim *Limit, by *kernel.Compiled, st []uint64, req *kernel.Request, a *kernel.Answer, remove func()) (ok bool) {
	at := req.Fix()
	k, met, _ := lim.loose.Meet(by, st, at.Fixed.Now)
	if k != lim.loose {
		return false
	}
	word, ok := lim.word.Narrow(met, at.Fixed.Now)
	if !ok {
		return false
	}
	next := []uint64{word}
	if !lim.step(next, &at, a) {
		return false
	}
	remove()
	p, _ := u.t.find(u.id)
	atomic.StoreUint64(u.t.word(p), next[0])
	u.sh.takeLocked(u.t, p, u.id, lim.number)
	return true
}

// logLocked puts the key of id, whose limit is was, into the logs with a state, once remove
// has taken it from the tables.
func (sp *Tables) logLocked(id identity, was *Limit, st []uint64, now kernel.Instant, opens bool, remove func()) {
	logs := sp.makeLogs()
	ls, room := logs.lockWithRoom(id, was.loose, now, opens)
	defer ls.mu.Unlock()
	remove()
	copy(room, st)
	i, _ := ls.find(id)
	ls.insert(i, id, was.loose)
	ls.set(&ls.slots[i], room)
	sp.store.move(&sp.occupancy, &logs.occupancy)
}

// lockWithRoom locks the shard of id, and returns it with the state of a new key of k, for
// which it has room. It also sweeps the shard if that is due, because keys that move are not
// counted as inserted.
func (sp *Logs) lockWithRoom(id identity, k *kernel.Compiled, now kernel.Instant, opens bool) (sh *logShard, st []uint64) {
	for {
		sh = sp.lock(id)
		if !sh.makeRoomLocked(now) {
			st, lacks := sh.blank(k, opens)
			if lacks == 0 {
				return sh, st
			}
			sh.repackLocked(lacks)
		}
		sh.mu.Unlock() // it may have been split
	}
}

// Reset forgets key.
func (sp *Tables) Reset(key string) {
	id := sp.store.identify(key)
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	if p, ok := t.find(id); ok {
		if sp.single {
			atomic.StoreUint64(t.word(p), kernel.Gone) // guarantee 3
		}
		sh.forgetLocked(t, p)
	}
	if logs := sp.logs.Load(); logs != nil {
		logs.reset(id)
	}
}

// State returns a copy of the state of key, and the kernel that left it, or nothing if there is none. It is that of
// an instant during the call.
func (sp *Tables) State(key string) (by *kernel.Compiled, st []uint64) {
	id := sp.store.identify(key)
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	if p, ok := t.find(id); ok {
		lim := sp.limitAt(t, p)
		if !sp.single {
			return lim.loose, slices.Clone(t.state(p))
		}
		wide := lim.word.Widen(atomic.LoadUint64(t.word(p))) // not Gone, because of the lock
		return lim.loose, wide[:]
	}
	if logs := sp.logs.Load(); logs != nil {
		return logs.state(id)
	}
	return nil, nil
}

// State is like that of Tables.
func (sp *Logs) State(key string) (by *kernel.Compiled, st []uint64) {
	return sp.state(sp.store.identify(key))
}

func (sp *Logs) state(id identity) (by *kernel.Compiled, st []uint64) {
	sh := sp.lock(id)
	defer sh.mu.Unlock()
	i, ok := sh.find(id)
	if !ok {
		return nil, nil
	}
	e := &sh.slots[i]
	return sh.kernel(e), slices.Clone(sh.state(e))
}
