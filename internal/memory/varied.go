package memory

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A Varied is a space for keys that have limits of their own. It consists of Tables with
// states of one word, and of Logs.
//
// Distinct limits are few. So those whose states are one word get a number, and a slot of
// the tables has the number of its key's limit, which never changes (tables.go, guarantee
// 2). A decision that finds the key with the limit that it is to be made by proceeds as in
// any Tables, without a lock.
//
// A state of the tables has nothing that only a change of its limit leaves behind, and no
// reservation that its word could not keep (kernel, narrow.go). All other keys are in the
// logs, with a state that has room for that: those with another kind of limit, those with a
// limit that came when no number was left, those with reservations, and those that have used
// more than their limit since it was lowered. A key moves from the tables to the logs when a
// request requires it, and back when it can be decided on in the tables again; in a TokenBucket,
// when it is granted events again, because a word would not say whether any were since a hold.
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
type Varied struct {
	tables *Tables
	logs   atomic.Pointer[Logs] // nil until a key is put into them

	limits atomic.Pointer[[]*Limit] // by number; only appended to
	mu     sync.Mutex               // protects against another Limit or makeLogs
	byTag  map[any]*Limit           // those with a number, except the base
}

// mostNumbers is the most limits of a space that have a number.
const mostNumbers = 1 << numberBits

// A Limit is a limit of the keys of a Varied. A limit with a number exists once, so that
// pointers can be compared.
type Limit struct {
	space   *Varied
	tag     any              // what the caller knows it by; nil for the base
	number  uint64           // if word is not nil
	decider                  // for states of one word; zero if the limit has no number
	loose   *kernel.Compiled // for states in logs
}

func newVaried(s *Store, k, loose *kernel.Compiled) *Varied {
	v := &Varied{}
	v.tables = &Tables{store: s, over: newOverflow(s, nil), varied: v, single: true, width: 1}
	v.tables.begin()
	base := &Limit{space: v, loose: loose}
	if base.word = k.Word(); base.word != nil {
		base.k = k
	}
	v.limits.Store(&[]*Limit{base})
	return v
}

// makeLogs returns the logs.
func (v *Varied) makeLogs() *Logs {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.logs.Load() == nil {
		logs := newLogs(v.tables.store, overflow{})
		logs.epochs = &v.tables.epochs
		v.logs.Store(v.tables.store.openLogs(logs, 0))
	}
	return v.logs.Load()
}

// Base returns the limit of keys without one of their own. Its tag is nil.
func (v *Varied) Base() *Limit { return (*v.limits.Load())[0] }

// Limit returns a limit. Limits with the same tag, which must be comparable and not nil,
// must have the same kernels: k in tables, and loose in logs.
func (v *Varied) Limit(tag any, k, loose *kernel.Compiled) *Limit {
	lim := &Limit{space: v, loose: loose}
	word := k.Word()
	if word == nil {
		return lim
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if known := v.byTag[tag]; known != nil {
		return known
	}
	all := *v.limits.Load()
	if len(all) == mostNumbers {
		return lim
	}
	lim.tag, lim.number, lim.k, lim.word = tag, uint64(len(all)), k, word
	if v.byTag == nil {
		v.byTag = make(map[any]*Limit)
	}
	v.byTag[tag] = lim
	all = append(all, lim) // may append in place: readers keep their length
	v.limits.Store(&all)
	return lim
}

// Of reports whether lim is a limit of v.
func (lim *Limit) Of(v *Varied) bool { return lim.space == v }

// limitAt returns the limit at p.
func (v *Varied) limitAt(t *table, p place) *Limit { return (*v.limits.Load())[t.number(p)] }

// places reports whether req may be decided in the tables.
func (lim *Limit) places(req *kernel.Request) bool {
	return lim.word != nil && (req.Op <= kernel.OpPeek || req.Op == kernel.OpTakeUpTo || req.Op == kernel.OpReserve && req.AtOnce)
}

// AllowAs is Allow with the limit that has the given tag. ok is false if the key is not in
// the tables with that limit.
func (v *Varied) AllowAs(clk *kernel.Timeline, key string, tag any, n int) (granted, ok bool) {
	return v.tables.allow(clk, key, tag, n)
}

// ApplyAs is Apply of an OpTake or OpPeek with the limit that has the given tag. It returns
// false if the key is not in the tables with that limit.
func (v *Varied) ApplyAs(key string, tag any, req *kernel.Request, a *kernel.Answer) (ok bool) {
	id := v.tables.store.identify(key)
	t := v.tables.at(id)
	p, ok := t.find(id)
	if !ok {
		return false
	}
	lim := v.limitAt(t, p)
	return lim.tag == tag && lim.apply(t.word(p), req, a)
}

// Allow reports whether n events of key are granted by lim, 1 ≤ n ≤ limit. It is a faster
// Apply for callers that need nothing else.
func (v *Varied) Allow(clk *kernel.Timeline, key string, lim *Limit, n int) bool {
	id := v.tables.store.identify(key)
	if lim.word == nil {
		if logs := v.logs.Load(); logs != nil {
			if granted, ok := logs.allow(id, clk, lim.loose, n); ok {
				return granted
			}
		}
	} else if granted, ok := v.tables.allow(clk, key, lim.tag, n); ok {
		return granted
	}
	req, a := kernel.Request{Op: kernel.OpTake, N: n, Clock: clk}, kernel.Answer{}
	v.update(id, lim, &req, &a)
	return a.Allowed
}

// Apply applies req to the state of key, with the limit lim, and fills in the answer.
func (v *Varied) Apply(key string, lim *Limit, req *kernel.Request, a *kernel.Answer) {
	if v.tables.over.cancels(lim.loose, req, a) {
		return
	}
	id := v.tables.store.identify(key)
	if lim.word == nil {
		if v.applyLogged(id, lim, req, a) {
			return
		}
	} else if lim.places(req) {
		if t, p, ok := v.find(id, lim); ok && lim.apply(t.word(p), req, a) {
			return
		}
	}
	v.update(id, lim, req, a)
}

// find returns the place of id, without a lock. ok is false if it is not in the tables, or
// not with lim.
func (v *Varied) find(id identity, lim *Limit) (t *table, p place, ok bool) {
	t = v.tables.at(id)
	p, ok = t.find(id)
	return t, p, ok && v.limitAt(t, p) == lim
}

// step applies a request to a state of one word.
func (lim *Limit) step(req *kernel.Request, a *kernel.Answer) change {
	return func(st []uint64) (changed bool) {
		_, changed = lim.k.Step(st, req, a)
		return changed && a.Grant == nil
	}
}

// apply applies a request that places allows to a state in the tables. It returns false if
// the state is Gone, or if the request makes a reservation that may be cancelled.
func (lim *Limit) apply(state *uint64, req *kernel.Request, a *kernel.Answer) (ok bool) {
	return lim.decide(state, req, a) || lim.space.tables.store.swap(state, lim.step(req, a)) && a.Grant == nil
}

// applyLogged applies a request to the state of a key in the logs. It returns false if the
// key is not there, or if its table was replaced to make room.
func (v *Varied) applyLogged(id identity, lim *Limit, req *kernel.Request, a *kernel.Answer) (ok bool) {
	logs := v.logs.Load()
	if logs == nil {
		return false
	}
	sh := logs.lock(id)
	defer sh.mu.Unlock()
	_, ok = sh.find(id)
	return ok && sh.applyLocked(id, lim.loose, req, a) == updated
}

// update applies a request wherever the key is, or is to be.
func (v *Varied) update(id identity, lim *Limit, req *kernel.Request, a *kernel.Answer) {
	try := func() (ok bool) {
		for {
			if out := v.tryUpdate(id, lim, req, a); out != replaced {
				return out == updated
			}
		}
	}
	if try() {
		return
	}
	key := candidate{id: id, sh: v.tables.at(id).shard}
	if !lim.places(req) {
		key.sh = v.makeLogs().at(id)
	}
	if idle, full := v.tables.store.admit(req, key, try); full {
		v.tables.over.apply(lim.loose, req, idle, a)
	}
}

// tryUpdate calls updateLocked under the lock, which it releases even if the user's clock
// panics.
func (v *Varied) tryUpdate(id identity, lim *Limit, req *kernel.Request, a *kernel.Answer) outcome {
	sh, t := v.tables.lock(id)
	defer sh.mu.Unlock()
	return v.updateLocked(sh, t, id, lim, req, a)
}

// updateLocked tries an update under the lock of sh, whose table is t.
func (v *Varied) updateLocked(sh *shard, t *table, id identity, lim *Limit, req *kernel.Request, a *kernel.Answer) outcome {
	fits := lim.places(req)
	p, held := t.find(id)
	if held {
		was := v.limitAt(t, p)
		if fits && was == lim && lim.apply(t.word(p), req, a) {
			return updated
		}
		now, _ := req.Now()
		if sh.makeRoomLocked(t, now) {
			return replaced
		}
		// The state is frozen before the clock is read to convert it: otherwise another
		// caller could decide on the old state at a later time.
		word, moved := atomic.SwapUint64(t.word(p), kernel.Gone), false // guarantee 3
		defer func() {
			if !moved { // the user's clock has panicked
				atomic.StoreUint64(t.word(p), word)
			}
		}()
		remove := func() {
			moved = true
			sh.dropLocked(t, p)
		}
		wide := was.word.Widen(word)
		if fits && was != lim && v.placeLocked(sh, t, id, lim, was.loose, wide[:], req, a, remove) {
			return updated
		}
		v.logLocked(id, was, wide, now, remove)
	}
	logs := v.logs.Load()
	if !fits {
		logs = v.makeLogs()
	}
	if logs != nil {
		ls := logs.lock(id)
		defer ls.mu.Unlock()
		i, ok := ls.find(id)
		if ok && fits {
			if now, _ := req.Now(); sh.makeRoomLocked(t, now) {
				return replaced
			}
			e := &ls.slots[i]
			if v.placeLocked(sh, t, id, lim, ls.kernel(e), ls.state(e), req, a, func() {
				ls.remove(i)
				v.tables.store.move(&logs.occupancy, &v.tables.occupancy)
			}) {
				return updated
			}
		}
		if !ok && v.sweepLocked(sh, t, ls, fits, req) {
			return replaced
		}
		if ok || !fits {
			return ls.applyLocked(id, lim.loose, req, a)
		}
	}
	return sh.insertLocked(t, p, id, lim.number, req, lim.step(req, a))
}

// sweepLocked sweeps, if that is due, both shards of a key that is inserted into one of them:
// the other one may get no new keys any more. It reports whether it replaced anything.
func (v *Varied) sweepLocked(sh *shard, t *table, ls *logShard, fits bool, req *kernel.Request) bool {
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

// placeLocked applies a request to a state that by left, and puts the key into t, which has
// room, with the limit lim, once remove has taken it from where it is. It returns false, and
// changes nothing, if the state cannot be in a table, or if it says that nothing was granted since
// a hold and the request does not change that.
func (v *Varied) placeLocked(sh *shard, t *table, id identity, lim *Limit, by *kernel.Compiled, st []uint64, req *kernel.Request, a *kernel.Answer, remove func()) (ok bool) {
	at := req.Fix()
	word, ok := lim.word.Narrow(lim.loose.AdoptFrom(by, st, at.Fixed.Now), at.Fixed.Now)
	if !ok {
		return false
	}
	next := []uint64{word}
	if _, changed := lim.k.Step(next, &at, a); a.Grant != nil || !changed && by == lim.loose && by.Keeps(st) {
		return false
	}
	remove()
	p, _ := t.find(id)
	atomic.StoreUint64(t.word(p), next[0])
	sh.takeLocked(t, p, id, lim.number)
	return true
}

// logLocked puts the key of id, whose limit is was, into the logs with a state, once remove
// has taken it from the tables.
func (v *Varied) logLocked(id identity, was *Limit, wide [2]uint64, now kernel.Instant, remove func()) {
	logs := v.makeLogs()
	ls, st := logs.lockWithRoom(id, was.loose, now)
	defer ls.mu.Unlock()
	remove()
	copy(st, wide[:])
	i, _ := ls.find(id)
	ls.insert(i, id, was.loose)
	ls.set(&ls.slots[i], st)
	v.tables.store.move(&v.tables.occupancy, &logs.occupancy)
}

// lockWithRoom locks the shard of id, and returns it with the state of a new key of k, for
// which it has room. It also sweeps the shard if that is due, because keys that move are not
// counted as inserted.
func (sp *Logs) lockWithRoom(id identity, k *kernel.Compiled, now kernel.Instant) (sh *logShard, st []uint64) {
	for {
		sh = sp.lock(id)
		if !sh.makeRoomLocked(now) {
			st, lacks := sh.blank(k)
			if lacks == 0 {
				return sh, st
			}
			sh.repackLocked(lacks)
		}
		sh.mu.Unlock() // it may have been split
	}
}

// Reset forgets key.
func (v *Varied) Reset(key string) {
	id := v.tables.store.identify(key)
	sh, t := v.tables.lock(id)
	defer sh.mu.Unlock()
	if p, ok := t.find(id); ok {
		word := atomic.SwapUint64(t.word(p), kernel.Gone) // guarantee 3
		v.tables.epochs.reset(id, v.tables.kernelAt(t, p).Fresh([]uint64{word}))
		sh.forgetLocked(t, p)
	}
	logs := v.logs.Load()
	if logs == nil {
		return
	}
	ls := logs.lock(id)
	defer ls.mu.Unlock()
	if i, ok := ls.find(id); ok {
		logs.epochs.reset(id, ls.fresh(&ls.slots[i]))
		ls.removeLocked(i)
	}
}
