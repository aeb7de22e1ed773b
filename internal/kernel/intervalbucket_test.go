package kernel

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestIntervalBucket: refills of four come each second after the first token was taken
// from a full bucket of ten.
func TestIntervalBucket(t *testing.T) {
	k := NewIntervalBucket(10, 4, second)
	st := k.Spend(make([]uint64, k.Width()), begun, 9)
	assert.Equal(t, []uint64{begun, 9}, st)
	for n, refills := range map[int]uint64{1: 0, 2: 1, 5: 1, 6: 2, 9: 2, 10: 3} {
		assert.Equal(t, begun+refills*second, k.Ready(st, begun, n), "%d", n)
	}
	for after, want := range map[uint64]int{0: 1, second - 1: 1, second: 5, 2 * second: 9, 3 * second: 10} {
		assert.Equal(t, want, k.Remaining(st, begun+after), "after %d ns", after)
	}
	assert.Equal(t, begun+3*second, k.Fresh(st))

	slower := NewIntervalBucket(10, 4, 3*second)
	st, lasting := slower.Adopt(k, st, begun+second+1, begun+second+1)
	assert.Equal(t, []uint64{begun + second + 1, 5}, st, "refills are counted from now on")
	assert.False(t, lasting)
}
