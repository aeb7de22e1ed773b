package ratelimit

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
// part that has something left soonest goes at once, for to look at all takes
// milliseconds for each million of keys, in which new keys wait, and others do not.
//
// Each loss is counted in [MemoryStats].Evictions. A negative n is an error that
// [New] returns.
func WithMaxKeys(n int) MemoryOption {
	return func(c *memoryConfig) { c.maxKeys = int64(n) }
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
	return func(c *memoryConfig) { c.full = p }
}

// ErrFull says that a [MemoryStore] with [RefuseUnseen] has no room for the key
// of a Wait or a Reserve.
var ErrFull = errors.New("ratelimit: the store is full")

// A seated is how many keys a space has, if there is a bound.
type seated struct{ keys atomic.Int64 }

func (of *seated) vacant() bool { return of.keys.Load() == 0 }

// takeSeat counts a further key in, unless the store is full.
func (s *MemoryStore) takeSeat(of *seated) bool {
	if s.maxKeys == 0 {
		return true
	}
	for {
		n := s.seats.Load()
		if n >= s.maxKeys {
			return false
		}
		if s.seats.CompareAndSwap(n, n+1) {
			of.keys.Add(1)
			return true
		}
	}
}

// leaveSeat counts a key out.
func (s *MemoryStore) leaveSeat(of *seated) {
	if s.maxKeys > 0 {
		of.keys.Add(-1)
		s.seats.Add(-1)
	}
}

// An eviction looks at a sample: at some keys of one shard after the other, up to
// fewest, and further up to most while all are used up. If it still saw none that
// is idle or has something left, and always if these are all that there are or if
// only an idle one will do, it looks at all.
//
// What it has seen serves the next ones, too. A sample lets some keys be remembered
// that are as good as the best. A look at all has taken long, and a part of them is
// remembered, one in parts: those to choose now, and those that will be the next to
// have something left. If no key has, a part is forgotten. So if there are many new
// keys, each costs about twice as many looks as there are parts, at most.
type lookSizes struct {
	fewest, most int // keys of a sample
	perShard     int // of them
	remembered   int // of them
	parts        int
}

var usualSizes = lookSizes{fewest: 64, most: 512, perShard: 16, remembered: 16, parts: 64}

const rememberedNs = 1e9 // after that, others may be better

// An evictee is a shard with keys to choose from.
type evictee interface {
	// offer shows up to most keys to the eviction, one after the other, until that
	// is done. Those that are idle it forgets at once.
	offer(e *eviction, most int)

	// evict forgets a key, and counts that, if it is idle or has at least so much
	// room, and reports whether it did.
	evict(v victim, now instant, room int) bool
}

// unlessIdle is a room that no key has.
const unlessIdle = -1

// spares reports whether a key that is in use has less room than it must have to
// be evicted.
func spares(room, least int) bool { return least == unlessIdle || room < least }

// A victim is a key that may be evicted.
type victim struct {
	sh    evictee
	id    identity
	room  int     // what it could still be granted
	ripe  instant // when it may be evicted, if it is not used until then; 0 for now
	fresh instant // when nothing is lost with it
}

const victimSize = 56 // bytes, where words have 64 bits

// An eviction looks for the keys whose loss forgives least.
type eviction struct {
	lookSizes
	now    instant
	idle   bool // whether only an idle key will do
	few    bool // whether there are so few keys that it always looks at all
	sample bool // whether it looks at a sample, and not at all
	part   int  // how many keys are a part
	keep   int  // the most that it remembers

	seen  int
	room  int // the most seen
	best  []victim
	freed bool // whether idle keys were forgotten
	done  bool // whether enough was seen
}

// forgot takes an idle key into account that was forgotten.
func (e *eviction) forgot() {
	e.freed = true
	e.count()
}

// look takes a key into account that is in use.
func (e *eviction) look(k kernel, st []uint64, v victim) {
	if e.idle {
		v.ripe = v.fresh
	} else if v.room = k.room(st, e.now); v.room == 0 && !e.sample && !e.few {
		v.ripe = k.ready(st, e.now, 1)
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
	e.count()
}

func (e *eviction) count() {
	e.seen++
	e.done = e.sample && e.seen >= e.fewest && (e.freed || e.room > 0 || e.seen >= e.most)
}

// prefer compares two victims: the better one comes first.
func prefer(a, b victim) int {
	return cmp.Or(cmp.Compare(b.room, a.room), cmp.Compare(a.ripe, b.ripe), cmp.Compare(a.fresh, b.fresh))
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

// A door is where new keys wait if there is a bound, one after the other.
type door struct {
	bytes atomic.Uint64 // of memory for what follows

	mu        sync.Mutex // protects what follows; taken before that of a shard
	lookSizes            // usualSizes, but for tests
	space     int        // where the next sample begins: a space,
	hand      int        // and a shard of it
	found     instant    // when the last look was
	victims   []victim   // that it remembered, those left, the best first
	scarce    bool       // whether it had to look at all
	newcomers []victim   // if so: who came since, and may have something left
	eviction  eviction   // the last one, kept for its memory
}

// admit calls try, which takes a seat for a new key, until it has found one, and
// makes room for it as often as need be. If the policy forbids that, it returns
// when a key may be idle.
//
// It is the only one to do so then: a newcomer has its seat before the next one
// looks for another.
func (s *MemoryStore) admit(req *Request, newcomer victim, try func() (seated bool)) (idle instant, full bool) {
	d := &s.door
	d.mu.Lock()
	defer d.mu.Unlock()
	for !try() {
		now, _ := req.now()
		if now >= d.found+rememberedNs {
			d.forget()
		}
		if idle, full = s.makeRoom(now); full {
			return idle, true
		}
	}
	if d.scarce && len(d.newcomers) < d.eviction.keep {
		d.newcomers = append(d.newcomers, newcomer)
	}
	return 0, false
}

// makeRoom frees at least one seat, unless keys have moved meanwhile, or the
// policy forbids it.
//
// The keys of all spaces are looked at as of now: limiters that share a store
// are taken to share a clock.
func (s *MemoryStore) makeRoom(now instant) (idle instant, full bool) {
	d := &s.door
	idleOnly := s.full != EvictLeast
	if d.recall(now, idleOnly) {
		return 0, false
	}
	if idleOnly && len(d.victims) > 0 {
		return d.victims[0].ripe, true
	}
	s.look(now, idleOnly)
	if d.choose() {
		return 0, false
	}
	return d.victims[0].ripe, true
}

// forget drops what was remembered.
func (d *door) forget() {
	d.victims = nil
	clear(d.newcomers)
	d.newcomers = d.newcomers[:0]
}

// recall evicts a key that was remembered.
func (d *door) recall(now instant, idleOnly bool) bool {
	for len(d.victims) > 0 && d.victims[0].ripe <= now {
		v := d.victims[0]
		d.victims[0] = victim{}
		d.victims = d.victims[1:]
		least := max(v.room, 1)
		if idleOnly {
			least = unlessIdle
		}
		if v.sh.evict(v, now, least) {
			return true
		}
	}
	for last := len(d.newcomers) - 1; last >= 0; last-- {
		v := d.newcomers[last]
		d.newcomers[last] = victim{}
		d.newcomers = d.newcomers[:last]
		if v.sh.evict(v, now, 1) {
			return true
		}
	}
	return false
}

// look looks for keys to evict: in a sample, and if that is of no use, among all.
func (s *MemoryStore) look(now instant, idleOnly bool) {
	d := &s.door
	d.found = now
	part := max(1, int(s.maxKeys/int64(d.parts)))
	begin := eviction{
		lookSizes: d.lookSizes,
		now:       now,
		idle:      idleOnly,
		few:       s.maxKeys <= int64(d.most),
		part:      part,
		keep:      max(d.most, part),
	}
	e := &d.eviction
	if !begin.idle && !begin.few {
		begin.sample, begin.best = true, e.best[:0]
		*e = begin
		d.walk(s.open())
		if e.freed || e.room > 0 {
			return
		}
		begin.sample = false
	}
	begin.best = e.best[:0]
	*e = begin
	shards := shardsOf(s.open())
	d.walk(s.open())
	if shardsOf(s.open()) > shards {
		e.freed = true // perhaps not, but keys moved to another shard meanwhile: look again
	}
}

// shardsOf returns how many shards there are.
func shardsOf(spaces []space) (n int) {
	for _, sp := range spaces {
		n += len(sp.evictees())
	}
	return n
}

// walk shows the keys of all spaces to the eviction, from the hand on, until it is
// done.
func (d *door) walk(spaces []space) {
	e := &d.eviction
	most := math.MaxInt
	if e.sample {
		most = e.perShard
	}
	first, hand := d.space%len(spaces), d.hand
	for i := range len(spaces) + 1 { // the first one twice: from the hand on, and up to it
		at := (first + i) % len(spaces)
		if spaces[at].vacant() {
			continue
		}
		shards := spaces[at].evictees()
		from, to := 0, len(shards)
		switch i {
		case 0:
			from = min(hand, to)
		case len(spaces):
			to = min(hand, to)
		}
		for j := from; j < to; j++ {
			shards[j].offer(e, most)
			if !e.done {
				continue
			}
			if !e.freed { // else there may be more to forget where it began
				d.space, d.hand = at, j+1
			}
			return
		}
	}
}

// choose evicts some of those that the last look found, unless an idle key was,
// and remembers others. It returns false if it may not.
func (d *door) choose() (freed bool) {
	e := &d.eviction
	d.forget()
	d.scarce = !e.idle && !e.few && !e.sample
	best := e.best
	if e.sample {
		best = slices.DeleteFunc(best, func(v victim) bool { return v.room < e.room })
	}
	slices.SortFunc(best, prefer)
	n := 0
	switch {
	case e.freed || e.idle || e.seen == 0: // if the last, all seats are about to be used
	case d.scarce && e.room == 0:
		n = min(len(best), e.part)
	default:
		n = 1
	}
	for _, v := range best[:n] {
		v.sh.evict(v, e.now, v.room)
	}
	switch {
	case e.idle || d.scarce:
		d.victims = best[n:]
	case n > 0 && e.sample:
		d.victims = best[n:min(len(best), e.remembered)]
	}
	d.bytes.Store(uint64(cap(e.best)+cap(d.newcomers)) * victimSize)
	return e.freed || n > 0 || e.seen == 0
}

// An overflow decides on the requests of new keys for which there is no room.
type overflow struct {
	store  *MemoryStore
	shared States // with ShareUnseen: of the one key that they all are, see kind
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
		o.shared, _ = NewMemoryStore().Open("", t) // which never fails
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
	res, _ = o.shared.Apply(context.Background(), kind(t), t, of)
	return res, true
}

// kind names the algorithm of t, if keys have others of their own: those of
// different kinds cannot share a state.
func kind(t *Transition) string {
	if !t.Varies() {
		return ""
	}
	if parts, ok := t.alg.(All); ok {
		var names []string
		for _, part := range parts {
			names = append(names, reflect.TypeOf(part).Name())
		}
		return strings.Join(names, " ")
	}
	return reflect.TypeOf(t.alg).Name()
}

// apply decides on req, whose key found no room. Another may be idle at an
// instant.
func (o *overflow) apply(t *Transition, req *Request, idle instant) Result {
	if req.Op != OpPeek {
		o.store.turned.Add(1)
	}
	if o.shared != nil {
		res, _ := o.shared.Apply(context.Background(), kind(t), t, *req) // memory does not fail
		if res.Grant != nil {
			res.Grant = sharedGrant{res.Grant}
		}
		return res
	}
	v := view{kernel: t.kernel, tick: 1}
	v.now, v.lag = req.now()
	wait := v.until(max(idle, v.now+1))
	return Result{
		Decision: Decision{Limit: v.limit(), RetryAfter: wait},
		Wait:     wait,
		Full:     true,
	}
}
