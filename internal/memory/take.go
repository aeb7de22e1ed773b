package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// take is a faster swap for an OpTake. It returns false if swap has to be used: for other
// requests, if the state has just changed, and for denials that a CoarseClock may turn into
// grants.
func (sp *Tables) take(state *uint64, req *kernel.Request, a *kernel.Answer) (ok bool) {
	if !sp.takes(req) {
		return false
	}
	word := atomic.LoadUint64(state)
	if word == kernel.Gone {
		return false // guarantee 4
	}
	var at kernel.Reading
	at.Now, at.Lag = req.Now()
	var t kernel.Taking
	t.Take(sp.word, word, at.Now, req.N)
	return sp.settle(state, word, &t, &at, req.Clock, a)
}

// takes reports whether a kernel.Taking can be used for req, if states are one word.
func (sp *Tables) takes(req *kernel.Request) bool {
	return req.Op == kernel.OpTake && req.Fixed == nil && sp.grantable(req.N)
}

// grantable reports whether a key may be granted n events, at least one, at once.
func (sp *Tables) grantable(n int) bool { return n > 0 && n <= sp.k.Limit() }

// byWord reports whether a kernel.Taking can be used for n events.
func (sp *Tables) byWord(n int) bool { return sp.word != nil && sp.grantable(n) }

// settle changes a state from word to what t leaves, and fills in the answer. at is the
// reading of the clock for t. It returns false if the state has changed, or if t is a
// denial and the clock can be read again.
func (sp *Tables) settle(state *uint64, word uint64, t *kernel.Taking, at *kernel.Reading, clk *kernel.Timeline, a *kernel.Answer) (ok bool) {
	if t.Granted {
		ok = atomic.CompareAndSwapUint64(state, word, t.Next)
	} else {
		ok = !clk.Renew() && atomic.LoadUint64(state) == word
	}
	if ok { // guarantee 5
		sp.k.Tell(t, word, at, a)
	}
	return ok
}
