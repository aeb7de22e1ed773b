package memory

import (
	"math/bits"
	"runtime"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides on states of one word without a lock. AllowN and Take of a limiter (take.go in the root) call Allow and
// Apply, which find the word (table.go) and let the kernel decide on it: gcra.go for buckets, fixedwindow.go,
// pair.go for a SlidingWindow. What it cannot do, locked.go does: the key is new,
// its limit changes, its state is not a word, or has no room in one any more.

// Allow reports whether n events of key are granted, 1 ≤ n ≤ limit, if all keys have one limit.
// It is a faster Apply for callers that need nothing else.
func (sp *Space) Allow(clk *kernel.Timeline, key string, n int) bool {
	id := sp.store.identify(key)
	if sp.word != nil {
		if granted, ok := sp.allow(clk, id, nil, n); ok {
			return granted
		}
	}
	return sp.allowLocked(clk, id, sp.base, n)
}

// AllowAs is Allow with the limit that has the given tag. ok is false if the key is not there
// with that limit, or if its state is not one word.
func (sp *Space) AllowAs(clk *kernel.Timeline, key string, tag any, n int) (granted, ok bool) {
	return sp.allow(clk, sp.store.identify(key), tag, n)
}

// AllowBy is Allow with the limit lim.
func (sp *Space) AllowBy(clk *kernel.Timeline, key string, lim *Limit, n int) bool {
	id := sp.store.identify(key)
	if lim.word != nil {
		if granted, ok := sp.allow(clk, id, lim.tag, n); ok {
			return granted
		}
	}
	return sp.allowLocked(clk, id, lim, n)
}

// allow is Allow without a lock, with the limit that has the given tag. ok is false if the key is
// not there with that limit, or if its state is not one word.
func (sp *Space) allow(clk *kernel.Timeline, id identity, tag any, n int) (granted, ok bool) {
	t := sp.at(id)
	p, ok := t.find(id)
	if !ok {
		return false, false
	}
	by := sp.word
	if sp.varies {
		lim := sp.limitAt(t, p)
		switch {
		case lim.tag != tag:
			return false, false
		case n > 1 && n > lim.loose.Limit():
			return false, true
		}
		by = lim.word
	}
	state, renewed := t.word(p), false
	for tries := 0; ; tries++ {
		word := atomic.LoadUint64(state)
		if word >= kernel.NoWord {
			return false, false // guarantee 4
		}
		now, _ := clk.Now()
		next, granted := by.Decide(word, now, n)
		if granted && atomic.CompareAndSwapUint64(state, word, next) {
			return true, true // guarantee 5
		}
		if !granted && (renewed || !clk.Renew()) {
			return false, true // guarantee 5
		}
		if renewed = !granted; granted {
			backOff(tries)
		}
	}
}

// ApplyAs is Apply of an OpTake or OpPeek with the limit that has the given tag. It returns
// false if the key is not there with that limit, or if its state is not one word.
func (sp *Space) ApplyAs(key string, tag any, req *kernel.Request, a *kernel.Answer) (ok bool) {
	id := sp.store.identify(key)
	t := sp.at(id)
	p, ok := t.find(id)
	if !ok {
		return false
	}
	lim := sp.limitAt(t, p)
	return lim.tag == tag && lim.apply(t.word(p), req, a)
}

// Apply applies req to the state of key, with the limit lim, and fills in the answer.
func (sp *Space) Apply(key string, lim *Limit, req *kernel.Request, a *kernel.Answer) {
	sp.apply(sp.store.identify(key), lim, req, a)
}

// apply is Apply for the key with the given identity.
func (sp *Space) apply(id identity, lim *Limit, req *kernel.Request, a *kernel.Answer) {
	if lim.places(req) {
		t := sp.at(id)
		if p, ok := t.find(id); ok && (!sp.varies || sp.limitAt(t, p) == lim) && lim.apply(t.word(p), req, a) {
			return
		}
	}
	sp.update(id, lim, req, a)
}

// places reports whether req may be decided on a state of one word.
func (lim *Limit) places(req *kernel.Request) bool {
	switch {
	case lim.word == nil || req.Op == kernel.OpHold:
		return false
	case req.Op == kernel.OpReserve:
		return req.Hold.For <= 0
	}
	return req.Op <= kernel.OpPeek || req.Op == kernel.OpCharge && req.N <= lim.k.Limit()
}

// apply applies a request that places allows to a state of one word. It returns false if there is none,
// or if one word has no room for the next one.
func (lim *Limit) apply(state *uint64, req *kernel.Request, a *kernel.Answer) (ok bool) {
	if lim.decide(state, req, a) {
		return true
	}
	return req.Op != kernel.OpCharge && lim.space.store.swap(state, func(st []uint64) (changed bool) {
		return lim.step(st, req, a)
	}) && !waits(req, a)
}

// step applies a request that places allows to a state of one word that nobody else uses. It reports
// whether the state is to be stored: not if it has a turn ahead or is in debt.
func (lim *Limit) step(st []uint64, req *kernel.Request, a *kernel.Answer) (changed bool) {
	if req.Op == kernel.OpCharge && !lim.k.Grants(st, req) {
		return false
	}
	_, changed = lim.k.Step(st, req, a)
	return changed && !waits(req, a)
}

// waits reports whether a reservation is made whose turn is ahead. A word has no room for that.
func waits(req *kernel.Request, a *kernel.Answer) bool {
	return req.Op == kernel.OpReserve && a.Allowed && a.Wait > 0
}

// swap applies f, which reports whether it has changed the state that it is given, to a state of one
// word. It reads the clock itself. If the state was changed concurrently, it is called again with
// the new one. swap returns false if there is no state.
func (s *Store) swap(state *uint64, f func(st []uint64) (changed bool)) (ok bool) {
	blank := s.blank()
	defer s.blanks.Put(blank)
	st := blank[:]
	for tries := 0; ; tries++ {
		word := atomic.LoadUint64(state)
		if word >= kernel.NoWord {
			return false // guarantee 4
		}
		st[0] = word
		changed := f(st)
		if !changed && atomic.LoadUint64(state) == word || changed && atomic.CompareAndSwapUint64(state, word, st[0]) {
			return true // guarantee 5
		}
		backOff(tries)
	}
}

// backOff waits briefly after the tries-th failed swap, so that the goroutine that
// succeeded makes a few more decisions before the cache line moves to another core:
// moving it takes longer than deciding. BenchmarkHotKeyParallel measures the
// gain.
func backOff(tries int) {
	for i := range 2048 << min(tries, 3) {
		runtime.KeepAlive(i) // keeps the compiler from removing the loop
	}
}

// A decider is a kernel. If its states are one word, it decides on them without a lock, faster than
// by Step.
type decider struct {
	k    *kernel.Compiled
	word kernel.Word // k, if a state is one word; else nil
}

// decide is a faster swap for the requests of usual traffic. It returns false if swap has to be used:
// for reservations, for events that may not be granted at once, if the state has just changed, and
// for denials that a CoarseClock may turn into grants.
func (by *decider) decide(state *uint64, req *kernel.Request, a *kernel.Answer) (ok bool) {
	if req.Fixed != nil || req.Op == kernel.OpReserve {
		return false
	}
	word := atomic.LoadUint64(state)
	if word >= kernel.NoWord {
		return false // guarantee 4
	}
	var at kernel.Reading
	at.Now, at.Lag = req.Now()
	var t kernel.Taking
	switch n := req.N; {
	case req.Op == kernel.OpPeek || req.Op == kernel.OpCharge && n == 0:
		t.Charge(by.word, word, at.Now, 0)
		return (t.Granted || !req.Clock.Renew()) && by.replace(state, word, &t, &at, a)
	case !by.grantable(n):
		return false
	case req.Op == kernel.OpCharge:
		return t.Charge(by.word, word, at.Now, n) && by.replace(state, word, &t, &at, a)
	default:
		t.Take(by.word, word, at.Now, n)
		return by.settle(state, word, &t, &at, req.Clock, a)
	}
}

// grantable reports whether a key may be granted n events, at least one, at once.
func (by *decider) grantable(n int) bool { return n > 0 && n <= by.k.Limit() }

// byWord reports whether a kernel.Taking can be used for n events.
func (by *decider) byWord(n int) bool { return by.word != nil && by.grantable(n) }

// settle changes a state from word to what t leaves, and fills in the answer. at is the
// reading of the clock for t. It returns false if the state has changed, or if t is a
// denial and the clock can be read again.
func (by *decider) settle(state *uint64, word uint64, t *kernel.Taking, at *kernel.Reading, clk *kernel.Timeline, a *kernel.Answer) (ok bool) {
	if t.Granted {
		ok = atomic.CompareAndSwapUint64(state, word, t.Next)
	} else {
		ok = !clk.Renew() && atomic.LoadUint64(state) == word
	}
	if ok { // guarantee 5
		by.k.Tell(t, word, at, a)
	}
	return ok
}

// replace is settle for an answer that is about one more event, whatever t has counted.
func (by *decider) replace(state *uint64, word uint64, t *kernel.Taking, at *kernel.Reading, a *kernel.Answer) (ok bool) {
	if t.Next == word {
		ok = atomic.LoadUint64(state) == word
	} else {
		ok = atomic.CompareAndSwapUint64(state, word, t.Next)
	}
	if ok { // guarantee 5
		by.k.Tell(t, t.Next, at, a)
	}
	return ok
}

// BatchKeys is the number of keys in a Batch. A core loads ten to twenty cache lines at once, so more keys
// would gain little.
const BatchKeys = 64

// A Batch is keys whose states are being loaded. The state of a key that was not used lately is not in a
// cache: waiting for it takes longer than deciding on it, but a core can wait for many at once.
type Batch [BatchKeys]identity

// Touch begins to load the states of the first keys, and returns of how many: all, or BatchKeys. TakeOf
// then decides on each of them. The loads do not depend on each other, and no branch depends on
// them, so they overlap.
func (sp *Space) Touch(keys []string, b *Batch) (n int) {
	n = min(len(keys), BatchKeys)
	for i, key := range keys[:n] {
		b[i] = sp.store.identify(key)
	}
	for _, id := range b[:n] {
		t := sp.at(id)
		first, _ := bits.Mul64(id.hi, t.groups)
		_ = atomic.LoadUint64(&t.words[first*t.size]) // the compiler keeps it, because it is atomic
	}
	return n
}

// TakeOf applies req to the i-th key of b, and fills in the answer.
func (sp *Space) TakeOf(b *Batch, i int, req *kernel.Request, a *kernel.Answer) {
	sp.apply(b[i], sp.base, req, a)
}
