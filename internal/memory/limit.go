package memory

import "github.com/ratelimit-go/ratelimit/internal/step"

// A Limit is a limit of keys of a Space. A limit with a number exists once, so that pointers can be
// compared.
type Limit struct {
	space   uint64        // the serial of its space
	tag     any           // what the caller knows it by; nil for the base
	number  uint64        // 0 for the base, and for limits without a number
	decider               // for states of one word; zero if there are none of this limit
	loose   *step.Machine // for all other states, also those in the arena
}

// fitsWord reports whether req may be decided on a state of one word.
func (lim *Limit) fitsWord(req *step.Request) bool {
	switch {
	case lim.word == nil || req.Op == step.OpHold:
		return false
	case req.Op == step.OpReserve:
		return req.Hold.For <= 0
	}
	return req.Op <= step.OpPeek || req.Op == step.OpCharge && req.N <= lim.k.Limit()
}

// widen returns the state of the arena that equals a word, and its kernel.
func (lim *Limit) widen(word uint64) (k *step.Machine, st step.State) {
	wide := lim.word.Widen(word)
	return lim.loose, step.PlainState(wide[:])
}

// stepToWord applies a request whose time is fixed to a state that k left, and returns the word
// that is the next state. It returns false, and changes nothing, if the request does not change the
// state, or if no word equals the next state, as for a key with two limits.
func (lim *Limit) stepToWord(
	k *step.Machine,
	st step.State,
	req *step.Request,
	a *step.Answer,
) (next uint64, ok bool) {
	k, st, _ = lim.loose.Reconcile(k, st, req.Fixed.Now)
	if k != lim.loose {
		return 0, false
	}
	word, ok := lim.word.Narrow(st.Words, req.Fixed.Now)
	if !ok {
		return 0, false
	}
	next = word
	ok = lim.decide(&next, req, a)
	return next, ok && next != word
}
