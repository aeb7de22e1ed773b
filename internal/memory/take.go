package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// decide is a faster swap for the requests of usual traffic. It returns false if swap has to be used:
// for requests that leave a Grant or take something back, for events that may not be granted at once,
// if the state has just changed, and for denials that a CoarseClock may turn into grants.
func (sp *Tables) decide(state *uint64, req *kernel.Request, a *kernel.Answer) (ok bool) {
	if req.Fixed != nil || req.Op.Traces() || req.Op.TakesBack() {
		return false
	}
	word := atomic.LoadUint64(state)
	if word == kernel.Gone {
		return false // guarantee 4
	}
	var at kernel.Reading
	at.Now, at.Lag = req.Now()
	var t kernel.Taking
	switch n := req.N; {
	case req.Op == kernel.OpPeek:
		t.Charge(sp.word, word, at.Now, 0)
		return (t.Granted || !req.Clock.Renew()) && sp.replace(state, word, &t, &at, a)
	case !sp.grantable(n) && (req.Op != kernel.OpTakeUpTo || n == 0):
		return false
	case req.Op == kernel.OpCharge:
		return t.Charge(sp.word, word, at.Now, n) && sp.replace(state, word, &t, &at, a)
	case req.Op == kernel.OpTakeUpTo:
		n = t.TakeUpTo(sp.word, word, at.Now, n)
		if ok = sp.settle(state, word, &t, &at, req.Clock, a); ok && t.Granted {
			a.Granted = n
		}
		return ok
	default:
		t.Take(sp.word, word, at.Now, n)
		return sp.settle(state, word, &t, &at, req.Clock, a)
	}
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

// replace is settle for an answer that is about one more event, whatever t has counted.
func (sp *Tables) replace(state *uint64, word uint64, t *kernel.Taking, at *kernel.Reading, a *kernel.Answer) (ok bool) {
	if t.Next == word {
		ok = atomic.LoadUint64(state) == word
	} else {
		ok = atomic.CompareAndSwapUint64(state, word, t.Next)
	}
	if ok { // guarantee 5
		sp.k.Tell(t, t.Next, at, a)
	}
	return ok
}
