package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// MostWords is the most keys on which TakeWords decides.
const MostWords = 4

// A Word is the state of a key on which TakeWords decides together with others, if it is one
// word. The zero Word is to be filled in by Load.
type Word struct {
	tables *Tables
	shard  *shard
	state  *uint64
	word   uint64 // the state when it was loaded
	n      int    // how many events to take
	clock  *kernel.Timeline
	now    kernel.Instant // its reading
	lag    uint64
	taking kernel.Taking
}

// Load loads the state of a key of which n events are to be taken. It returns false if a Joint
// has to decide.
func (w *Word) Load(sp *Tables, clk *kernel.Timeline, key string, n int) (ok bool) {
	if !sp.byWord(n) {
		return false
	}
	id := sp.store.identify(key)
	t := sp.at(id)
	p, ok := t.find(id)
	if !ok {
		return false
	}
	w.tables, w.shard, w.state, w.n, w.clock = sp, t.shard, t.word(p), n, clk
	w.word = atomic.LoadUint64(w.state)
	return w.word != kernel.Gone // guarantee 4
}

// TakeWords is a faster Joint, which is explained in together.go, for an OpTake of a
// few keys whose states Load has loaded. It returns false if a Joint has to decide: if a key is
// given twice, if a state has just changed, and for denials that a CoarseClock may turn into
// grants.
//
// It reads the clocks after it has loaded all states. If the request is denied, it takes no lock:
// the states have only to be the same still. If not, it owns all states but the last. Then it
// swaps that one, for which no lock is necessary, and replaces the others.
func TakeWords(words []Word) (ok bool) {
	granted := true
	for i := range words {
		w := &words[i]
		for f := range words[:i] {
			if words[f].state == w.state {
				return false
			}
		}
		if i > 0 && w.clock == words[0].clock {
			w.now, w.lag = words[0].now, words[0].lag
		} else {
			w.now, w.lag = w.clock.Now()
		}
		w.taking.Take(w.tables.word, w.word, w.now, w.n)
		granted = granted && w.taking.Granted
	}
	if granted {
		return swapWords(words)
	}
	for i := range words {
		w := &words[i]
		if w.clock.Renew() || atomic.LoadUint64(w.state) != w.word { // guarantee 5
			return false
		}
		if w.taking.Granted {
			w.taking.Leave(w.tables.word, w.word, w.now)
		}
	}
	return true
}

// Answer is what the key answers, as in an Asked.
func (w *Word) Answer(a *kernel.Answer) {
	w.tables.k.Tell(&w.taking, w.word, &kernel.Reading{Now: w.now, Lag: w.lag}, a)
}

// swapWords replaces all states by the next ones, if they have not changed.
func swapWords(words []Word) (ok bool) {
	last := len(words) - 1
	var room [MostWords]jointLock
	locks := room[:0]
	for i := range words[:last] {
		locks = withLock(locks, words[i].shard.lockOf())
	}
	for _, l := range locks {
		l.mu.Lock()
	}
	// If a table has been replaced since its state was loaded, all states in it are Gone.
	// Otherwise, it is not replaced while its shard is locked.
	owned := 0
	for owned < last && atomic.CompareAndSwapUint64(words[owned].state, words[owned].word, kernel.Gone) { // guarantees 3 and 5
		owned++
	}
	ok = owned == last && sameTime(words) && atomic.CompareAndSwapUint64(words[last].state, words[last].word, words[last].taking.Next)
	for i := range words[:owned] {
		w := &words[i]
		next := w.word
		if ok {
			next = w.taking.Next
		}
		atomic.StoreUint64(w.state, next)
	}
	for _, l := range locks {
		l.mu.Unlock()
	}
	return ok
}

// sameTime reports whether no caller has seen a user's clock show more since it was read, which
// may have been before a wait for locks: that caller may have found a state unchanged.
func sameTime(words []Word) bool {
	for i := range words {
		w := &words[i]
		if !w.clock.Foreign() {
			continue
		}
		if now, _ := w.clock.Inside(w.now, w.lag); now > w.now {
			return false
		}
	}
	return true
}
