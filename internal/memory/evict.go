package memory

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides which key a full store evicts.

// A full store first forgets idle keys: those whose state equals a fresh one. (Any store
// also forgets those that have been idle for a while, when it inserts a key: see growth.go.)
// If it finds none, it evicts the key with the most events remaining, among equals the one that is
// Fresh soonest, so that exhausted keys go last. With RefuseNew it denies the new key instead, until the
// first of the keys seen becomes idle; Wait and Reserve then fail with ErrFull.
//
// The key with the most events remaining is found as follows.
//
// An eviction first looks at a sample: perShard keys of each shard in turn, up to
// fewest keys, and on up to most while all of them are exhausted. It scans instead
//
//   - if the sample contains no key that is idle or has events left,
//   - if it contains no idle key, and the last scan that found few of them, or none, was about a second
//     ago (if scans are partial, as much less as they are more): so no key in use is evicted while
//     another has been idle for long,
//   - if the store has no more than most keys, or
//   - if only an idle key may be evicted.
//
// A scan looks at all keys. If there are too many, it is partial, and the next scan
// continues where it stopped. Shards hold keys in the order of their hashes, so the keys
// of a partial scan are also a random sample.
//
// The result of one look serves several evictions. A sample remembers some of the keys
// that are as good as the best one. A scan takes long, so it remembers more: 1/parts of
// the keys it may look at, namely those to evict now and those that will regain
// capacity soonest. If every key is exhausted, or so few in a partial scan have events
// left that each of them would cost another scan, then 1/parts of the keys are evicted in
// one batch. So when there are many new keys, each of them usually costs about 2·parts
// looks, and on average never more than scan/enough. With the usual sizes, a sample has 64
// to 512 keys, a scan up to 16,384, and a batch 1/64 of these.
type lookSizes struct {
	fewest, most int // keys of a sample
	perShard     int // keys of a sample from one shard
	remembered   int // keys of a sample that are remembered
	scan         int // most keys of a scan; one that stops there is partial
	parts        int // a batch evicts 1/parts of a scan's keys; a scan remembers as many, or most if that is more
	enough       int // if fewer keys of a partial scan have events left, exhausted keys are evicted; fewer idle keys are few
	queue        int // keys that will be idle soon, remembered if only idle keys may be evicted
}

var usualSizes = lookSizes{fewest: 64, most: 512, perShard: 16, remembered: 16, scan: 1 << 14, parts: 64, enough: 16, queue: 1 << 12}

const rememberedNs = 1e9 // after that, other keys may be better

// An evictee is a shard with keys to choose from.
type evictee interface {
	// offer passes up to most keys to the eviction, until the eviction is done. It
	// forgets idle keys at once.
	offer(e *eviction, most int)

	// evict forgets a key, and counts the eviction, if the key is idle or has at least
	// the given number of events remaining. It reports whether it did.
	evict(v candidate, now kernel.Instant, least int) bool
}

// unlessIdle, as the least remaining, means that a key in use may not be evicted.
const unlessIdle = -1

// spares reports whether a key that is in use has too few events remaining to be evicted.
func spares(remaining, least int) bool { return least == unlessIdle || remaining < least }

// A candidate is a key that may be evicted.
type candidate struct {
	sh        evictee
	id        identity
	remaining int            // events that it would still be granted
	from      kernel.Instant // when it may be evicted, unless it is used before; 0 for now
	fresh     kernel.Instant // when it is idle
}

const candidateSize = 56 // bytes, on 64-bit machines

// An eviction collects the keys whose loss gives away least: those with most events
// left, and among equals those that are idle soonest.
type eviction struct {
	lookSizes
	now     kernel.Instant
	idle    bool // whether only an idle key may be evicted
	few     bool // whether the store has so few keys that it always scans all of them
	sample  bool // whether it takes a sample, rather than a scan
	partial bool // whether a scan is partial: there are more keys than it looks at
	part    int  // keys evicted in a batch
	keep    int  // most keys that it collects

	seen      int // keys looked at
	remaining int // the most remaining seen
	left      int // keys seen that have events left
	best      []candidate
	freed     int  // idle keys that were forgotten
	done      bool // whether it has seen enough keys
}

// forgot counts an idle key that was forgotten.
func (e *eviction) forgot() {
	e.freed++
	e.count()
}

// look considers a key that is in use.
func (e *eviction) look(k *kernel.Compiled, st []uint64, v candidate) {
	if e.idle {
		v.from = v.fresh
	} else if v.remaining = k.Remaining(st, e.now); v.remaining == 0 && !e.sample && !e.few {
		v.from = k.Ready(st, e.now, 1)
	}
	if e.remaining = max(e.remaining, v.remaining); v.remaining > 0 {
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
		e.done = e.seen >= e.fewest && (e.freed > 0 || e.remaining > 0 || e.seen >= e.most)
	} else {
		e.done = e.partial && e.seen >= e.scan
	}
}

// prefer compares two candidates: the better one comes first.
func prefer(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.remaining, a.remaining), cmp.Compare(a.from, b.from), cmp.Compare(a.fresh, b.fresh))
}

// An eviction is a heap once it has collected keep keys, with the worst on top.

func (e *eviction) Len() int           { return len(e.best) }
func (e *eviction) Less(i, j int) bool { return prefer(e.best[i], e.best[j]) > 0 }
func (e *eviction) Swap(i, j int)      { e.best[i], e.best[j] = e.best[j], e.best[i] }
func (*eviction) Push(any)             {} // unused: the size is fixed
func (*eviction) Pop() any             { return nil }

// lost counts an eviction, unless the key was idle.
func (s *Store) lost(idle bool) {
	if !idle {
		s.evicted.Add(1)
	}
}

// look looks for keys to evict: in a sample or, if that yields none, in a scan.
func (s *Store) look(now kernel.Instant, idleOnly bool) {
	a := &s.admission
	a.found = now
	part := max(1, min(int(s.MaxKeys), a.scan)/a.parts)
	begin := eviction{
		lookSizes: a.lookSizes,
		now:       now,
		idle:      idleOnly,
		few:       s.MaxKeys <= int64(a.most),
		partial:   s.MaxKeys > int64(a.scan),
		part:      part,
		keep:      max(a.most, part),
	}
	e := &a.eviction
	if !begin.idle && !begin.few {
		begin.sample, begin.best = true, e.best[:0]
		*e = begin
		a.walk(s.spaces())
		if e.freed > 0 || e.remaining > 0 && now < a.scanned+s.rest() {
			return
		}
		begin.sample = false
	}
	begin.best = e.best[:0]
	*e = begin
	shards := shardsOf(s.spaces())
	a.walk(s.spaces())
	if e.freed < e.enough { // else scan again before a key in use is evicted
		a.scanned = now
	}
	if shardsOf(s.spaces()) > shards {
		e.freed = max(1, e.freed) // keys may have moved to a shard that was not visited: look again
	}
}

// shardsOf returns how many shards there are.
func shardsOf(spaces []space) (n int) {
	for _, sp := range spaces {
		n += len(sp.evictees())
	}
	return n
}

// walk passes the keys of all spaces to the eviction, starting at the cursor, until the
// eviction is done.
func (a *admission) walk(spaces []space) {
	e, most, next := &a.eviction, math.MaxInt, &a.far
	if e.sample {
		most, next = e.perShard, &a.near
	}
	first, begin := next.space%len(spaces), next.shard
	for i := range len(spaces) + 1 { // the first one twice: from the cursor on, and up to it
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
			next.space, next.shard = at, j+1
			return
		}
	}
}

// choose evicts some of the keys that the last look collected, unless it found idle
// keys, and remembers others. It returns false if it freed no place.
func (a *admission) choose() (freed bool) {
	e := &a.eviction
	if e.idle {
		return a.chooseIdle()
	}
	a.forget()
	a.scarce = !e.few && !e.sample && e.freed < e.enough // else there may be more idle keys, which go first
	best := e.best
	if e.sample {
		best = slices.DeleteFunc(best, func(v candidate) bool { return v.remaining < e.remaining })
	}
	slices.SortFunc(best, prefer)
	n := 0
	switch {
	case e.freed > 0 || e.seen == 0: // if seen is 0, all places are taken by keys that are still being inserted
	case a.scarce && (e.remaining == 0 || e.partial && e.left < e.enough):
		n = min(len(best), e.part)
	default:
		n = 1
	}
	for _, v := range best[:n] {
		v.sh.evict(v, e.now, v.remaining)
	}
	switch {
	case a.scarce:
		a.candidates = best[n:]
	case n > 0 && e.sample:
		a.candidates = best[n:min(len(best), e.remembered)]
	}
	a.bytes.Store(uint64(cap(e.best)+cap(a.admitted)) * candidateSize)
	return e.freed > 0 || n > 0 || e.seen == 0
}

// chooseIdle remembers the keys that will be idle soonest, including those of earlier
// partial scans. It returns false if no key is idle now.
func (a *admission) chooseIdle() (freed bool) {
	e := &a.eviction
	if !e.partial {
		a.candidates = nil
	}
	a.candidates = append(a.candidates, e.best...)
	slices.SortFunc(a.candidates, prefer)
	if len(a.candidates) > e.queue {
		clear(a.candidates[e.queue:])
		a.candidates = a.candidates[:e.queue]
	}
	a.bytes.Store(uint64(cap(e.best)+cap(a.candidates)) * candidateSize)
	return e.freed > 0 || e.seen == 0
}
