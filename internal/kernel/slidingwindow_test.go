package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestFigureWeightedPair is the example of the definition: 9 before, 5 now, a
// quarter in, limit 10: 9·0.75 + 5 = 11.75, refused.
func TestFigureWeightedPair(t *testing.T) {
	const w = uint64(time.Minute)
	k := NewSlidingWindow(10, 1, w, InMemory.Varying())
	st := k.Spend(make([]uint64, k.Width()), 7*w, 9)
	now := 8*w + w/4
	st = k.Spend(st, now, 5)
	assert.Zero(t, k.Remaining(st, now))
	// 9·(1−e) + 5 + 1 ≤ 10 from e = 5/9 on: 33⅓ s.
	assert.Equal(t, 8*w+33_333_333_334, k.Ready(st, now, 1))
	// Compared exactly, not after flooring: ⌊9·0.75⌋ + 1 + 3 = 10 would fit, 10.75 does not.
	st = k.Spend(make([]uint64, k.Width()), 7*w, 9)
	st = k.Spend(st, now, 1)
	assert.Equal(t, 2, k.Remaining(st, now))
	assert.Greater(t, k.Ready(st, now, 3), now)
}
