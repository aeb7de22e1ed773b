package memory

import (
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// # Several keys, one decision
//
// This file decides on several keys in memory at once, under their locks. The joint.go of the root
// finds these keys, and that of internal/step decides on each of them.
//
// A joint decides on different keys, of any spaces and of any stores. It grants a request only if
// all keys grant it, and then spends the events of all keys.
//
// A joint locks the shards of all keys, owns the states of one word, reads the clock, asks all
// keys, and stores all states. Other states are changed only under a lock. To own a word is to
// replace it by gone, so that a caller without a lock waits for the lock (guarantee 3). So no
// caller finds some of the states changed and others not, and no other caller changes a state after
// the clock was read. Callers of single keys need no extra work for this.
//
// Two things cannot be done while words are owned. A table is replaced before (jointkey.go), and
// then the attempt starts over. A full store evicts keys before or afterwards (arrivals.go).
//
// The locks of shards are acquired in one order (see lockAll). So two joints, or a joint and any
// other caller, never wait for each other in a circle. If the user's clock panics, the words that
// are owned are put back.
//
// TakeWords does the same with less work, for a few known keys whose states are words.

// A joint decides on several keys: see ApplyAll. Its memory is used again.
type joint struct {
	keys     []jointKey
	locks    []*shard
	arrivals arrivalList

	req      step.Request // for one of the keys at a time: see request
	decided  bool
	roomMade bool // whether full stores have made room for the new keys, as far as they could
	granted  bool
	// delay is the longest delay of the events of a HoldAll, which all of them wait for.
	delay time.Duration
	// notes says whether the logs note a denial: not if more events are asked for than a key ever
	// grants.
	notes bool
}

var joints = sync.Pool{New: func() any { return new(joint) }}

// newJoint returns a joint without keys, which close gives back.
func newJoint() *joint { return joints.Get().(*joint) }

func (j *joint) add(sp *Space, lim *Limit, c *limit.Call) {
	j.keys = append(
		j.keys,
		jointKey{Call: c, space: sp, lim: lim, id: sp.store.identify(c.Key)},
	)
}

func (j *joint) close() {
	if cap(j.keys) <= mostKept {
		clear(j.keys)
		clear(j.locks[:cap(j.locks)])
		clear(j.arrivals[:cap(j.arrivals)])
		*j = joint{keys: j.keys[:0], locks: j.locks[:0], arrivals: j.arrivals[:0]}
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
			j.makeRoomAhead()
		}
	}
	j.payPlaces()
	return true
}

// attempt decides, unless the caller is to try again: a table was replaced, or a store is full.
func (j *joint) attempt() (full *Store) {
	j.lockShards()
	defer func() { unlockAll(j.locks) }()
	for i := range j.keys {
		if !j.keys[i].locate(uint32(len(j.keys))) {
			return nil
		}
	}
	defer j.disownStates()
	for i := range j.keys {
		j.keys[i].ownState()
	}
	j.readClocks()
	j.askKeys()
	full = j.claimPlaces()
	if full != nil {
		return full
	}
	for i := range j.keys {
		jk := &j.keys[i]
		req := j.request(jk)
		req.Refused, req.Notes, req.Delay = !j.granted, j.notes, j.delay
		jk.Answered = true
		jk.step(req, j.granted)
	}
	j.decided = true
	return nil
}

// request returns the request of a key, with its time fixed, until the next call.
func (j *joint) request(jk *jointKey) *step.Request {
	j.req = jk.Request
	j.req.Fixed = &jk.clock
	return &j.req
}

// lockShards locks the shards of all keys, and finds their tables.
func (j *joint) lockShards() {
	for {
		j.locks = j.locks[:0]
		for i := range j.keys {
			jk := &j.keys[i]
			jk.slot = lockedSlot{space: jk.space, shard: jk.space.tableOf(jk.id).shard}
			j.locks = append(j.locks, jk.slot.shard)
		}
		j.locks = lockAll(j.locks)
		if j.findTables() {
			return
		}
		unlockAll(j.locks)
	}
}

// findTables finds the tables of the locked shards. It returns false if a shard was split before it
// was locked, so that a key is in another shard.
func (j *joint) findTables() (ok bool) {
	for i := range j.keys {
		jk := &j.keys[i]
		t := jk.space.tableOf(jk.id) // guarantee 1
		if t.shard != jk.slot.shard {
			return false
		}
		jk.slot.table = t
	}
	return true
}

func (j *joint) disownStates() {
	for i := range j.keys {
		j.keys[i].disownState()
	}
}

// readClocks reads the clock of the first key once for all keys that have it, and that of any other
// key. A denial cannot be decided on twice, so a coarse clock is renewed.
func (j *joint) readClocks() {
	first := &j.keys[0]
	for i := range j.keys {
		jk := &j.keys[i]
		if i > 0 && jk.Request.Clock == first.Request.Clock {
			jk.clock = first.clock
		} else {
			jk.Request.Clock.Renew()
			jk.clock.Now, jk.clock.Lag = jk.Request.Clock.Now()
			jk.clock.Own = true
		}
	}
}

// askKeys asks all keys whether they grant their events. Like the parts of an All, none notes a
// denial if one of them never grants as many events.
func (j *joint) askKeys() {
	granted, notes, ever := true, false, true
	j.delay = 0
	for i := range j.keys {
		jk := &j.keys[i]
		k, st, _ := jk.decides.Reconcile(jk.k, jk.st, jk.clock.Now)
		granted = granted && k.Grants(st, j.request(jk))
		notes = notes || jk.decides.Notes()
		ever = ever && jk.Request.N <= jk.lim.loose.Limit()
		if granted && jk.Request.Op == step.OpHold {
			j.delay = max(j.delay, k.DelayIfGranted(st, j.request(jk)))
		}
	}
	j.granted, j.notes = granted, notes && ever && !granted
}

// claimPlaces finds out which keys enter, because they are new and their states change, and claims
// their places. It returns a store that is full.
func (j *joint) claimPlaces() (full *Store) {
	j.arrivals = j.arrivals[:0]
	for i := range j.keys {
		jk := &j.keys[i]
		changes := j.granted || j.notes && jk.decides.Notes()
		jk.enters = !jk.found && jk.mayEnter() && changes
		if jk.enters && jk.space.store.MaxKeys > 0 {
			j.arrivals.add(jk.space.store, jk.clock.Now)
		}
	}
	return j.arrivals.claimPlaces(j.roomMade)
}

// makeRoomAhead has full stores evict keys for those that are to enter. Once these have entered,
// the stores might choose them for eviction, because others have less remaining: then a new key
// would be forgotten at once, again and again. It looks at one sample for each key that is to
// enter.
func (j *joint) makeRoomAhead() {
	j.roomMade = true
	for i := range j.keys {
		jk := &j.keys[i]
		if !jk.enters {
			continue
		}
		if in := j.arrivals.of(jk.space.store); in != nil && !in.store.RefuseNew {
			jk.space.makeRoomAhead(in.keys, in.now)
		}
	}
}

// payPlaces claims the places of the keys that have entered without one, so that the stores are
// within their bounds when the call returns. The admission lock is acquired for each key anew, so
// that others come in between.
func (j *joint) payPlaces() {
	for i := range j.keys {
		jk := &j.keys[i]
		if !jk.enters {
			continue
		}
		if in := j.arrivals.of(jk.space.store); in != nil && in.owed > 0 {
			jk.space.payPlace(in.now)
			in.owed--
		}
	}
}
