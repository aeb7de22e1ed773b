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

// Forget returns c without what was made until the key was reset at an instant, in the ticks of the
// kernel that made it. What is forgotten takes nothing back. The line that c belongs to drops it as
// well, after its Settle.
func Forget(c *Cancellation, reset Instant) *Cancellation {
	rest := &Cancellation{line: make([]*Waiter, 0, len(c.line)), Local: c.Local, forgotten: slices.Clone(c.forgotten)}
	for _, w := range c.line {
		if w.made() <= reset {
			rest.forgotten = append(rest.forgotten, w)
		} else {
			rest.line = append(rest.line, w)
		}
	}
	return rest
}
