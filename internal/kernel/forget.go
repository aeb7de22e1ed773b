package kernel

import "slices"

// This file forgets grants of keys that were reset since, for a store that learns of the reset only
// when it takes events back.

// made returns the instant at which g was made, which may be before its events are charged.
func (g *Grant) made() Instant { return g.at - g.ahead }

// firstMade returns the earliest instant at which one of a line was made.
func firstMade(line []*Waiter) Instant {
	first := MaxInstant
	for _, w := range line {
		first = min(first, w.made())
	}
	return first
}

// Forget returns grant, the Grant of an OpCancel or OpSettle, without what was made until the key
// was reset at an instant, in the ticks of the kernel that made it. What is forgotten takes nothing
// back. The line that a Cancellation belongs to drops it as well, after its Settle.
func Forget(grant any, reset Instant) any {
	switch g := grant.(type) {
	case *Cancellation:
		forgets := func(w *Waiter) bool { return w.made() <= reset }
		c := &Cancellation{line: make([]*Waiter, 0, len(g.line)), Local: g.Local, forgotten: slices.Clone(g.forgotten)}
		for _, w := range g.line {
			if forgets(w) {
				c.forgotten = append(c.forgotten, w)
			} else {
				c.line = append(c.line, w)
			}
		}
		return c
	case *Grant:
		if g.made() <= reset {
			return &Grant{at: g.at, ahead: g.ahead, n: g.n}
		}
	}
	return grant
}
