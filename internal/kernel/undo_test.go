package kernel

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFreshWaitsForTheFrontier checks that a key is not forgotten before the latest
// promised instant, even if no event counts any more.
func TestFreshWaitsForTheFrontier(t *testing.T) {
	second := uint64(time.Second)
	for name, kernel := range map[string]Kernel{
		"fixed":   NewFixedWindow(10, second, true, InMemory),
		"sliding": NewSlidingWindow(10, 1, second, InMemory.Varying()),
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
			st, _, out = k.undo(st, 10, &Cancellation{line: line}, nil)
			for i, to := range out.(*Undone).done[0] {
				line[i].parts[0] = to
			}
			w.asked, w.cancelled = false, true
		}
		assert.GreaterOrEqual(t, k.Fresh(st), line[2].at, name)
		assert.GreaterOrEqual(t, k.Ready(st, 10, 1), line[2].at, "%s: no caller overtakes it", name)
	}
}

// TestLineIsUndone: when all reservations of a line are cancelled, in whatever order,
// the key is as if none had been made.
func TestLineIsUndone(t *testing.T) {
	for name, c := range each(t) {
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}} {
			used := 10
			if name == "leaky" {
				used = 1 // a full queue has no room
			}
			st, _, a := do(c, c.NewState(), begun, Request{Op: OpTake, N: min(used, c.Limit())})
			require.True(t, a.Allowed, name)
			_, _, before := do(c, slices.Clone(st), begun, Request{Op: OpPeek})
			var line Line
			var waiters []*Waiter
			for range order {
				st, _, a = do(c, st, begun, Request{Op: OpReserve, N: 2})
				require.True(t, a.Allowed, name)
				waiters = append(waiters, NewWaiter(a.Grant.(*Grant), a.Due, false))
				line.Insert(waiters[len(waiters)-1], begun)
			}
			_, _, a = do(c, slices.Clone(st), begun, Request{Op: OpPeek})
			require.NotEqual(t, before, a, name)
			for _, i := range order {
				cancelled := line.Cancel([]*Waiter{waiters[i]}, begun)
				if cancelled == nil {
					continue // those behind it stay, and so does it for now
				}
				st, _, a = do(c, st, begun, Request{Op: OpCancel, Grant: cancelled})
				line.Release()
				line.Settle(cancelled, a.Grant.(*Undone))
			}
			assert.Zero(t, line.Len(), "%s, %v", name, order)
			_, _, after := do(c, st, begun, Request{Op: OpPeek})
			assert.Equal(t, before, after, "%s, %v", name, order)
		}
	}
}
