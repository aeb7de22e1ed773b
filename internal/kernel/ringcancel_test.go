package kernel

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestRingGivesBack: events leave their slot. While a reservation in the current slot is
// ahead, the ring is marked, because that reservation counted them.
func TestRingGivesBack(t *testing.T) {
	r := newRing(3, second, 10)
	slot := begun / second
	st := r.Spend(make([]uint64, r.Width()), begun, 5)
	st, gone := r.giveBack(st, begun, begun+1, 2)
	assert.True(t, gone)
	assert.EqualValues(t, 3, r.back(st, slot, 0))
	assert.Zero(t, st[0]&touched)

	st = r.Spend(st, begun+second/2, 1) // ahead
	st, gone = r.giveBack(st, begun, begun+1, 2)
	assert.True(t, gone)
	assert.EqualValues(t, 2, r.back(st, slot, 0))
	assert.NotZero(t, st[0]&touched)
	assert.Equal(t, begun+second/2, r.frontier(st))

	st, _ = r.giveBack(st, begun, begun+1, 3)
	assert.EqualValues(t, 2, r.back(st, slot, 0), "the slot has fewer events")

	st = r.Spend(st, begun+4*second, 1)
	_, gone = r.giveBack(st, begun, begun+2, 1)
	assert.False(t, gone, "they return if the reservation far ahead is cancelled")
}
