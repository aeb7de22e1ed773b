package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A Held is what Settle needs of a hold on a state of one word.
type Held struct {
	kernel.Holding
	hi        uint64 // the identity of the key
	lo, epoch uint32
}

// Hold is a faster Apply for an OpHold of n events. If they are granted, it fills in h. It
// returns false if Apply has to be used.
func (sp *Tables) Hold(clk *kernel.Timeline, key string, n int, h *Held, a *kernel.Answer) (ok bool) {
	if sp.word == nil || n < 1 || n > sp.k.Limit() {
		return false
	}
	id := sp.store.identify(key)
	tbl := sp.at(id)
	p, ok := tbl.find(id)
	if !ok {
		return false
	}
	// If the swap succeeds, the key was in this table until then, and not forgotten: a later
	// epoch has begun if it is forgotten afterwards.
	epoch := tbl.shard.epoch.now()
	for tries := 0; ; tries++ {
		state := tbl.word(p)
		word := atomic.LoadUint64(state)
		if word == kernel.Gone {
			return false // guarantee 4
		}
		var at kernel.Reading
		at.Now, at.Lag = clk.Now()
		var t kernel.Taking
		t.Take(sp.word, word, at.Now, n)
		switch {
		case sp.settle(state, word, &t, &at, clk, a):
			*h = Held{t.Hold(word, &at, a), id.hi, id.lo, epoch}
			return true
		case !t.Granted:
			return false
		}
		backOff(tries)
	}
}

// Settle is a faster Apply for an OpSettle of a hold of n events of which actual have happened.
// It returns false, and has changed nothing, if Apply has to be used: with the Grant of h or, if
// more events have happened, for an OpCharge of the others.
func (sp *Tables) Settle(clk *kernel.Timeline, h *Held, n, actual int, a *kernel.Answer) (ok bool) {
	if actual-n > sp.k.Limit() {
		return false
	}
	id := identity{h.hi, h.lo}
	for tries := 0; ; tries++ {
		tbl := sp.at(id)
		p, ok := tbl.find(id)
		if !ok {
			return false
		}
		state := tbl.word(p)
		word := atomic.LoadUint64(state)
		if word == kernel.Gone {
			sh, _ := sp.lock(id) // waits until the state has moved, or a Joint gives it up
			sh.mu.Unlock()
			continue
		}
		if tbl.shard.epoch.now() != h.epoch { // read after the state: see epoch
			return false
		}
		var at kernel.Reading
		at.Now, at.Lag = clk.Now()
		var t kernel.Taking
		if !t.Settle(sp.word, word, at.Now, &h.Holding, n, actual) {
			return false
		}
		if t.Next == word && atomic.LoadUint64(state) == word || t.Next != word && atomic.CompareAndSwapUint64(state, word, t.Next) {
			sp.k.Tell(&t, t.Next, &at, a) // guarantee 5
			return true
		}
		backOff(tries)
	}
}

// Grant returns the Grant of a hold of n events.
func (sp *Tables) Grant(h *Held, n int) *kernel.Grant { return sp.k.Grant(&h.Holding, n, h.epoch) }
