package memory

import (
	"iter"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file finds out whether anything was granted on a key since a hold, if states do not say
// (see kernel.Compiled.Blind).
//
// A grant raises the word of such a state. So if nothing was taken back since, the word is the one
// that the hold left only if nothing was granted. Otherwise, others may have been granted just as
// much as was taken back. So what is taken back is noted, beside the tables:
//
//   - A stripe of keys has a lock, and counts what it takes back. A hold remembers the count
//     when it is made, so that it is known whether something was noted before or after it.
//   - Of a key, the last run is noted: what was taken back with nothing granted in between, and
//     the words before and after. If the word is still the one after the run, and the one before
//     it is the one that a hold left, nothing was granted since that hold.
//
// What was granted last is taken back without a note: a hold that is settled while its word is still
// there, which is the usual case, and a reservation that is cancelled. Between two notes, grants are
// a stack of which the last one is removed, in whole or in part. If in part, the words stay above
// those of all earlier holds from then on. So a word is still the one that a hold left only if what
// was granted since was taken back, all of it.
//
// Whatever lowers a word holds the stripe's lock from the check to the swap. Grants need no lock:
// they only raise words, and the swap fails. The count changes before the swap, and a hold reads
// it between loading the word and its own swap. So whatever is taken back after the hold has a
// higher count. (What is taken back while the hold is made may have, too. Then less may come back
// of the hold than could.)
//
// A note may be dropped once the bucket would be full even if nothing had been taken back: then
// the holds made before it have no effect any more. It is also dropped if the key is no longer
// stored. The stripe then remembers the count: of older holds of the stripe, it is not known
// whether anything was granted since.

// A returnStripe is what was taken back from some of the keys.
type returnStripe struct {
	mu    sync.Mutex // protects the fields below; locked after that of a shard
	count atomic.Uint32
	most  uint32 // the size of runs at which old ones are dropped
	lost  uint32 // the highest count of those dropped before their time
	runs  map[identity]returnRun
	at    *kernel.Reading // of the request that is applied under the lock
	_     [24]byte        // so that stripes do not share cache lines
}

// A returnRun is a sequence of changes that took events of a key back, with nothing granted in
// between.
type returnRun struct {
	from, to uint64         // the words before and after it
	until    kernel.Instant // when it may be dropped
	last     uint32         // the count at its end
	before   uint32         // the count at the end of the run before it
	again    bool           // whether there is one
}

// returns is how often events were taken back from keys of the stripe of id. Its caller has loaded
// the word of id.
func (sp *Tables) returns(id identity) uint32 {
	if s := sp.returned.of(id); s != nil {
		return s.count.Load()
	}
	return 0
}

// later reports whether count comes after other. (They may have wrapped around: between them are
// fewer than 2³¹.)
func later(count, other uint32) bool { return int32(count-other) > 0 }

// untouched reports whether nothing was granted since a hold, for which returns was count, and
// which left the word after. word is the present one. The caller holds the lock.
func (s *returnStripe) untouched(id identity, word, after uint64, count uint32) bool {
	if later(s.lost, count) {
		return false
	}
	if run, ok := s.runs[id]; ok && later(run.last, count) {
		return word == run.to && after == run.from && (!run.again || !later(run.before, count))
	}
	return word == after
}

// nothingSince reports whether nothing was taken back since all of some reservations, for which
// returns was one of counts. The caller holds the lock.
func (s *returnStripe) nothingSince(id identity, counts iter.Seq[uint32]) bool {
	run, known := s.runs[id]
	for count := range counts {
		if known && later(run.last, count) || later(s.lost, count) {
			return false
		}
	}
	return true
}

// swap replaces a word by a lower one, and notes that unless what is taken back is what was granted
// last. The caller holds the lock.
func (s *returnStripe) swap(state *uint64, id identity, word, next uint64, last bool, until kernel.Instant) bool {
	if last {
		return atomic.CompareAndSwapUint64(state, word, next)
	}
	count := s.count.Add(1)
	if !atomic.CompareAndSwapUint64(state, word, next) {
		return false
	}
	run, known := s.runs[id]
	switch {
	case !known:
		run.from = word
	case run.to != word:
		run = returnRun{from: word, before: run.last, again: true}
	}
	run.to, run.last, run.until = next, count, until
	s.runs[id] = run
	return true
}

// sweep drops the runs that are no longer needed, if there are many. The caller holds the lock.
func (sp *Tables) sweep(s *returnStripe, now kernel.Instant) {
	if s.runs != nil && uint32(len(s.runs)) < s.most {
		return
	}
	left := make(map[identity]returnRun)
	for id, run := range s.runs {
		_, stored := sp.at(id).find(id)
		switch {
		case run.until <= now:
		case stored:
			left[id] = run
		case later(run.last, s.lost):
			s.lost = run.last
		}
	}
	s.runs, s.most = left, uint32(max(fewRuns, 2*len(left)))
}

// shrinkReturned drops all runs that are no longer needed.
func (sp *Tables) shrinkReturned(now kernel.Instant) {
	for s := range sp.returned.each() {
		s.mu.Lock()
		if s.runs != nil {
			s.most = 0
			sp.sweep(s, now)
		}
		s.mu.Unlock()
	}
}

// fewRuns is the number of runs of a stripe up to which none are dropped.
const fewRuns = 16

// settleBack settles a hold on a word, of which fewer events have happened than were held, at now.
// It reports whether the word has not changed meanwhile.
func (sp *Tables) settleBack(t *kernel.Taking, state *uint64, word uint64, h *Held, count uint32, now kernel.Instant, holding *kernel.Holding, n int) (ok bool) {
	id := identity{h.hi, h.lo}
	s := sp.returned.made(id)
	if word == h.state && s.count.Load() == count { // the usual case: computed before the lock is acquired
		holding.Untouched = true
		t.Settle(sp.word, word, now, holding, n)
		s.mu.Lock()
		ok = s.count.Load() == count && atomic.CompareAndSwapUint64(state, word, t.Next)
		s.mu.Unlock()
		return ok
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	holding.Untouched = s.untouched(id, word, h.state, count)
	t.Settle(sp.word, word, now, holding, n)
	if t.Next == word {
		return atomic.LoadUint64(state) == word
	}
	last := holding.Untouched && word == h.state
	if !last {
		sp.sweep(s, now)
	}
	return s.swap(state, id, word, t.Next, last, now+sp.fills)
}

// swapBack is Store.swap for a request that may take events back. f applies it.
func (sp *Tables) swapBack(state *uint64, id identity, req *kernel.Request, f change) (ok bool) {
	blank := sp.store.blank()
	defer sp.store.blanks.Put(blank)
	st, s := blank[:], sp.returned.made(id)
	for tries := 0; ; tries++ {
		word := atomic.LoadUint64(state)
		if word == kernel.Gone {
			return false // guarantee 4
		}
		st[0] = word
		if sp.applyBack(s, state, id, word, st, req, f) {
			return true // guarantee 5
		}
		backOff(tries)
	}
}

// applyBack applies f, which applies req, to a word that was loaded. It returns false if the word has
// changed meanwhile. It reads the clock before it acquires the lock.
func (sp *Tables) applyBack(s *returnStripe, state *uint64, id identity, word uint64, st []uint64, req *kernel.Request, f change) bool {
	fixed := req.Fixed
	now, lag := req.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if fixed == nil {
		if s.at == nil {
			s.at = new(kernel.Reading)
		}
		*s.at = kernel.Reading{Now: now, Lag: lag, Own: true}
		req.Fixed = s.at
		defer func() { req.Fixed = nil }()
	}
	last := false
	if after, count, ok := req.Mark(); ok {
		req.Untouched = s.untouched(id, word, after, count)
		last = req.Untouched && word == after
	} else if req.Op == kernel.OpCancel {
		last = s.nothingSince(id, req.Numbers())
	}
	switch changed := f(st); {
	case !changed || st[0] == word:
		return atomic.LoadUint64(state) == word
	case st[0] > word:
		return atomic.CompareAndSwapUint64(state, word, st[0])
	}
	sp.sweep(s, now)
	return s.swap(state, id, word, st[0], last, now+sp.fills)
}

// count adds the memory to stats.
func (sp *Tables) countReturned(stats *Stats) {
	for s := range sp.returned.each() {
		s.mu.Lock()
		stats.Bytes += sizeOf[returnStripe]() + uint64(len(s.runs))*3/2*(sizeOf[identity]()+sizeOf[returnRun]())
		s.mu.Unlock()
	}
}
