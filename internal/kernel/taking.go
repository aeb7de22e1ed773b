package kernel

// This file decides on states of one word in memory, faster than Step does: a state is passed by
// value, and nothing is allocated.

// A Taking is the result of an operation on a state of one word.
type Taking struct {
	Granted   bool
	Next      uint64  // the state after it
	ready     Instant // if denied: when it would be granted
	remaining int     // at Next
	fresh     Instant // likewise
}

// Take takes n events, 1 ≤ n ≤ limit. by is the Word of a kernel.
func (t *Taking) Take(by Word, word uint64, now Instant, n int) {
	if t.Next, t.Granted = by.Decide(word, now, n); !t.Granted {
		t.Next, t.ready = word, by.Await(word, now, n)
	}
	t.remaining, t.fresh = by.Describe(t.Next, now)
}

// Leave leaves word as it is, at now, although the request was granted.
func (t *Taking) Leave(by Word, word uint64, now Instant) {
	t.Next = word
	t.remaining, t.fresh = by.Describe(word, now)
}

// Tell sets a to the answer to an OpTake or an OpSettle with the given result on the state word,
// at a reading of the clock. For an OpSettle, word is the state after it. It is the answer of
// Step.
func (c *Compiled) Tell(t *Taking, word uint64, at *Reading, a *Answer) {
	*a = Answer{Allowed: t.Granted, Limit: c.Limit(), Remaining: t.remaining, ResetAfter: Until(t.fresh, at.Now, at.Lag)}
	if !t.Granted {
		a.RetryAfter = Until(t.ready, at.Now, at.Lag)
	} else if k, ok := c.Kernel.(*leaky); ok {
		a.Delay = Until(After(at.Now, k.hold([]uint64{word}, at.Now)), at.Now, at.Lag)
	}
}

// A Holding is a hold of events in a state of one word: what a Grant is for other states. The
// caller knows the number of the events.
type Holding struct {
	at            Instant // when they were spent
	before, after uint64  // the state before and after
}

// Hold returns the hold of the events that t has taken from word, and adds what an OpHold answers
// to the answer to an OpTake.
func (t *Taking) Hold(word uint64, at *Reading, a *Answer) Holding {
	a.Due = at.Now
	if a.Delay > 0 {
		a.Due += uint64(a.Delay) - at.Lag
	}
	return Holding{at.Now, word, t.Next}
}

// Settle settles a hold of n events of which actual have happened, and looks whether one more
// would be granted. It returns false if more events than n have happened, and those are not
// granted at now: they have to be charged.
func (t *Taking) Settle(by Word, word uint64, now Instant, h *Holding, n, actual int) (ok bool) {
	switch {
	case actual == n:
		t.Next = word
	case actual < n:
		t.Next = by.Refund(word, *h, n, n-actual, now)
	default:
		if t.Next, ok = by.Decide(word, now, actual-n); !ok {
			return false
		}
	}
	t.remaining, t.fresh = by.Describe(t.Next, now)
	if t.Granted = t.remaining > 0; !t.Granted {
		t.ready = by.Await(t.Next, now, 1)
	}
	return true
}

// ends returns the states before and after.
func (h *Holding) ends() ends { return ends{words{h.before}, words{h.after}} }

// Grant returns the Grant of a hold of n events that c made in the given epoch.
func (c *Compiled) Grant(h *Holding, n int, epoch uint32) *Grant {
	return &Grant{by: c, at: h.at, due: h.at, n: n, epoch: epoch, ends: []ends{h.ends()}}
}
