package ratelimit

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
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
// limit of 1, for then they are equals. [WithFullPolicy] chooses otherwise.
//
// The choice is among all keys up to 512, and among a sample of at least 64
// beyond, which serves up to 16 evictions within a second if so many in it have
// as much Remaining. While none in it has any, it grows, to all keys if need be:
// one that is used up is forgotten only if every key is. Then the sixty-fourth
// part that resets soonest goes at once, for to look at all takes milliseconds
// for each million of keys, in which new keys wait, and others do not.
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

	// RefuseUnseen denies the new key. RetryAfter is the time until a key that
	// the store had when it last looked is idle, if it is not used until then,
	// Wait and Reserve fail with [ErrFull], and nothing is ever evicted. The
	// store looks at all keys at most once a second, or each time a sixty-fourth
	// part of them has become idle.
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

// An eviction looks at sampleFewest keys, and up to sampleMost while all that it
// saw are exhausted, or if these are all. If it still saw none that has
// something left, and always if only an idle one will do, it looks at all.
//
// What it has seen serves the next ones, too. One that did not see all remembers
// some keys that are as good as the best. One that did has taken long, and
// remembers a part of them, one in parts: those to choose now, and those that
// will be the next to have something left. If no key has, it forgets a part. So
// if there are many new keys, each costs about twice as many looks as there are
// parts, at most.
const (
	sampleFewest = 64
	sampleMost   = 512
	remembered   = 16
	parts        = 64
	rememberedNs = 1e9 // after that, others may be better
)

// An evictee is a shard with keys to choose from.
type evictee interface {
	// offer shows its keys to the eviction, one after the other, until that is
	// done. An idle one it forgets at once.
	offer(e *eviction)

	// evict forgets a key, and counts that, if it is idle or has at least so much
	// room, and reports whether it did.
	evict(v victim, now instant, room int) bool
}

// A victim is a key that may be evicted.
type victim struct {
	sh    evictee
	id    identity // in tables
	key   string   // in logs
	room  int      // what it could still be granted
	fresh instant  // when nothing is lost with it
}

const victimSize = 64 // bytes, where words have 64 bits

// An eviction looks for the keys whose loss forgives least.
type eviction struct {
	now  instant
	idle bool // whether only an idle key will do
	all  bool // whether there are so few keys that it looks at all
	part int  // how many keys are a part
	keep int  // the most that it remembers

	seen  int
	room  int // the most seen
	best  []victim
	freed bool // whether an idle key was forgotten
	done  bool // whether enough was seen
}

// forgot says that an idle key was forgotten.
func (e *eviction) forgot() { e.freed, e.done = true, !e.idle && e.seen <= sampleMost }

// look takes a key into account that is in use.
func (e *eviction) look(k kernel, st []uint64, v victim) {
	if !e.idle { // else they differ in when they are fresh only
		v.room = k.room(st, e.now)
	}
	e.room = max(e.room, v.room)
	switch {
	case len(e.best) < e.keep:
		if e.best = append(e.best, v); len(e.best) == e.keep {
			heap.Init(e)
		}
	case prefer(v, e.best[0]) < 0:
		e.best[0] = v
		heap.Fix(e, 0)
	}
	e.seen++
	e.done = e.room > 0 && !e.all && e.seen >= sampleFewest && e.seen <= sampleMost
}

// prefer compares two victims: the better one comes first.
func prefer(a, b victim) int {
	return cmp.Or(cmp.Compare(b.room, a.room), cmp.Compare(a.fresh, b.fresh))
}

// An eviction is a heap, the worst on top, once it remembers as much as it may.

func (e *eviction) Len() int           { return len(e.best) }
func (e *eviction) Less(i, j int) bool { return prefer(e.best[i], e.best[j]) > 0 }
func (e *eviction) Swap(i, j int)      { e.best[i], e.best[j] = e.best[j], e.best[i] }
func (*eviction) Push(any)             {} // it is only put in order
func (*eviction) Pop() any             { return nil }

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
	mu        sync.Mutex  // protects what follows; taken before that of a shard
	hand      int         // where the next eviction begins to look
	shards    [][]evictee // of all spaces, as of the last one
	found     instant     // when it was
	victims   []victim    // that it remembered, those left, the best first
	scarce    bool        // whether it had to look at all
	newcomers []victim    // if so: who came since, and may have something left
	eviction              // the last one, kept for its memory
}

// makeRoom frees at least one seat for a newcomer, unless somebody else does
// meanwhile, or the policy forbids it: then it returns false, and when a key may
// be idle.
//
// The keys of all spaces are looked at as of now: limiters that share a store
// are taken to share a clock.
func (s *MemoryStore) makeRoom(now instant, newcomer victim) (freed bool, idle instant) {
	d := &s.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if now >= d.found+rememberedNs {
		d.victims, d.newcomers = nil, d.newcomers[:0]
	}
	freed = d.recall(now)
	if !freed {
		if d.idle && len(d.victims) > 0 {
			return false, d.victims[0].fresh
		}
		s.look(now)
		freed = d.choose()
	}
	switch {
	case !freed:
		return false, d.victims[0].fresh
	case d.scarce && len(d.newcomers) < d.keep:
		newcomer.key = strings.Clone(newcomer.key)
		d.newcomers = append(d.newcomers, newcomer)
	}
	return true, 0
}

// bytes returns how much memory is used to remember keys.
func (d *door) bytes() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return uint64(cap(d.best)+cap(d.newcomers)) * victimSize
}

// recall evicts a key that was remembered.
func (d *door) recall(now instant) bool {
	for len(d.victims) > 0 && (!d.idle || d.victims[0].fresh <= now) {
		v := d.victims[0]
		d.victims = d.victims[1:]
		if v.sh.evict(v, now, d.least(v)) {
			return true
		}
	}
	for last := len(d.newcomers) - 1; last >= 0; last-- {
		v := d.newcomers[last]
		d.newcomers = d.newcomers[:last]
		if v.sh.evict(v, now, 1) {
			return true
		}
	}
	return false
}

// least returns the least room that a remembered key must have to be evicted.
func (d *door) least(v victim) int {
	if d.idle {
		return math.MaxInt
	}
	return max(v.room, 1)
}

// look looks for keys to evict.
func (s *MemoryStore) look(now instant) {
	d := &s.door
	d.found = now
	d.eviction = eviction{
		now:  now,
		idle: s.full != EvictLeast,
		all:  s.maxKeys <= sampleMost,
		part: int(s.maxKeys / parts),
		keep: max(sampleMost, int(s.maxKeys/parts)),
		best: d.best[:0],
	}
	shards := d.survey(s.open())
	d.hand = (d.hand + 1) % shards
	for i := 0; i < shards && !d.done; i++ {
		d.shard((d.hand + i) % shards).offer(&d.eviction)
	}
	if !d.done && d.survey(s.open()) > shards {
		d.freed = true // perhaps not, but keys moved to another shard meanwhile: look again
	}
}

// survey notes all shards, and returns how many there are.
func (d *door) survey(spaces []space) (n int) {
	d.shards = d.shards[:0]
	for _, sp := range spaces {
		d.shards = append(d.shards, sp.evictees())
		n += len(sp.evictees())
	}
	return n
}

// shard returns the i-th of all shards.
func (d *door) shard(i int) evictee {
	for _, of := range d.shards {
		if i < len(of) {
			return of[i]
		}
		i -= len(of)
	}
	panic("ratelimit: no such shard")
}

// choose evicts some of those that the last look found, unless an idle key was,
// and remembers others. It returns false if it may not.
func (d *door) choose() (freed bool) {
	d.victims, d.newcomers = nil, d.newcomers[:0]
	d.scarce = !d.idle && d.seen > sampleMost
	best := d.best
	if d.room > 0 && !d.scarce {
		best = slices.DeleteFunc(best, func(v victim) bool { return v.room < d.room })
	}
	slices.SortFunc(best, prefer)
	n := 0
	switch {
	case d.freed || d.idle || d.seen == 0: // if the last, all seats are about to be used
	case d.scarce && d.room == 0:
		n = min(len(best), d.part)
	default:
		n = 1
	}
	for _, v := range best[:n] {
		v.sh.evict(v, d.now, v.room)
	}
	switch {
	case d.idle || d.scarce:
		d.victims = best[n:]
	case n > 0 && !d.all:
		d.victims = best[n:min(len(best), remembered)]
	}
	return d.freed || n > 0 || d.seen == 0
}

// An overflow decides on the requests of new keys for which there is no room.
type overflow struct {
	store  *MemoryStore
	shared States // with ShareUnseen: of the one key that they all are
}

// count adds the memory of the shared state.
func (o *overflow) count(stats *MemoryStats) {
	if o.shared != nil {
		var shared MemoryStats
		o.shared.(space).count(&shared)
		stats.Bytes += shared.Bytes
	}
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
