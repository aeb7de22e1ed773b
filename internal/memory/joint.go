package memory

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// # Several keys, one decision
//
// A joint decides on several different keys at once: of any spaces, and of any stores. It grants a
// request only if all keys grant it, and then spends it in all.
//
// It locks the shards of all keys, owns the states of one word, reads the clock, asks all keys, and
// stores all states. Other states are changed only under a lock. To own a word is to replace it by
// gone, so that a caller without a lock waits for the lock (guarantee 3). So no caller finds some
// of the states changed and others not, and nobody decides on one of them after the clock was
// read. Callers of single keys do nothing for it.
//
// What cannot be done while words are owned is done before or afterwards (jointroom.go): a table is
// replaced, and then the attempt starts over; a full store evicts keys. No place is taken
// beforehand, because joints might wait for each other's: new keys enter, and the store may exceed
// its bound until they have got their places.
//
// The locks of shards are acquired in one order: by the serials of their spaces and, in a space, by
// the first entry in the directory. So two joints, or a joint and any other caller, never wait for
// each other. If the user's clock panics, the words that are owned are put back.
//
// TakeWords does the same with less, for a few known keys whose states are words.

// serials numbers spaces, from 1, in the order in which locks are acquired.
var serials atomic.Uint64

// An asked is a key that a joint decides on. Its Answer says what this key does; what all do is up
// to the caller. If the request is denied, Allowed is whether this key would have granted it.
type asked struct {
	*limit.Call
	space *Space
	lim   *Limit
	id    identity

	// For one attempt:
	clock  step.Reading
	t      *table // whose shard is locked
	at     place
	found  bool
	enters bool          // whether it is new, and its state changes
	k      *step.Machine // what decides
	word   *uint64       // the state, if it is, or is to be, a word
	owned  [1]uint64     // what that was, and then what replaces it
	by     *step.Machine // what left the state
	st     []uint64      // the state; owned, if that is a word
}

// A joint decides on several keys: see ApplyAll. Its memory is used again.
type joint struct {
	asked []asked

	req      step.Request // for one of the keys at a time: see as
	locks    []*shard
	entering []entries
	decided  bool
	made     bool // whether full stores have made room for the new keys, as far as they could
	granted  bool
	// Of the events of a HoldAll that is granted: the longest of those of its keys.
	delay time.Duration
	// Whether the logs note a denial: not if more events are asked for than a key ever grants.
	notes bool
}

var joints = sync.Pool{New: func() any { return new(joint) }}

func (j *joint) add(sp *Space, lim *Limit, c *limit.Call) {
	j.asked = append(j.asked, asked{Call: c, space: sp, lim: lim, id: sp.store.identify(c.Key)})
}

func (j *joint) close() {
	if cap(j.asked) <= mostKept {
		clear(j.asked)
		clear(j.locks[:cap(j.locks)])
		clear(j.entering[:cap(j.entering)])
		*j = joint{asked: j.asked[:0], locks: j.locks[:0], entering: j.entering[:0]}
		joints.Put(j)
	}
}

// mostKept is the most keys of a joint whose memory is kept.
const mostKept = 64

// decide spends the events of each key, if all grant them, and sets the answers. It returns false,
// and has done nothing, if a store that refuses new keys has no room for those that come.
func (j *joint) decide() (decided bool) {
	for !j.decided {
		full := j.attempt()
		if full != nil && full.RefuseNew {
			return false
		}
		if full != nil {
			j.makeRoom()
		}
	}
	j.pay()
	return true
}

// attempt decides, unless the caller is to try again: a table was replaced, or a store is full.
func (j *joint) attempt() (full *Store) {
	j.lock()
	defer func() { unlockAll(j.locks) }()
	for i := range j.asked {
		if !j.find(&j.asked[i]) {
			return nil
		}
	}
	defer j.disown()
	for i := range j.asked {
		j.asked[i].own()
	}
	j.read()
	j.ask()
	full = j.full()
	if full != nil {
		return full
	}
	for i := range j.asked {
		j.apply(&j.asked[i])
	}
	j.decided = true
	return nil
}

func (j *joint) as(e *asked) *step.Request {
	j.req = e.Request
	j.req.Fixed = &e.clock
	return &j.req
}

// own reads the state of a key, and owns it.
func (e *asked) own() {
	switch {
	case e.word != nil:
		e.owned[0], e.by, e.st = 0, e.k, e.owned[:]
		if e.found {
			e.owned[0] = atomic.SwapUint64(e.word, gone) // guarantee 3
		}
	case e.found:
		e.by, e.st = e.t.shard.read(e.t, e.at, nil)
	default:
		e.by, e.st = e.k, e.k.NewState()
	}
}

// disown puts back the words that were not replaced: nothing was decided, or the user's clock has
// panicked.
func (j *joint) disown() {
	for i := range j.asked {
		if e := &j.asked[i]; e.found && e.word != nil {
			atomic.CompareAndSwapUint64(e.word, gone, e.owned[0])
		}
	}
}

// read reads the clock of the first key once for all keys that have it, and that of any other key.
// A denial cannot be decided on twice, so a coarse clock is renewed.
func (j *joint) read() {
	first := &j.asked[0]
	for i := range j.asked {
		if e := &j.asked[i]; i > 0 && e.Request.Clock == first.Request.Clock {
			e.clock = first.clock
		} else {
			e.Request.Clock.Renew()
			e.clock.Now, e.clock.Lag = e.Request.Clock.Now()
			e.clock.Own = true
		}
	}
}

func lockAll(shards []*shard) []*shard {
	slices.SortFunc(shards, func(a, b *shard) int {
		return cmp.Or(cmp.Compare(a.space.serial, b.space.serial), cmp.Compare(a.first, b.first))
	})
	shards = slices.Compact(shards)
	for _, sh := range shards {
		sh.mu.Lock()
	}
	return shards
}

func unlockAll(shards []*shard) {
	for _, sh := range shards {
		sh.mu.Unlock()
	}
}

func (j *joint) lock() {
	for ok := false; !ok; {
		j.locks = j.locks[:0]
		for i := range j.asked {
			e := &j.asked[i]
			e.t = e.space.at(e.id)
			j.locks = append(j.locks, e.t.shard)
		}
		j.locks, ok = lockAll(j.locks), true
		for i := range j.asked {
			e, was := &j.asked[i], j.asked[i].t.shard
			e.t = e.space.at(e.id) // guarantee 1
			ok = ok && e.t.shard == was
		}
		if !ok {
			unlockAll(j.locks) // a shard was split meanwhile
		}
	}
}

// ask asks all keys. Like the parts of an All, none notes a denial if one of them never grants as
// many events.
func (j *joint) ask() {
	granted, notes, ever := true, false, true
	j.delay = 0
	for i := range j.asked {
		e := &j.asked[i]
		k, st, _ := e.k.Reconcile(e.by, e.st, e.clock.Now)
		granted, notes = granted && k.Grants(st, j.as(e)), notes || e.k.Notes()
		ever = ever && e.Request.N <= e.lim.loose.Limit()
		if granted && e.Request.Op == step.OpHold {
			j.delay = max(j.delay, k.DelayIfGranted(st, j.as(e)))
		}
	}
	j.granted, j.notes = granted, notes && ever && !granted
}

func (j *joint) apply(e *asked) {
	req := j.as(e)
	e.Answered = true
	if j.granted && e.returns() {
		if next, ok := e.lim.place(e.by, e.st, req, &e.Answer); ok {
			e.t.shard.replaceWord(e.t, e.at, e.lim, next)
			return
		}
	}
	req.Refused, req.Notes, req.Delay = !j.granted, j.notes, j.delay
	by, st, _ := e.k.StepFrom(e.by, e.st, req, &e.Answer)
	e.space.store.countEnded(&e.Answer)
	if e.enters {
		e.at, _ = e.t.find(e.id)
	}
	switch {
	case !e.found && !e.enters:
		return
	case e.word != nil:
		atomic.StoreUint64(e.t.word(e.at), st[0])
	default:
		e.t.shard.put(e.t, e.at, by, st)
	}
	if e.enters {
		e.t.shard.takeLocked(e.t, e.at, e.id, e.lim.number)
		e.t.shard.inserts++
		if e.space.store.MaxKeys > 0 {
			e.space.keys.Add(1)
		}
		e.space.store.keepTime(e.Request.Clock)
	}
}

// returns reports whether the state of a known key is in the arena, or a word of another limit, and
// may have an equal that is a word of the limit.
func (e *asked) returns() bool {
	return e.found && e.word == nil && e.by == e.by.Base() && e.lim.places(&e.Request)
}

// Group implements [limit.JointStates]. It is nil: the limiters know that all keys in memory are a
// group, whatever their stores, and which of them are the same. If it is asked behind another
// store, the keys are asked alone.
func (sp *States) Group(string) any { return nil }

// ApplyAll implements [limit.JointStates], for any number of calls. It does not decide if a store
// that refuses new keys is full, because only a request of a single key makes room there, or is
// denied.
func (sp *States) ApplyAll(_ context.Context, calls []limit.Call) (decided bool, err error) {
	j := joints.Get().(*joint)
	defer j.close()
	for i := range calls {
		c := &calls[i]
		of := c.States.(*States)
		j.add(of.Space, of.LimitOf(c.Limit), c)
	}
	return j.decide(), nil
}
