package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

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
	if word == kernel.Gone {
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
