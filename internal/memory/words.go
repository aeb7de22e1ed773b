package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file decides together on a few known keys whose states are words. A joint would give the
// same answer, with more work.

// MostWords is the most keys on which TakeWords decides.
const MostWords = 4

// A Word is the state of a key on which TakeWords decides together with others, if it is one
// word. The zero Word is to be filled in by Load.
type Word struct {
	decider *decider
	shard   *shard
	state   *uint64
	old     uint64 // the state before the decision
	n       int    // how many events to take
	clock   *timeline.Timeline
	at      step.Reading
	taking  step.WordStep
}

// Load finds the state of a key of which n events are to be taken. It returns false if a joint
// has to decide.
func (w *Word) Load(sp *Space, clk *timeline.Timeline, key string, n int) (ok bool) {
	d := &sp.base.decider
	if d.word == nil || !d.grantable(n) {
		return false
	}
	id := sp.store.identify(key)
	t := sp.tableOf(id)
	at, ok := t.find(id)
	if !ok {
		return false
	}
	w.decider, w.shard, w.state, w.n, w.clock = d, t.shard, t.word(at), n, clk
	return true
}

// TakeWords is a faster joint for an OpTake of a few keys whose states Load has found. It returns
// false if a joint has to decide: if a key has moved, was forgotten, or is given twice.
//
// It need not look in the directory again: all words in a table that was replaced are gone, and the
// table of a locked shard is not replaced.
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
		for i := range words[:owned] { // if a word is still gone, the user's clock has panicked
			atomic.CompareAndSwapUint64(words[i].state, gone, words[i].old)
		}
	}()
	ok = true
	for i := range words {
		w := &words[i]
		if atomic.LoadUint64(w.state) >= kernel.NoWord {
			ok = false
			break
		}
		// The word stays a state, because it becomes another word only under the lock.
		w.old = atomic.SwapUint64(w.state, gone) // guarantee 3
		owned++
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
		w.taking.Take(w.decider.word, w.old, w.at.Now, w.n)
		granted = granted && w.taking.Granted
	}
	for i := range words[:owned] {
		w := &words[i]
		if !granted && w.taking.Granted {
			w.taking.Leave(w.decider.word, w.old, w.at.Now)
		}
		atomic.StoreUint64(w.state, w.taking.Next)
	}
	return ok
}

// Answer sets a to what the key answers, as a jointKey does.
func (w *Word) Answer(a *step.Answer) { w.decider.k.Tell(&w.taking, w.old, &w.at, a) }
