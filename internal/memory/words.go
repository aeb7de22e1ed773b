package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file decides on a few known keys together whose states are words: what a joint does, with
// less.

// MostWords is the most keys on which TakeWords decides.
const MostWords = 4

// A Word is the state of a key on which TakeWords decides together with others, if it is one
// word. The zero Word is to be filled in by Load.
type Word struct {
	by     *decider
	shard  *shard
	state  *uint64
	old    uint64 // the state before the decision
	n      int    // how many events to take
	clock  *timeline.Timeline
	at     step.Reading
	taking step.Taking
}

// Load finds the state of a key of which n events are to be taken. It returns false if a joint
// has to decide.
func (w *Word) Load(sp *Space, clk *timeline.Timeline, key string, n int) (ok bool) {
	by := &sp.base.decider
	if by.word == nil || !by.grantable(n) {
		return false
	}
	id := sp.store.identify(key)
	t := sp.at(id)
	p, ok := t.find(id)
	if !ok {
		return false
	}
	w.by, w.shard, w.state, w.n, w.clock = by, t.shard, t.word(p), n, clk
	return true
}

// TakeWords is a faster joint for an OpTake of a few keys whose states Load has found. It returns
// false if a joint has to decide: if a key has moved, was forgotten, or is given twice.
//
// All words in a table that was replaced are gone, and one of a locked shard is not replaced.
func TakeWords(words []Word) (ok bool) {
	var room [MostWords]*shard
	locks := room[:0]
	for i := range words {
		locks = append(locks, words[i].shard)
	}
	locks = lockAll(locks)
	defer unlockAll(locks)
	owned := 0
	defer func() {
		for i := range words[:owned] { // if one is still gone, the user's clock has panicked
			atomic.CompareAndSwapUint64(words[i].state, gone, words[i].old)
		}
	}()
	for ok = true; ok && owned < len(words); {
		w := &words[owned]
		if ok = atomic.LoadUint64(w.state) < kernel.NoWord; ok {
			// Only under its lock does it become one.
			w.old = atomic.SwapUint64(w.state, gone) // guarantee 3
			owned++
		}
	}
	granted := ok
	for i := range words[:owned] {
		w := &words[i]
		if i > 0 && w.clock == words[0].clock {
			w.at = words[0].at
		} else {
			w.clock.Renew()
			w.at.Now, w.at.Lag = w.clock.Now()
		}
		w.taking.Take(w.by.word, w.old, w.at.Now, w.n)
		granted = granted && w.taking.Granted
	}
	for i := range words[:owned] {
		w := &words[i]
		if !granted && w.taking.Granted {
			w.taking.Leave(w.by.word, w.old, w.at.Now)
		}
		atomic.StoreUint64(w.state, w.taking.Next)
	}
	return ok
}

// Answer is what the key answers, as in an asked.
func (w *Word) Answer(a *step.Answer) { w.by.k.Tell(&w.taking, w.old, &w.at, a) }
