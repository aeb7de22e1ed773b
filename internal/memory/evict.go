package memory

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// Which key a full store evicts is in this file.

// An eviction looks at a sample: at some keys of one shard after the other, up to
// fewest, and further up to most while all are used up. If it still saw none that
// is idle or has something left, and always if these are all that there are or if
// only an idle one will do, it looks at many: at all keys, or at as many as a stride
// if there are more. The next look goes on where it has stopped. Shards hold keys in
// the order of their hashes, so that a stride is a sample, too.
//
// What it has seen serves the next ones, too. A sample lets some keys be remembered
// that are as good as the best. A look at many has taken long, and a part of them is
// remembered, one in parts: those to choose now, and those that will be the next to
// have something left. If no key has, or so few of a stride that it may take another
// one for each of them, a part is evicted. So if there are many new keys, each costs
// about twice as many looks as there are parts, as a rule, and at most as many as a
// stride divided by scant.
type lookSizes struct {
	fewest, most int // keys of a sample
	perShard     int // of them
	remembered   int // of them
	stride       int // keys that are looked at if a sample is of no use
	parts        int
	scant        int // if fewer in a stride have something left, the used-up ones go, too
	queue        int // keys that may be idle soon, which are remembered if only they will do
}

var usualSizes = lookSizes{fewest: 64, most: 512, perShard: 16, remembered: 16, stride: 1 << 14, parts: 64, scant: 16, queue: 1 << 12}

const rememberedNs = 1e9 // after that, others may be better

// An evictee is a shard with keys to choose from.
type evictee interface {
	// offer shows up to most keys to the eviction, one after the other, until that
	// is done. Those that are idle it forgets at once.
	offer(e *eviction, most int)

	// evict forgets a key, and counts that, if it is idle or has at least so much
	// room, and reports whether it did.
	evict(v candidate, now kernel.Instant, room int) bool
}

// unlessIdle is a room that no key has.
const unlessIdle = -1

// spares reports whether a key that is in use has less room than it must have to
// be evicted.
func spares(room, least int) bool { return least == unlessIdle || room < least }

// A candidate is a key that may be evicted.
type candidate struct {
	sh    evictee
	id    identity
	room  int            // what it could still be granted
	from  kernel.Instant // when it may be evicted, if it is not used until then; 0 for now
	fresh kernel.Instant // when nothing is lost with it
}

const candidateSize = 56 // bytes, where words have 64 bits

// An eviction looks for the keys whose loss forgives least.
type eviction struct {
	lookSizes
	now     kernel.Instant
	idle    bool // whether only an idle key will do
	few     bool // whether there are so few keys that it always looks at all
	sample  bool // whether it looks at a sample, and not at many
	strides bool // whether there are more keys than it looks at
	part    int  // how many keys are a part
	keep    int  // the most that it remembers

	seen  int
	room  int // the most seen
	left  int // how many of those seen have something left
	best  []candidate
	freed bool // whether idle keys were forgotten
	done  bool // whether enough was seen
}

// forgot takes an idle key into account that was forgotten.
func (e *eviction) forgot() {
	e.freed = true
	e.count()
}

// look takes a key into account that is in use.
func (e *eviction) look(k *kernel.Compiled, st []uint64, v candidate) {
	if e.idle {
		v.from = v.fresh
	} else if v.room = k.Room(st, e.now); v.room == 0 && !e.sample && !e.few {
		v.from = k.Ready(st, e.now, 1)
	}
	if e.room = max(e.room, v.room); v.room > 0 {
		e.left++
	}
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
	if e.sample {
		e.done = e.seen >= e.fewest && (e.freed || e.room > 0 || e.seen >= e.most)
	} else {
		e.done = e.strides && e.seen >= e.stride
	}
}

// prefer compares two candidates: the better one comes first.
func prefer(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.room, a.room), cmp.Compare(a.from, b.from), cmp.Compare(a.fresh, b.fresh))
}

// An eviction is a heap, the worst on top, once it remembers as much as it may.

func (e *eviction) Len() int           { return len(e.best) }
func (e *eviction) Less(i, j int) bool { return prefer(e.best[i], e.best[j]) > 0 }
func (e *eviction) Swap(i, j int)      { e.best[i], e.best[j] = e.best[j], e.best[i] }
func (*eviction) Push(any)             {} // it is only put in order
func (*eviction) Pop() any             { return nil }

// lost counts an eviction, unless the key was idle.
func (s *Store) lost(idle bool) {
	if !idle {
		s.evicted.Add(1)
	}
}

// look looks for keys to evict: in a sample, and if that is of no use, among many.
func (s *Store) look(now kernel.Instant, idleOnly bool) {
	a := &s.admission
	a.found = now
	part := max(1, min(int(s.MaxKeys), a.stride)/a.parts)
	begin := eviction{
		lookSizes: a.lookSizes,
		now:       now,
		idle:      idleOnly,
		few:       s.MaxKeys <= int64(a.most),
		strides:   s.MaxKeys > int64(a.stride),
		part:      part,
		keep:      max(a.most, part),
	}
	e := &a.eviction
	if !begin.idle && !begin.few {
		begin.sample, begin.best = true, e.best[:0]
		*e = begin
		a.walk(s.spaces())
		if e.freed || e.room > 0 {
			return
		}
		begin.sample = false
	}
	begin.best = e.best[:0]
	*e = begin
	shards := shardsOf(s.spaces())
	a.walk(s.spaces())
	if shardsOf(s.spaces()) > shards {
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
func (a *admission) walk(spaces []space) {
	e, most, hand := &a.eviction, math.MaxInt, &a.far
	if e.sample {
		most, hand = e.perShard, &a.near
	}
	first, begin := hand.space%len(spaces), hand.shard
	for i := range len(spaces) + 1 { // the first one twice: from the hand on, and up to it
		at := (first + i) % len(spaces)
		if spaces[at].vacant() {
			continue
		}
		shards := spaces[at].evictees()
		from, to := 0, len(shards)
		switch i {
		case 0:
			from = min(begin, to)
		case len(spaces):
			to = min(begin, to)
		}
		for j := from; j < to; j++ {
			shards[j].offer(e, most)
			if !e.done {
				continue
			}
			if !e.sample || !e.freed { // else there may be more to forget where it began
				hand.space, hand.shard = at, j+1
			}
			return
		}
	}
}

// choose evicts some of those that the last look found, unless an idle key was,
// and remembers others. It returns false if it may not.
func (a *admission) choose() (freed bool) {
	e := &a.eviction
	if e.idle {
		return a.chooseIdle()
	}
	a.forget()
	a.scarce = !e.few && !e.sample
	best := e.best
	if e.sample {
		best = slices.DeleteFunc(best, func(v candidate) bool { return v.room < e.room })
	}
	slices.SortFunc(best, prefer)
	n := 0
	switch {
	case e.freed || e.seen == 0: // if the last, all places are about to be used
	case a.scarce && (e.room == 0 || e.strides && e.left < e.scant):
		n = min(len(best), e.part)
	default:
		n = 1
	}
	for _, v := range best[:n] {
		v.sh.evict(v, e.now, v.room)
	}
	switch {
	case a.scarce:
		a.candidates = best[n:]
	case n > 0 && e.sample:
		a.candidates = best[n:min(len(best), e.remembered)]
	}
	a.bytes.Store(uint64(cap(e.best)+cap(a.admitted)) * candidateSize)
	return e.freed || n > 0 || e.seen == 0
}

// chooseIdle remembers the keys that will be idle soonest, also those of earlier
// strides. It returns false if none is idle now.
func (a *admission) chooseIdle() (freed bool) {
	e := &a.eviction
	if !e.strides {
		a.candidates = nil
	}
	a.candidates = append(a.candidates, e.best...)
	slices.SortFunc(a.candidates, prefer)
	if len(a.candidates) > e.queue {
		clear(a.candidates[e.queue:])
		a.candidates = a.candidates[:e.queue]
	}
	a.bytes.Store(uint64(cap(e.best)+cap(a.candidates)) * candidateSize)
	return e.freed || e.seen == 0
}
