package step

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A plan answers each operation without a state, and leaves nothing to take back.
func TestPlanDecides(t *testing.T) {
	window := kernel.NewFixedWindow(5, 1000, true, kernel.InMemory)
	for _, tt := range []struct {
		k           kernel.Kernel
		limit, part int
	}{
		{kernel.NewUnlimited(), math.MaxInt, 0},
		{kernel.NewBlocked(), 0, 0},
		{NewAll([]kernel.Kernel{kernel.NewUnlimited(), kernel.NewUnlimited()}, kernel.InMemory), math.MaxInt, 0},
		{NewAll([]kernel.Kernel{kernel.NewUnlimited(), window, kernel.NewBlocked(), kernel.NewBlocked()}, kernel.InMemory), 0, 2},
	} {
		c := NewMachine(tt.k, kernel.InMemory)
		assert.True(t, c.Stateless())
		grants := tt.limit > 0
		for op := OpTake; op <= OpSettle; op++ {
			for _, n := range []int{0, 1, math.MaxInt} {
				if n == 0 && op == OpReserve {
					continue
				}
				var a Answer
				c.Decide(&Request{Op: op, N: n, MaxWait: kernel.Never - 1, Fixed: &Reading{Now: 7}}, &a)
				assert.Equal(t, []int{tt.limit, tt.limit, tt.part}, []int{a.Limit, a.Remaining, a.Part}, "op %d", op)
				assert.Zero(t, a.ResetAfter, "op %d", op)
				assert.False(t, a.Held, "op %d", op)
				assert.False(t, a.Excess, "op %d", op)
				switch op {
				case OpPeek, OpCharge, OpSettle: // the answer for one event
					assert.Equal(t, grants, a.Allowed, "op %d", op)
				default:
					assert.Equal(t, grants || n == 0, a.Allowed, "op %d of %d", op, n)
				}
				assert.Equal(t, !a.Allowed, a.RetryAfter == kernel.Never, "op %d of %d", op, n)
			}
		}
	}
	assert.False(t, NewMachine(NewAll([]kernel.Kernel{kernel.NewUnlimited(), window}, kernel.InMemory), kernel.InMemory).Stateless())
}

// TestPlanDecides_Open: a state from a store may say that it has open holds of a limit that has no states.
func TestPlanDecides_Open(t *testing.T) {
	c := NewMachine(kernel.NewUnlimited(), kernel.InMemory)
	words := make([]uint64, c.HoldWords())
	words[openHolds], words[holdsHeader+holdID], words[holdsHeader+holdEvents] = 1, 1, 4
	st := State{words, Opened}
	assert.True(t, c.ValidIn(st))
	by, st, _ := c.StepFrom(c, st, &Request{Op: OpSettle, N: 1, Hold: Handle{ID: 1}, Fixed: &Reading{}}, new(Answer))
	assert.True(t, by == c && st.IsPlain())
}
