package memory

import (
	"runtime"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A decider decides on states of one word without a lock, faster than step.Machine.Step. The zero
// decider is that of a limit whose states are not one word.
type decider struct {
	k    *step.Machine
	word kernel.Word // what k does with words
}

// decide applies a request to a state of one word, if Limit.fitsWord is true for the request. It
// returns false, and changes nothing, if the word is no state, or if a word has no room for the
// next state. It also returns false in rare cases: if events that are reserved or charged are not
// granted at once, and for numbers of events that are always granted, or never.
func (d *decider) decide(state *uint64, req *step.Request, a *step.Answer) (ok bool) {
	peeks := req.Op == step.OpPeek || req.Op == step.OpCharge && req.N == 0
	n := req.Least()
	for tries, renewed := 0, req.Fixed != nil; ; tries++ {
		word := atomic.LoadUint64(state)
		if word >= kernel.NoWord || !peeks && !d.grantable(n) {
			return false // guarantee 4
		}
		var at step.Reading
		at.Now, at.Lag = req.Now()
		var taking step.WordStep
		described := word
		switch {
		case peeks:
			taking.Charge(d.word, word, at.Now, 0)
		case req.Op == step.OpCharge:
			if !taking.Charge(d.word, word, at.Now, req.N) {
				return false
			}
			described = taking.Next
		default:
			if req.UpTo {
				n = step.UpTo(d.word, word, at.Now, req.N)
			}
			taking.Take(d.word, word, at.Now, n)
			if req.Op == step.OpReserve && !d.reservesNow(&taking, word, &at, req, a) {
				return false
			}
		}
		if !taking.Granted && !renewed && req.Clock.Renew() {
			renewed = true
			continue
		}
		if replaced(state, word, taking.Next) { // guarantee 5
			d.k.Tell(&taking, described, &at, a)
			if req.Op == step.OpReserve {
				a.Due = at.Now
			}
			if req.UpTo && a.Allowed {
				a.Granted = n
			}
			return true
		}
		backOff(tries)
	}
}

// reservesNow reports whether the events of a reservation, which taking has, may happen at once. It
// sets a to the answer.
func (d *decider) reservesNow(
	taking *step.WordStep,
	word uint64,
	at *step.Reading,
	req *step.Request,
	a *step.Answer,
) bool {
	d.k.Tell(taking, word, at, a)
	return taking.Granted && a.Delay == 0 && req.MaxWait >= 0
}

// replaced replaces word by next, and reports whether the state was word until then.
func replaced(state *uint64, word, next uint64) bool {
	if next == word {
		return atomic.LoadUint64(state) == word
	}
	return atomic.CompareAndSwapUint64(state, word, next)
}

// grantable reports whether a key may be granted n events, at least one, at once.
func (d *decider) grantable(n int) bool { return n > 0 && n <= d.k.Limit() }

// backOff waits briefly after the tries-th failed swap, so that the goroutine that
// succeeded makes a few more decisions before the cache line moves to another core:
// moving it takes longer than deciding. BenchmarkHotKeyParallel measures the
// gain.
func backOff(tries int) {
	for i := range 2048 << min(tries, 3) {
		runtime.KeepAlive(i) // keeps the compiler from removing the loop
	}
}
