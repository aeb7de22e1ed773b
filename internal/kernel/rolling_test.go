package kernel

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestRollingWindow grants 10 in two periods, and at most 6 in each.
func TestRollingWindow(t *testing.T) {
	k := NewRollingWindow(10, 6, 2, second)
	assert.Equal(t, 6, k.Limit())
	st := k.Spend(make([]uint64, k.Width()), begun+5, 6)
	assert.Zero(t, k.Remaining(st, begun+5))
	for n, periods := range map[int]uint64{1: 1, 4: 1, 5: 2, 6: 2} {
		assert.Equal(t, begun+periods*second, k.Ready(st, begun+5, n), "%d", n)
	}
	assert.Equal(t, begun+2*second, k.Fresh(st))

	free := NewRollingWindow(10, 0, 2, second)
	assert.Equal(t, 4, free.Remaining(st, begun+5), "without a limit for each period")
	longer := NewRollingWindow(10, 0, 3, second)
	st, lasting := longer.Adopt(k, st, begun+second, begun+second)
	assert.True(t, lasting)
	assert.Equal(t, 4, longer.Remaining(st, begun+2*second))
	assert.Equal(t, begun+3*second, longer.Fresh(st), "the events keep their time")
}
