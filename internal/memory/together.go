package memory

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// # Several keys, one decision
//
// A Joint decides on several keys at once: of any spaces, and of any stores. It grants a
// request only if all keys grant it, and then spends it in all.
//
// It holds the locks of the shards of all keys. That suffices for states that are changed only
// under the lock. To change states of one word, it owns them: it replaces each by Gone, so that
// a caller without a lock waits for the lock, and then stores the next state or, if another
// state turns out to have changed, the same one again (guarantee 3). So no caller finds some of
// the states changed and others not. Callers of single keys do nothing for it.
//
// As for a single key, the clock is read after the states. If all keys grant, the states are
// owned if they are still the same, and if not, they are only compared with those of before:
// a denial disturbs nobody (guarantee 5). If one has changed, all states are owned before the
// clock is read again, so that there is no third time.
//
// Locks are acquired in one order: first those of admissions, by the serials of their stores,
// then those of shards, by the serials of their spaces and, in a space, by the first entry in
// the directory. Tables are older than their logs. So two Joints, or a Joint and
// any other caller, never wait for each other. The user's clock is not called while a lock is
// held (kernel.Timeline.Outside).
//
// A few known keys whose states are words are decided on by TakeWords (fewwords.go), which falls
// back on a Joint.
//
// Whatever may replace a table is done before a state is owned; then the attempt starts over,
// with all locks released. So it does if a new key finds its store full. Then one key is
// admitted after the other while no shard is locked, as for callers of single keys.

// serials numbers stores and spaces, from 1, in the order in which locks are acquired.
var serials atomic.Uint64

// A jointLock is the lock of a shard, and its place in the order.
type jointLock struct {
	space uint64
	first uint32
	mu    *sync.Mutex
}

// try retries an attempt until it succeeds, or returns a key whose store is full.
func (j *Joint) try() (lacks *Asked) {
	for {
		if out, lacks := j.attempt(); out != replaced {
			return lacks
		}
		if j.moved {
			j.readOutside()
		}
	}
}

// attempt makes the decision if it can be made at once. If a store is full, it returns a key for
// which there is no room.
func (j *Joint) attempt() (out outcome, lacks *Asked) {
	j.lock()
	defer j.unlock()
	for i := range j.Asked {
		if e := &j.Asked[i]; j.leads(i) && e.Tables != nil && j.move(e) {
			return replaced, nil
		}
	}
	for i := range j.Asked {
		if e := &j.Asked[i]; j.leads(i) && j.find(i, e) {
			return replaced, nil
		}
	}
	if j.load(); !j.decideFirst() {
		j.own()
		j.granted = j.decide()
	}
	j.notes = !j.granted && j.noted()
	if lacks := j.takePlaces(); lacks != nil {
		j.disown()
		return noRoom, lacks
	}
	for i := range j.Asked {
		e := &j.Asked[i]
		switch {
		case !j.leads(i):
		case j.granted:
			e.spend(j.as(e))
		default:
			e.refuse(j.as(e), j.notes)
		}
	}
	if j.granted && j.req.Opens() {
		j.align()
	}
	return updated, nil
}

// align lets the holds of all keys last from when the events of all may happen, like one of an All: those of
// a key that has queued them may happen later than the others grant them.
func (j *Joint) align() {
	for i := range j.Asked {
		j.Delay = max(j.Delay, j.Asked[i].Answer.Delay)
	}
	for i := range j.Asked {
		e := &j.Asked[i]
		if !e.Answer.Held || e.Answer.Delay == j.Delay {
			continue
		}
		req := *j.as(e)
		req.Op, req.Hold.For = kernel.OpExtend, e.Hold.After(j.Delay)
		slot, _ := e.ls.find(e.id) // another key may have moved it
		var a kernel.Answer
		e.ls.step(&e.ls.slots[slot], e.k, &req, &a)
		e.Answer.ResetAfter, e.Answer.Ends = a.ResetAfter, a.Ends
		e.Answer.Due = kernel.After(e.now, uint64(j.Delay)-min(uint64(j.Delay), e.lag))
	}
}

// lock locks the shards of all keys.
func (j *Joint) lock() {
	for {
		j.locks = j.locks[:0]
		for i := range j.Asked {
			if e := &j.Asked[i]; j.leads(i) {
				e.sh, e.t, e.ls = nil, nil, nil
				if sp := e.Tables; sp != nil {
					e.sh = sp.at(e.id).shard
					j.locks = withLock(j.locks, e.sh.lockOf())
				}
				if sp := e.logs(); sp != nil {
					e.ls = sp.at(e.id)
					j.locks = withLock(j.locks, jointLock{sp.serial, e.ls.first, &e.ls.mu})
				}
			}
		}
		for _, l := range j.locks {
			l.mu.Lock()
		}
		if j.locked() {
			return
		}
		j.unlock() // a shard was split meanwhile
	}
}

// lockOf returns the lock of a shard.
func (sh *shard) lockOf() jointLock { return jointLock{sh.space.serial, sh.first, &sh.mu} }

// withLock returns locks with l in its place in the order, unless it is there already.
func withLock(locks []jointLock, l jointLock) []jointLock {
	at := len(locks)
	for ; at > 0; at-- {
		before := &locks[at-1]
		if before.mu == l.mu {
			return locks
		}
		if before.space < l.space || before.space == l.space && before.first < l.first {
			break
		}
	}
	locks = append(locks, l)
	copy(locks[at+1:], locks[at:])
	locks[at] = l
	return locks
}

// locked reports whether the locked shards are those of the keys. It looks up their tables.
func (j *Joint) locked() bool {
	for i := range j.Asked {
		e := &j.Asked[i]
		if !j.leads(i) {
			continue
		}
		if e.sh != nil {
			if e.t = e.Tables.at(e.id); e.t.shard != e.sh { // guarantee 1
				return false
			}
		}
		if sp := e.logs(); sp != nil && sp.at(e.id) != e.ls { // or the logs have just been made
			return false
		}
	}
	return true
}

func (j *Joint) unlock() {
	for _, l := range j.locks {
		l.mu.Unlock()
	}
}

// move moves a key from the tables to the logs if it cannot be decided on in the tables. It returns true if another attempt is necessary.
func (j *Joint) move(e *Asked) (again bool) {
	p, ok := e.t.find(e.id)
	if !ok {
		return false
	}
	sp, was := e.Tables, e.Tables.limitAt(e.t, p)
	if was == e.Limit && was.places(&j.req) {
		return false
	}
	if e.ls == nil {
		sp.makeLogs()
		return true
	}
	if now, _ := e.time(); e.ls.makeRoomLocked(now) {
		return true
	}
	st, lacks := e.ls.blank(was.loose, j.req.Opens())
	if lacks > 0 {
		e.ls.repackLocked(lacks)
		return true
	}
	if sp.single {
		wide := was.word.Widen(atomic.SwapUint64(e.t.word(p), kernel.Gone)) // guarantee 3
		copy(st, wide[:])
	} else {
		copy(st, e.t.state(p))
	}
	e.sh.dropLocked(e.t, p)
	i, _ := e.ls.find(e.id)
	e.ls.insert(i, e.id, was.loose)
	e.ls.set(&e.ls.slots[i], st)
	sp.store.move(&sp.occupancy, &e.ls.space.occupancy)
	// Its new limit may give it more. A caller without a lock may just have denied it by the old
	// one, at a time that no clock has been read at before.
	j.moved = e.Clock.Foreign()
	return j.moved
}

// find looks for the state of the i-th key, e, and makes room for it if it is new. It returns true
// if another attempt is necessary.
func (j *Joint) find(i int, e *Asked) (again bool) {
	e.logged, e.found, e.word, e.k = false, false, nil, nil
	e.old, e.owned, e.decided, e.fresh, e.entered = 0, false, false, nil, false
	if e.sh != nil {
		if e.at, e.found = e.t.find(e.id); e.found {
			return e.inTables(j.newKeys(i))
		}
	}
	if e.ls != nil {
		if e.slot, e.found = e.ls.find(e.id); e.found {
			e.logged, e.k = true, e.kernel()
			if lacks := e.ls.makeRoom(&e.ls.slots[e.slot], e.Sum, j.req.Opens()); lacks > 0 {
				e.ls.repackLocked(lacks)
				return true
			}
			return false
		}
	}
	if e.logged = e.Tables == nil || !e.Limit.places(&j.req); e.logged {
		e.k = e.kernel()
		return e.inLogs(j.newKeys(i))
	}
	return e.inTables(j.newKeys(i))
}

// newKeys returns how many of the keys up to the i-th are new in the shard of the i-th.
func (j *Joint) newKeys(i int) (keys uint64) {
	e := &j.Asked[i]
	for f := range j.Asked[:i+1] {
		if g := &j.Asked[f]; j.leads(f) && !g.found && g.logged == e.logged && (e.logged && g.ls == e.ls || !e.logged && g.sh == e.sh) {
			keys++
		}
	}
	return keys
}

// inTables prepares a decision on a state in the tables, where keys are new.
func (e *Asked) inTables(keys uint64) (again bool) {
	e.k, e.word = e.Limit.k, e.Limit.word
	if e.found {
		return false
	}
	if e.word == nil {
		e.fresh = e.k.NewState()
	}
	if !e.mayEnter() {
		return false
	}
	if e.sh.used+keys > e.t.most {
		e.sh.replaceLocked(e.t, keys)
		return true
	}
	return e.sh.looks() && e.sweep()
}

// inLogs prepares a decision on a new state in the logs, where keys are new.
func (e *Asked) inLogs(keys uint64) (again bool) {
	e.fresh = e.k.NewState()
	if !e.mayEnter() {
		return false
	}
	if e.ls.keys+keys > mostOf(len(e.ls.slots)) {
		e.ls.replaceLocked(keys)
		return true
	}
	return e.ls.looks() && e.sweep()
}

// mayEnter reports whether the request may change the state of a new key.
func (e *Asked) mayEnter() bool { return e.Sum > 0 && e.Sum <= e.k.Limit() }

// sweep sweeps the shards of a new key, if that is due, and reports whether it did.
func (e *Asked) sweep() (again bool) {
	now, _ := e.time()
	return e.sh != nil && e.sh.keys > 0 && e.sh.makeRoomLocked(e.t, now) ||
		e.ls != nil && e.ls.keys > 0 && e.ls.makeRoomLocked(now)
}

// load loads the states of one word.
func (j *Joint) load() {
	for i := range j.Asked {
		if e := &j.Asked[i]; j.leads(i) && e.found && e.word != nil {
			e.old = atomic.LoadUint64(e.t.word(e.at)) // not Gone, because of the lock
		}
	}
}

// decideFirst makes the decision on the states that load has loaded. It returns false if one of
// them has changed since, or if it grants the request and a clock is a user's: nobody may find
// a state unchanged after that clock has shown more.
func (j *Joint) decideFirst() (ok bool) {
	if j.granted = j.decide(); j.granted && j.foreign() {
		return false
	}
	for i := range j.Asked {
		e := &j.Asked[i]
		if !j.leads(i) || !e.found || e.word == nil {
			continue
		}
		state := e.t.word(e.at)
		if j.granted {
			e.owned = atomic.CompareAndSwapUint64(state, e.old, kernel.Gone) // guarantees 3 and 5
			ok = e.owned
		} else {
			ok = atomic.LoadUint64(state) == e.old // guarantee 5
		}
		if !ok {
			j.disown()
			return false
		}
	}
	return true
}

// foreign reports whether a clock is a user's.
func (j *Joint) foreign() bool {
	for i := range j.Asked {
		if j.Asked[i].Clock.Foreign() {
			return true
		}
	}
	return false
}

// own makes sure that nobody else changes the states until they are given up.
func (j *Joint) own() {
	for i := range j.Asked {
		if e := &j.Asked[i]; j.leads(i) && e.found && e.word != nil {
			e.old, e.owned = atomic.SwapUint64(e.t.word(e.at), kernel.Gone), true // guarantee 3
		}
	}
}

// read reads the clocks.
func (j *Joint) read() {
	for i := range j.Asked {
		e := &j.Asked[i]
		if same := j.sameClock(i); same != nil {
			e.now, e.lag = same.now, same.lag
		} else {
			e.now, e.lag = e.time()
		}
	}
}

// disown gives the states up unchanged.
func (j *Joint) disown() {
	for i := range j.Asked {
		if e := &j.Asked[i]; j.leads(i) {
			e.disown()
		}
	}
}

func (e *Asked) disown() {
	if e.owned {
		atomic.StoreUint64(e.t.word(e.at), e.old)
		e.owned = false
	}
}
