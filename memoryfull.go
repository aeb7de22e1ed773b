package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
)

// What a store does when it is full is in this file: who gets a seat, who loses
// it, and what becomes of those for whom there is none.

// WithMaxKeys bounds the number of keys that a store holds, over all of its
// limiters, to n; 0, the default, sets no bound. When a further key comes, and
// no idle one is found, the store forgets the key whose loss forgives least:
// the one with the most Remaining, and among equals the one that resets
// soonest. So a flood of new keys pushes out its own, and not one that has used
// up its limit; unless each new key uses up its own limit at once, as with a
// limit of 1, for then they are equals. The choice is among all keys up to 512,
// and among a sample of at least 64 beyond, which grows to 512 for as long as it
// holds nothing but exhausted keys, and serves up to 16 evictions within a second
// if so many in it have as much Remaining. So an exhausted key may be lost if nearly
// all keys are: if one in a hundred is not, in one of 170 evictions; if one in
// thirty is not, in one of 30 million. [WithFullPolicy] chooses otherwise.
//
// Each loss is counted in [MemoryStats].Evictions. A negative n is an error that
// [New] returns.
func WithMaxKeys(n int) MemoryOption {
	return func(s *MemoryStore) { s.maxKeys = int64(n) }
}

// A FullPolicy says what a store does with a new key when it is full, and finds
// no idle key among those that it looks at.
type FullPolicy int

const (
	// EvictLeast forgets the key whose loss forgives least, see [WithMaxKeys].
	EvictLeast FullPolicy = iota

	// RefuseUnseen denies the new key. RetryAfter is the time until one of the
	// keys that were looked at is idle, Wait and Reserve fail with [ErrFull],
	// and nothing is ever evicted.
	RefuseUnseen

	// ShareUnseen lets all new keys share one state, as if they were one key
	// more, for as long as the store is full. Nothing is ever evicted.
	ShareUnseen
)

// WithFullPolicy says what a store with [WithMaxKeys] does when it is full. The
// default is EvictLeast.
func WithFullPolicy(p FullPolicy) MemoryOption {
	return func(s *MemoryStore) { s.full = p }
}

// ErrFull says that a [MemoryStore] with [RefuseUnseen] has no room for the key
// of a Wait or a Reserve.
var ErrFull = errors.New("ratelimit: the store is full")

// takeSeat counts a further key in, unless the store is full.
func (s *MemoryStore) takeSeat() bool {
	if s.maxKeys == 0 {
		return true
	}
	for {
		n := s.seats.Load()
		if n >= s.maxKeys {
			return false
		}
		if s.seats.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leaveSeat counts a key out.
func (s *MemoryStore) leaveSeat() {
	if s.maxKeys > 0 {
		s.seats.Add(-1)
	}
}

// How many keys an eviction looks at: at least fewest, and up to most while
// all that it saw are exhausted or the store is so small that it can see all.
// If it could not see all, it remembers some that are as good as the best, for
// the evictions that follow.
const (
	sampleFewest = 64
	sampleMost   = 512
	remembered   = 16
	victimsKeep  = 1e9 // nanoseconds: after that, others may be better
)

// An evictee is a shard with keys to choose from.
type evictee interface {
	// offer shows its keys to the eviction, one after the other, until that is
	// done. An idle one it forgets at once.
	offer(e *eviction)

	// evict forgets v and counts that, unless it forgives less by now, and
	// reports whether it did.
	evict(v victim, now instant) bool
}

// A victim is a key that may be evicted.
type victim struct {
	sh    evictee
	id    identity // in tables
	key   string   // in logs
	room  int      // what it could still be granted
	fresh instant  // when nothing is lost with it
}

// An eviction looks for the keys whose loss forgives least.
type eviction struct {
	now  instant
	all  bool // whether it looks at all keys, up to sampleMost
	idle bool // whether only an idle key will do
	seen int
	best []victim // those with the most room

	soonest instant // when the first of the keys seen is idle
	freed   bool    // whether an idle key was forgotten
	done    bool    // whether it was, or enough was seen
}

// forgot says that an idle key was forgotten.
func (e *eviction) forgot() { e.freed, e.done = true, true }

// look takes a key into account that is in use.
func (e *eviction) look(v victim) {
	switch {
	case e.idle:
	case len(e.best) == 0 || v.room == e.best[0].room:
		e.best = append(e.best, v)
	case v.room > e.best[0].room:
		e.best = append(e.best[:0], v)
	}
	e.soonest = min(e.soonest, v.fresh)
	e.seen++
	if e.seen >= sampleMost || !e.all && e.seen >= sampleFewest && (e.idle || e.best[0].room > 0) {
		e.done = true
	}
}

// answers reports whether a request that changes nothing is answered for a new
// key as if there were room for it: always, but for an OpPeek, which must answer
// what OpTake would, if the store may have to turn that away.
func (s *MemoryStore) answers(op Op) bool {
	return op != OpPeek || s.full == EvictLeast || s.maxKeys == 0 || s.seats.Load() < s.maxKeys
}

// lost counts an eviction, unless the key was idle.
func (s *MemoryStore) lost(idle bool) {
	if !idle {
		s.evicted.Add(1)
	}
}

// A door is where new keys wait if there is a bound.
type door struct {
	mu       sync.Mutex // protects what follows; taken before that of a shard
	hand     int        // where the next eviction begins to look
	victims  []victim   // of the last one, those left, the best first
	found    instant    // when they were found
	room     []victim   // for the next ones
	eviction            // the last one, kept for its memory
}

// evictees returns the shards of all spaces.
func (s *MemoryStore) evictees() (all []evictee) {
	spaces := s.open()
	if len(spaces) == 1 {
		return spaces[0].evictees()
	}
	for _, sp := range spaces {
		all = append(all, sp.evictees()...)
	}
	return all
}

// makeRoom frees at least one seat, unless somebody else does meanwhile, or the
// policy forbids it: then it returns false, and when a key may be idle.
//
// The keys of all spaces are looked at as of now: limiters that share a store
// are taken to share a clock.
func (s *MemoryStore) makeRoom(now instant) (freed bool, idle instant) {
	d := &s.door
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.victims) > 0 && now < d.found+victimsKeep {
		v := d.victims[0]
		if d.victims = d.victims[1:]; v.sh.evict(v, now) {
			return true, 0
		}
	}
	d.victims = nil
	e := &d.eviction
	*e = eviction{now: now, all: s.maxKeys <= sampleMost, idle: s.full != EvictLeast, soonest: forever, best: d.room[:0]}
	shards := s.evictees()
	d.hand = (d.hand + 1) % len(shards)
	for i := range shards {
		if shards[(d.hand+i)%len(shards)].offer(e); e.done {
			break
		}
	}
	d.room = e.best
	switch {
	case e.freed || e.seen == 0: // in the latter case, all seats are about to be used
		return true, 0
	case e.idle:
		return false, e.soonest
	}
	slices.SortFunc(e.best, func(a, b victim) int { return cmp.Compare(a.fresh, b.fresh) })
	e.best[0].sh.evict(e.best[0], now)
	d.found = now
	if !e.all {
		d.victims = e.best[1:min(len(e.best), remembered)]
	}
	return true, 0
}

// An overflow decides on the requests of new keys for which there is no room.
type overflow struct {
	store  *MemoryStore
	shared States // with ShareUnseen: of the one key that they all are
}

func newOverflow(s *MemoryStore, t *Transition) overflow {
	o := overflow{store: s}
	if s.full == ShareUnseen {
		o.shared, _ = NewMemoryStore(WithMaxKeys(1)).Open("", t) // which never fails
	}
	return o
}

// A sharedGrant is one that was made in an overflow.
type sharedGrant struct{ grant any }

// cancels reports whether req is to cancel a grant that was made here, and does.
func (o *overflow) cancels(t *Transition, req *Request) (res Result, ok bool) {
	g, ok := req.Grant.(sharedGrant)
	if !ok || o.shared == nil {
		return Result{}, false
	}
	of := *req
	of.Grant = g.grant
	res, _ = o.shared.Apply(context.Background(), "", t, of)
	return res, true
}

// apply decides on req, whose key found no room. Another may be idle at an
// instant.
func (o *overflow) apply(t *Transition, req *Request, idle instant) Result {
	if req.Op != OpPeek {
		o.store.turned.Add(1)
	}
	if o.shared != nil {
		res, _ := o.shared.Apply(context.Background(), "", t, *req) // memory does not fail
		if res.Grant != nil {
			res.Grant = sharedGrant{res.Grant}
		}
		return res
	}
	v := view{kernel: t.kernel}
	v.now, v.lag = req.now()
	wait := v.until(max(idle, v.now+1))
	return Result{
		Decision: Decision{Limit: v.limit(), RetryAfter: wait},
		Wait:     wait,
		Full:     true,
	}
}
