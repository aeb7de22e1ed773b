package step

import (
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides on states of one word in memory, faster than Step does: a state is passed by
// value, and nothing is allocated.

// A WordStep is the result of an operation on a state of one word.
type WordStep struct {
	Granted   bool
	Next      uint64         // the state after it
	ready     kernel.Instant // if denied: when it would be granted
	remaining int            // at Next
	fresh     kernel.Instant // likewise
}

// Take takes n events, 1 ≤ n ≤ limit. by is the Word of a kernel.
func (t *WordStep) Take(by kernel.Word, word uint64, now kernel.Instant, n int) {
	t.Next, t.Granted = by.Decide(word, now, n)
	if !t.Granted {
		t.Next, t.ready = word, by.Await(word, now, n)
	}
	t.remaining, t.fresh = by.Describe(t.Next, now)
}

// UpTo returns how many events an OpTake with UpTo takes: as many of n ≥ 1 as remain, or one, which
// is denied. by is the Word of a kernel.
func UpTo(by kernel.Word, word uint64, now kernel.Instant, n int) int {
	remaining, _ := by.Describe(word, now)
	return upTo(n, remaining)
}

// Charge takes n events, 0 ≤ n ≤ limit, and looks whether one more would be granted. It returns
// false if they are not granted at now: they have to be charged nevertheless.
func (t *WordStep) Charge(by kernel.Word, word uint64, now kernel.Instant, n int) (ok bool) {
	t.Next = word
	if n > 0 {
		t.Next, ok = by.Decide(word, now, n)
		if !ok {
			return false
		}
	}
	t.remaining, t.fresh = by.Describe(t.Next, now)
	t.Granted = t.remaining > 0
	if !t.Granted {
		t.ready = by.Await(t.Next, now, 1)
	}
	return true
}

// Leave leaves word as it is, at now, although the request was granted.
func (t *WordStep) Leave(by kernel.Word, word uint64, now kernel.Instant) {
	t.Next = word
	t.remaining, t.fresh = by.Describe(word, now)
}

// Tell sets a to the answer to a request with the given result on the state word, at a reading of
// the clock: it is the answer of Step. Of an OpCharge or OpPeek, word is the state after it.
func (c *Machine) Tell(t *WordStep, word uint64, at *Reading, a *Answer) {
	*a = Answer{
		Decision: Decision{
			Allowed:    t.Granted,
			Limit:      c.Limit(),
			Remaining:  t.remaining,
			ResetAfter: kernel.Until(t.fresh, at.Now, at.Lag),
		},
	}
	if !t.Granted {
		a.RetryAfter = kernel.Until(t.ready, at.Now, at.Lag)
	} else if c.queues {
		delay := c.Kernel.(kernel.Word).DelayOf(word, at.Now)
		a.Delay = kernel.Until(kernel.After(at.Now, delay), at.Now, at.Lag)
	}
}
