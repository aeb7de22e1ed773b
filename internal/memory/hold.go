package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A Held is what is remembered of a hold on a state of one word, together with the number of
// events and the Due of the answer.
type Held struct {
	state     uint64 // after the hold
	hi        uint64 // the identity of the key
	lo, epoch uint32
}

// Hold is a faster Apply for an OpHold of n events. If they are granted, it fills in h, and sets
// returns, which Settle needs as well. (In h, it would be padded to a whole word.) Hold returns
// false if Apply has to be used.
func (sp *Tables) Hold(clk *kernel.Timeline, key string, n int, h *Held, returns *uint32, a *kernel.Answer) (ok bool) {
	if !sp.byWord(n) {
		return false
	}
	id := sp.store.identify(key)
	tbl := sp.at(id)
	p, ok := tbl.find(id)
	if !ok {
		return false
	}
	// If the swap succeeds, the key was in this table until then, and not forgotten. If it is
	// forgotten afterwards, a later epoch begins.
	epoch := sp.epochs.now(id)
	state := tbl.word(p)
	for tries := 0; ; tries++ {
		word := atomic.LoadUint64(state)
		if word == kernel.Gone {
			return false // guarantee 4
		}
		count := sp.returns(id) // between the load and the swap: see returned.go
		var at kernel.Reading
		at.Now, at.Lag = clk.Now()
		var t kernel.Taking
		t.Take(sp.word, word, at.Now, n)
		switch {
		case sp.settle(state, word, &t, &at, clk, a):
			a.SetDue(&at)
			*h, *returns = Held{t.Next, id.hi, id.lo, epoch}, count
			return true
		case !t.Granted:
			return false
		}
		backOff(tries)
	}
}

// Settle is Apply for an OpSettle of a hold of which n events have happened.
func (sp *Tables) Settle(clk *kernel.Timeline, h *Held, returns uint32, held int, due kernel.Instant, n int, a *kernel.Answer) {
	holding := kernel.Holding{N: held, At: due, After: h.state}
	if sp.settleWord(clk, h, returns, &holding, n, a) {
		return
	}
	// There is nothing to take back.
	req := kernel.Request{Op: kernel.OpSettle, N: max(0, n-held), Grant: kernel.Nothing, Clock: clk}
	sp.apply(identity{h.hi, h.lo}, &req, a)
}

// settleWord is Settle, if the state is in the table. It returns false if the key may have been
// forgotten since the hold, or if more events have happened than are granted.
func (sp *Tables) settleWord(clk *kernel.Timeline, h *Held, returns uint32, holding *kernel.Holding, n int, a *kernel.Answer) (ok bool) {
	if n-holding.N > sp.k.Limit() {
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
		if sp.epochs.forgotten(id, h.epoch) { // read after the state: see epoch.go
			return false
		}
		var at kernel.Reading
		at.Now, at.Lag = clk.Now()
		var t kernel.Taking
		if sp.blind && n < holding.N {
			if sp.settleBack(&t, state, word, h, returns, at.Now, holding, n) {
				sp.k.Tell(&t, t.Next, &at, a) // guarantee 5
				return true
			}
			backOff(tries)
			continue
		}
		if !t.Settle(sp.word, word, at.Now, holding, n) {
			return false
		}
		if sp.replace(state, word, &t, &at, a) {
			return true
		}
		backOff(tries)
	}
}
