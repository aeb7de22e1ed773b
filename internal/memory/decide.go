package memory

import (
	"runtime"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file decides on states of one word without a lock. AllowN of a limiter (take.go in the root)
// calls Allow, and Take calls Apply (locked.go): they find the word (table.go) and let the kernel
// decide on it: gcra.go for buckets, fixedwindow.go, pair.go for a SlidingWindow. What it cannot
// do, locked.go does: the key is new, its limit changes, its state is not a word, or has no room in
// one any more.

// Allow reports whether n events of key are granted, 1 ≤ n ≤ limit, if all keys have one limit.
// It is a faster Apply for callers that need nothing else.
func (sp *Space) Allow(clk *timeline.Timeline, key string, n int) bool {
	id := sp.store.identify(key)
	if sp.word != nil {
		if granted, ok := sp.allow(clk, id, nil, n); ok {
			return granted
		}
	}
	return sp.allowLocked(clk, id, sp.base, n)
}

// AllowBy is Allow with the limit lim.
func (sp *Space) AllowBy(clk *timeline.Timeline, key string, lim *Limit, n int) bool {
	id := sp.store.identify(key)
	if lim.word != nil {
		if granted, ok := sp.allow(clk, id, lim.tag, n); ok {
			return granted
		}
	}
	return sp.allowLocked(clk, id, lim, n)
}

// AllowAs is Allow with the limit that has the given tag. ok is false if the key is not there
// with that limit, or if its state is not one word.
func (sp *Space) AllowAs(clk *timeline.Timeline, key string, tag any, n int) (granted, ok bool) {
	return sp.allow(clk, sp.store.identify(key), tag, n)
}

// allow is Allow without a lock, with the limit that has the given tag. ok is false if the key is
// not there with that limit, or if its state is not one word.
func (sp *Space) allow(clk *timeline.Timeline, id identity, tag any, n int) (granted, ok bool) {
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
		renewed = !granted
		if granted {
			backOff(tries)
		}
	}
}

// ApplyAs is Apply of an OpTake or OpPeek with the limit that has the given tag. It returns
// false if the key is not there with that limit, or if its state is not one word.
func (sp *Space) ApplyAs(key string, tag any, req *step.Request, a *step.Answer) (ok bool) {
	id := sp.store.identify(key)
	t := sp.at(id)
	p, ok := t.find(id)
	if !ok {
		return false
	}
	lim := sp.limitAt(t, p)
	return lim.tag == tag && lim.decide(t.word(p), req, a)
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
	k    *step.Machine
	word kernel.Word // k, if a state is one word; else nil
}

// decide applies a request that places allows to a state of one word. It returns false, and changes
// nothing, if there is none, or if one has no room for the next one. So it does for what is rare:
// events that are reserved or charged without being granted at once, and numbers of events that are
// granted always, or never.
func (by *decider) decide(state *uint64, req *step.Request, a *step.Answer) (ok bool) {
	looks := req.Op == step.OpPeek || req.Op == step.OpCharge && req.N == 0
	for tries, renewed := 0, req.Fixed != nil; ; tries++ {
		word := atomic.LoadUint64(state)
		if word >= kernel.NoWord || !looks && !by.grantable(req.N) {
			return false // guarantee 4
		}
		var at step.Reading
		at.Now, at.Lag = req.Now()
		var t step.Taking
		about := word
		switch {
		case looks:
			t.Charge(by.word, word, at.Now, 0)
		case req.Op == step.OpCharge:
			if !t.Charge(by.word, word, at.Now, req.N) {
				return false
			}
			about = t.Next
		default:
			t.Take(by.word, word, at.Now, req.N)
			if req.Op == step.OpReserve && !by.reserved(&t, word, &at, req, a) {
				return false
			}
		}
		if !t.Granted && !renewed && req.Clock.Renew() {
			renewed = true
			continue
		}
		if replaced(state, word, t.Next) { // guarantee 5
			by.k.Tell(&t, about, &at, a)
			if req.Op == step.OpReserve {
				a.Due = at.Now
			}
			return true
		}
		backOff(tries)
	}
}

// reserved reports whether the events of a reservation, which t takes, may happen at once.
func (by *decider) reserved(
	t *step.Taking,
	word uint64,
	at *step.Reading,
	req *step.Request,
	a *step.Answer,
) bool {
	by.k.Tell(t, word, at, a)
	return t.Granted && a.Delay == 0 && req.MaxWait >= 0
}

// replaced replaces word by next, and reports whether the state was word until then.
func replaced(state *uint64, word, next uint64) bool {
	if next == word {
		return atomic.LoadUint64(state) == word
	}
	return atomic.CompareAndSwapUint64(state, word, next)
}

// grantable reports whether a key may be granted n events, at least one, at once.
func (by *decider) grantable(n int) bool { return n > 0 && n <= by.k.Limit() }
