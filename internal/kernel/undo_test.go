package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestFreshWaitsForTheFrontier checks that a key is not forgotten before the latest
// promised instant, even if no event counts any more.
func TestFreshWaitsForTheFrontier(t *testing.T) {
	second := uint64(time.Second)
	for name, kernel := range map[string]Kernel{
		"fixed":   NewFixedWindow(10, second, true, InMemory),
		"sliding": NewSlidingWindow(10, 1, second),
		"rolling": NewRollingWindow(10, 0, 1, second),
		"log":     NewSlidingLog(10, second, false),
	} {
		k := Compile(kernel, InMemory)
		st := k.Spend(make([]uint64, k.Width()), 10, 10)
		var line []*Waiter
		for range 3 {
			g := &Grant{by: k, n: 3}
			g.at = k.Ready(st, 10, g.n)
			g.due = g.at
			st, g.traces = k.reserve(st, 10, g.at, g.n, nil)
			line = append(line, NewWaiter(g, g.due, false))
		}
		for _, w := range line[:2] { // the last one stays
			w.asked = true
			var out any
			st, _, out = k.undo(st, 10, &Cancellation{line: line})
			for i, to := range out.(*Undone).done[0] {
				line[i].parts[0] = to
			}
			w.asked, w.cancelled = false, true
		}
		assert.GreaterOrEqual(t, k.Fresh(st), line[2].at, name)
		assert.GreaterOrEqual(t, k.Ready(st, 10, 1), line[2].at, "%s: no caller overtakes it", name)
	}
}
