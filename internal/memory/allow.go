package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file decides for callers that ask only whether events are granted. It does what apply.go
// does, in less time.

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
	t := sp.tableOf(id)
	at, ok := t.find(id)
	if !ok {
		return false, false
	}
	word := sp.word
	if sp.varies {
		lim := sp.limitAt(t, at)
		switch {
		case lim.tag != tag:
			return false, false
		case n > 1 && n > lim.loose.Limit():
			return false, true
		}
		word = lim.word
	}
	state, renewed := t.word(at), false
	for tries := 0; ; tries++ {
		old := atomic.LoadUint64(state)
		if old >= kernel.NoWord {
			return false, false // guarantee 4
		}
		now, _ := clk.Now()
		next, granted := word.Decide(old, now, n)
		if granted && atomic.CompareAndSwapUint64(state, old, next) {
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

// allowLocked is AllowBy under the lock.
func (sp *Space) allowLocked(
	clk *timeline.Timeline,
	id identity,
	lim *Limit,
	n int,
) (granted bool) {
	if lim.word == nil {
		if granted, ok := sp.allowState(clk, id, lim, n); ok {
			return granted
		}
	}
	req := step.Request{Op: step.OpTake, N: n, Clock: clk, Brief: true}
	var a step.Answer
	sp.applyLocked(id, lim, &req, &a)
	return a.Allowed
}

// allowState is Allow for a key with a state of several words that lim has left. Otherwise, ok is
// false.
func (sp *Space) allowState(
	clk *timeline.Timeline,
	id identity,
	lim *Limit,
	n int,
) (granted, ok bool) {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	at, ok := t.find(id)
	if !ok || sp.heavy(sh) {
		return false, false
	}
	word, refers := t.refers(at)
	switch {
	case refers:
		r := sh.arena.record(word)
		if t.width > 1 || !sh.arena.isPlain(r, lim.loose) {
			return false, false
		}
		sh.arena.grow(r, n, false)
		st := sh.arena.state(r)
		st.Words, granted, _ = lim.loose.Allow(st.Words, clk, n)
		sh.arena.set(r, lim.loose, st)
		return granted, true
	case t.width == 1:
		return false, false // it is a word of another limit
	}
	_, granted, _ = lim.loose.Allow(t.state(at), clk, n)
	return granted, true
}
