package memory

import (
	"cmp"
	"errors"
	"math"
	"slices"
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
// under the lock. A state of one word it owns: it replaces the state by Gone, so that a caller
// without a lock waits for the lock, and then stores the next state, or the same one again
// (guarantee 3). So from the instant at which it owns the last state to the one at which it
// gives up the first, no other caller changes any of the states, and the decision counts as
// made then. Callers of single keys do nothing for it.
//
// Locks are acquired in one order: first those of admissions, by the serials of their stores,
// then those of shards, by the serials of their spaces and, in a space, by the first entry in
// the directory. The tables of a Varied are older than its logs. So two Joints, or a Joint and
// any other caller, never wait for each other. The user's clock is not called while a lock is
// held (kernel.Timeline.Outside).
//
// Whatever may replace a table is done before a state is owned; then the attempt starts over,
// with all locks released. So it does if a new key finds its store full. Then one key is
// admitted after the other while no shard is locked, as for callers of single keys.

// serials numbers stores and spaces, from 1, in the order in which locks are acquired.
var serials atomic.Uint64

// An Asked is a key that a Joint decides on.
type Asked struct {
	// One of these is set.
	Tables *Tables
	Logs   *Logs
	Varied *Varied

	Kernel *kernel.Compiled // for Logs
	Limit  *Limit           // for Varied
	Clock  *kernel.Timeline
	Key    string

	// Answer says what this key does; what all do is up to the caller. If the request is denied,
	// Allowed is whether this key would have granted it.
	Answer kernel.Answer

	// If several keys share a state, because they are equal, or because their store is full,
	// First is the index of the first of them. Times is how many there are, and 0 except in
	// the first one. The request is applied as often to the state, and the Answer of the first
	// one is for all.
	First, Times int

	id      identity
	n       int  // the events, together with those of equal keys
	refused bool // whether its store has no room for it
	shared  bool // whether it uses the shared state of a full store

	// For one attempt:
	now     kernel.Instant // the reading of the clock
	lag     uint64
	sh      *shard // its shards, locked; nil if the space has none
	t       *table
	ls      *logShard
	logged  bool // whether the state is, or is to be, in the logs
	found   bool
	at      place // if found: where it is, in the tables
	slot    int   // or in the logs
	number  uint64
	k       *kernel.Compiled // what decides
	word    kernel.Word      // k, if the state is a word in the tables; else nil
	old     uint64           // the word that is owned
	next    [1]uint64        // the word after the decision
	decided bool             // whether next and Answer are those of a grant
	fresh   []uint64         // the state of a new key that is not a word
	entered bool             // whether it is inserted now
}

// A Joint decides on several keys. Its memory is used again: see NewJoint.
type Joint struct {
	Asked []Asked

	n       int
	req     kernel.Request // for one of the keys at a time: see as
	reading kernel.Reading // its fixed time
	locks   []jointLock
	granted bool
	notes   bool // whether the logs note a denial: not if more events are asked for than a key ever grants
}

// A jointLock is the lock of a shard, and its place in the order.
type jointLock struct {
	space uint64
	first uint32
	mu    *sync.Mutex
}

// joints keeps the memory of Joints.
var joints = sync.Pool{New: func() any { return new(Joint) }}

// NewJoint returns a Joint without keys. The caller adds them, calls Decide once, and then
// Close.
func NewJoint() *Joint { return joints.Get().(*Joint) }

// Add adds a key, whose exported fields the caller sets.
func (j *Joint) Add() *Asked {
	if len(j.Asked) < cap(j.Asked) {
		j.Asked = j.Asked[:len(j.Asked)+1] // Close has cleared it
	} else {
		j.Asked = append(j.Asked, Asked{})
	}
	return &j.Asked[len(j.Asked)-1]
}

// Drop removes the key that was added last.
func (j *Joint) Drop() {
	last := len(j.Asked) - 1
	j.Asked[last] = Asked{}
	j.Asked = j.Asked[:last]
}

// Close ends the use of j.
func (j *Joint) Close() {
	if cap(j.Asked) <= mostKept {
		clear(j.Asked)
		clear(j.locks)
		j.Asked, j.locks = j.Asked[:0], j.locks[:0]
		joints.Put(j)
	}
}

// mostKept is the most keys of a Joint whose memory is kept.
const mostKept = 64

// ErrTooMany says that a store may not hold as many keys as a Joint has.
var ErrTooMany = errors.New("more keys of a store than it may hold")

// Decide spends n events of each key, if all grant them, with op, which is OpTake or OpHold. It
// sets the answers.
func (j *Joint) Decide(op kernel.Op, n int) (granted bool, err error) {
	j.n, j.req = n, kernel.Request{Op: op, Fixed: &j.reading}
	j.reading.Own = true
	for i := range j.Asked {
		e := &j.Asked[i]
		e.id = e.store().identify(e.Key)
		if e.Varied != nil && !e.Limit.places(&j.req) {
			e.Varied.makeLogs()
		}
		if same := j.sameClock(i); same != nil {
			e.now, e.lag = same.now, same.lag
		} else {
			e.now, e.lag = e.Clock.Outside()
		}
	}
	j.group()
	if j.tooMany() {
		return false, ErrTooMany
	}
	if lacks := j.try(); lacks != nil {
		j.admit(lacks)
	}
	return j.granted, nil
}

// as returns the request to e.
func (j *Joint) as(e *Asked) *kernel.Request {
	j.req.N, j.req.Clock = e.n, e.Clock
	j.reading.Now, j.reading.Lag = e.now, e.lag
	return &j.req
}

// sameClock returns an earlier key with the clock of the i-th, or nil.
func (j *Joint) sameClock(i int) *Asked {
	for f := range j.Asked[:i] {
		if e := &j.Asked[f]; e.Clock == j.Asked[i].Clock {
			return e
		}
	}
	return nil
}

// tables returns the tables in which the key may be, or nil.
func (e *Asked) tables() *Tables {
	if e.Varied != nil {
		return e.Varied.tables
	}
	return e.Tables
}

// logs returns the logs in which the key may be, or nil.
func (e *Asked) logs() *Logs {
	if e.Varied != nil {
		return e.Varied.logs.Load()
	}
	return e.Logs
}

func (e *Asked) store() *Store {
	if e.Logs != nil {
		return e.Logs.store
	}
	return e.tables().store
}

func (e *Asked) overflow() *overflow {
	if e.Logs != nil {
		return &e.Logs.over
	}
	return &e.tables().over
}

// kernel returns what decides on a new key.
func (e *Asked) kernel() *kernel.Compiled {
	switch {
	case e.Varied != nil:
		return e.Limit.loose
	case e.Tables != nil:
		return e.Tables.k
	}
	return e.Kernel
}

// leads reports whether the i-th key is the first of those that share its state, so that it is
// decided on.
func (j *Joint) leads(i int) bool { return j.Asked[i].First == i && !j.Asked[i].refused }

// group finds the keys that share a state.
func (j *Joint) group() {
	for i := range j.Asked {
		e := &j.Asked[i]
		e.First, e.Times, e.n = i, 1, j.n
		for f := range j.Asked[:i] {
			first := &j.Asked[f]
			if first.First != f || first.id != e.id || first.Tables != e.Tables || first.Logs != e.Logs || first.Varied != e.Varied {
				continue
			}
			e.First, e.Times = f, 0
			first.Times++
			first.n = math.MaxInt
			if j.n <= math.MaxInt/first.Times {
				first.n = j.n * first.Times
			}
			first.Limit = e.Limit // it was looked up later
			break
		}
	}
}

// tooMany reports whether a store may not hold as many keys.
func (j *Joint) tooMany() bool {
	for i := range j.Asked {
		s := j.Asked[i].store()
		if s.MaxKeys == 0 || s.MaxKeys >= int64(len(j.Asked)) {
			continue
		}
		keys := int64(0)
		for f := range j.Asked {
			if j.leads(f) && j.Asked[f].store() == s {
				keys++
			}
		}
		if keys > s.MaxKeys {
			return true
		}
	}
	return false
}

// try retries an attempt until it succeeds, or returns a key whose store is full.
func (j *Joint) try() (lacks *Asked) {
	for {
		switch out, e := j.attempt(); {
		case out == updated:
			return nil
		case out == noRoom:
			return e
		case e != nil:
			now, _ := e.time()
			e.Varied.log(e.id, now)
		}
	}
}

// time returns the present instant, without a call of the user's clock.
func (e *Asked) time() (now kernel.Instant, lag uint64) { return e.Clock.Inside(e.now, e.lag) }

// attempt makes the decision if it can be made at once. If the outcome is replaced and it
// returns a key, that has to be moved to the logs of its space.
func (j *Joint) attempt() (out outcome, e *Asked) {
	j.lock()
	defer j.unlock()
	for i := range j.Asked {
		if e := &j.Asked[i]; j.leads(i) {
			switch again, moves := j.find(i, e); {
			case moves:
				return replaced, e
			case again:
				return replaced, nil
			}
		}
	}
	j.own()
	j.granted = j.decide()
	j.notes = !j.granted && j.possible()
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
	return updated, nil
}

// lock locks the shards of all keys.
func (j *Joint) lock() {
	for {
		j.locks = j.locks[:0]
		for i := range j.Asked {
			if e := &j.Asked[i]; j.leads(i) {
				e.sh, e.t, e.ls = nil, nil, nil
				if sp := e.tables(); sp != nil {
					e.sh = sp.at(e.id).shard
					j.addLock(jointLock{sp.serial, e.sh.first, &e.sh.mu})
				}
				if sp := e.logs(); sp != nil {
					e.ls = sp.at(e.id)
					j.addLock(jointLock{sp.serial, e.ls.first, &e.ls.mu})
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

// addLock inserts a lock in the order, unless it is there already.
func (j *Joint) addLock(l jointLock) {
	j.locks = append(j.locks, l)
	for i := len(j.locks) - 1; i > 0; i-- {
		switch before := j.locks[i-1]; {
		case before.mu == l.mu:
			j.locks = slices.Delete(j.locks, i, i+1)
			return
		case before.space < l.space || before.space == l.space && before.first < l.first:
			return
		}
		j.locks[i-1], j.locks[i] = j.locks[i], j.locks[i-1]
	}
}

// locked reports whether the locked shards are those of the keys. It looks up their tables.
func (j *Joint) locked() bool {
	for i := range j.Asked {
		e := &j.Asked[i]
		if !j.leads(i) {
			continue
		}
		if e.sh != nil {
			if e.t = e.tables().at(e.id); e.t.shard != e.sh { // guarantee 1
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

// find looks for the state of the i-th key, e, and makes room for it if it is new. again is
// whether another attempt is necessary, and moves whether the key must be moved to the logs
// before that.
func (j *Joint) find(i int, e *Asked) (again, moves bool) {
	e.logged, e.found, e.word, e.k, e.number = false, false, nil, nil, 0
	e.old, e.decided, e.fresh, e.entered = 0, false, nil, false
	if e.sh != nil {
		if e.at, e.found = e.t.find(e.id); e.found || e.Varied == nil {
			if e.Varied != nil && (!e.Limit.places(&j.req) || e.Varied.limitAt(e.t, e.at) != e.Limit) {
				return true, true
			}
			return e.inTables(j.newKeys(i)), false
		}
	}
	if e.ls != nil {
		if e.slot, e.found = e.ls.find(e.id); e.found {
			e.logged, e.k = true, e.kernel()
			if lacks := e.ls.makeRoom(&e.ls.slots[e.slot], j.as(e).Entries()); lacks > 0 {
				e.ls.repackLocked(lacks)
				return true, false
			}
			return false, false
		}
	}
	if e.logged = e.Varied == nil || !e.Limit.places(&j.req); e.logged {
		e.k = e.kernel()
		return e.inLogs(j.newKeys(i)), false
	}
	return e.inTables(j.newKeys(i)), false
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
	sp := e.tables()
	e.k, e.word = sp.k, sp.word
	if e.Varied != nil {
		e.k, e.word, e.number = e.Limit.k, e.Limit.word, e.Limit.number
	}
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
func (e *Asked) mayEnter() bool { return e.n > 0 && e.n <= e.k.Limit() }

// sweep sweeps the shards of a new key, if that is due, and reports whether it did.
func (e *Asked) sweep() (again bool) {
	now, _ := e.time()
	return e.sh != nil && e.sh.keys > 0 && e.sh.makeRoomLocked(e.t, now) ||
		e.ls != nil && e.ls.keys > 0 && e.ls.makeRoomLocked(now)
}

// own makes sure that nobody else changes the states, and then reads the clocks (guarantee 5).
func (j *Joint) own() {
	for i := range j.Asked {
		if e := &j.Asked[i]; j.leads(i) && e.found && e.word != nil {
			e.old = atomic.SwapUint64(e.t.word(e.at), kernel.Gone) // guarantee 3
		}
	}
	j.read()
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
	if e.found && e.word != nil {
		atomic.StoreUint64(e.t.word(e.at), e.old)
	}
}

// decide reports whether all keys grant the request. It changes no state.
func (j *Joint) decide() (granted bool) {
	if granted = j.all(); !granted && j.renew() {
		j.read()
		granted = j.all()
	}
	return granted
}

// renew calls Timeline.Renew for all clocks.
func (j *Joint) renew() (renewed bool) {
	for i := range j.Asked {
		if j.sameClock(i) == nil && j.Asked[i].Clock.Renew() {
			renewed = true
		}
	}
	return renewed
}

// possible reports whether all keys may grant the request at some time.
func (j *Joint) possible() bool {
	for i := range j.Asked {
		if e := &j.Asked[i]; e.n > e.kernel().Limit() {
			return false
		}
	}
	return j.n > 0
}

func (j *Joint) all() bool {
	for i := range j.Asked {
		if e := &j.Asked[i]; e.refused || j.leads(i) && !e.grants(j.as(e)) {
			return false
		}
	}
	return true
}

// grants reports whether the key grants the request.
func (e *Asked) grants(req *kernel.Request) bool {
	if e.next[0] = e.old; e.word != nil && req.Op == kernel.OpTake && e.mayEnter() {
		e.decided = e.k.TakeWord(e.word, &e.next, req.Fixed, e.n, &e.Answer)
		return e.decided
	}
	return e.k.Grants(e.state(), req)
}

// state returns the state to decide on, for reading.
func (e *Asked) state() []uint64 {
	switch {
	case e.word != nil:
		return e.next[:]
	case !e.found:
		return e.fresh
	case !e.logged:
		return e.t.state(e.at)
	}
	entry := &e.ls.slots[e.slot]
	return e.k.AdoptFrom(e.ls.kernel(entry), e.ls.state(entry), e.now)
}

// takePlaces takes places for new keys whose states change. If a store is full, it takes none,
// and returns a key for which there is none.
func (j *Joint) takePlaces() (lacks *Asked) {
	for i := range j.Asked {
		e := &j.Asked[i]
		if !j.leads(i) || e.found || !e.mayEnter() || !j.granted && !(j.notes && e.k.Notes()) {
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

func (e *Asked) occupancy() *occupancy {
	if e.logged {
		return &e.ls.space.occupancy
	}
	return &e.tables().occupancy
}

// spend applies the request to the state, which grants it.
func (e *Asked) spend(req *kernel.Request) {
	switch {
	case e.word != nil:
		if !e.decided {
			e.next[0] = e.old
			e.k.Step(e.next[:], req, &e.Answer)
		}
		if e.found {
			atomic.StoreUint64(e.t.word(e.at), e.next[0])
		}
	case !e.found:
		e.fresh, _ = e.k.Step(e.fresh, req, &e.Answer)
	case !e.logged:
		e.k.Step(e.t.state(e.at), req, &e.Answer)
	default:
		entry := &e.ls.slots[e.slot]
		by, st, _ := e.k.StepFrom(e.ls.kernel(entry), e.ls.state(entry), req, &e.Answer)
		e.ls.setKernel(entry, by)
		e.ls.set(entry, st)
	}
	e.enter()
	if e.Answer.Grant == nil {
		return
	}
	if e.logged {
		e.Answer.Stamp(e.ls.epochOf(e.id))
	} else {
		e.Answer.Stamp(e.sh.epoch.now())
	}
	if e.shared {
		e.Answer.Grant = sharedGrant{e.Answer.Grant}
	}
}

// refuse answers the request, and gives the state up. Only logs note denials.
func (e *Asked) refuse(req *kernel.Request, notes bool) {
	switch {
	case e.word != nil:
		e.next[0] = e.old
		e.k.Refuse(e.next[:], req, false, &e.Answer)
		e.disown()
	case !e.found:
		e.fresh, _ = e.k.Refuse(e.fresh, req, notes, &e.Answer)
	case !e.logged:
		e.k.Refuse(e.t.state(e.at), req, false, &e.Answer)
	default:
		entry := &e.ls.slots[e.slot]
		st, _ := e.k.Refuse(e.state(), req, notes, &e.Answer)
		e.ls.setKernel(entry, e.k)
		e.ls.set(entry, st)
	}
	e.enter()
}

// enter inserts the key if it has a place.
func (e *Asked) enter() {
	switch {
	case !e.entered:
		return
	case e.logged:
		i, _ := e.ls.find(e.id)
		st, lacks := e.ls.blank(e.k)
		if lacks > 0 || len(e.fresh) > cap(st) {
			st = e.fresh
		} else {
			st = st[:len(e.fresh)]
			copy(st, e.fresh)
		}
		e.ls.insert(i, e.id, e.k)
		e.ls.set(&e.ls.slots[i], st)
		e.ls.inserts++
	default:
		p, _ := e.t.find(e.id)
		if e.word != nil {
			atomic.StoreUint64(e.t.word(p), e.next[0])
		} else {
			copy(e.t.state(p), e.fresh)
		}
		e.sh.takeLocked(e.t, p, e.id, e.number)
		e.sh.inserts++
	}
	e.store().keepTime(e.Clock)
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
		s := lacks.store()
		now, _ := lacks.time()
		if now >= s.admission.found+rememberedNs {
			s.admission.forget()
		}
		if idle, full := s.makeRoom(now); full {
			j.overflow(lacks, idle)
		}
	}
	for i := range j.Asked {
		e := &j.Asked[i]
		if a := &e.store().admission; j.leads(i) && e.entered && a.scarce && len(a.admitted) < a.eviction.keep {
			key := candidate{id: e.id, sh: e.sh}
			if e.logged {
				key.sh = e.ls
			}
			a.admitted = append(a.admitted, key)
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

// overflow applies the policy of a full store to a new key, and those equal to it. Another key
// may be idle at idle.
func (j *Joint) overflow(e *Asked, idle kernel.Instant) {
	over, k, first := e.overflow(), e.kernel(), e.First
	e.store().rejected.Add(1)
	for i := range j.Asked {
		if e := &j.Asked[i]; e.First == first {
			e.overflows(over, k, idle)
		}
	}
	j.group()
}

func (e *Asked) overflows(over *overflow, k *kernel.Compiled, idle kernel.Instant) {
	if !over.shares() {
		now, lag := e.time()
		e.refused, e.Answer = true, noRoomUntil(idle, k, now, lag)
		return
	}
	e.shared, e.Kernel = true, k
	e.Tables, e.Logs, e.Varied, e.Key = over.tables, over.logs, nil, ""
	if over.logs != nil {
		e.Key = k.Kind()
	}
	e.id = e.store().identify(e.Key)
}

// log moves a key from the tables to the logs.
func (v *Varied) log(id identity, now kernel.Instant) {
	sh, t := v.tables.lock(id)
	defer sh.mu.Unlock()
	p, ok := t.find(id)
	if !ok {
		return
	}
	was := v.limitAt(t, p)
	word := atomic.SwapUint64(t.word(p), kernel.Gone) // guarantee 3
	v.logLocked(id, was, was.word.Widen(word), now, func() { sh.dropLocked(t, p) })
}
