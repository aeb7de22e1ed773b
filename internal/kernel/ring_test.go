package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestRing writes each slot once, then goes around.
func TestRing(t *testing.T) {
	for most, width := range map[uint64]int{math.MaxUint32: 3, math.MaxUint32 + 1: 4} {
		if uint64(int(most)) != most {
			continue // an int has 32 bits
		}
		r := newRing(3, second, int(most))
		assert.Equal(t, width, r.Width())
		st := make([]uint64, r.Width())
		slot := begun / second
		for i := range uint64(3) {
			st = r.Spend(st, begun+i*second, int(i)+1)
		}
		assert.EqualValues(t, 1+2+3, r.sum(st, slot, slot+2))
		assert.EqualValues(t, 2, r.back(st, slot+2, 1))
		assert.Equal(t, begun+5*second, r.Fresh(st))
		st = r.Spend(st, begun+4*second, 7)
		assert.EqualValues(t, 3+7, r.sum(st, 0, math.MaxUint64), "two slots have left the ring")
		assert.True(t, r.Valid(st))
	}
}

// TestNarrowRingCutsCounts: half a word holds no more.
func TestNarrowRingCutsCounts(t *testing.T) {
	more := uint64(math.MaxUint32) + 5
	if uint64(int(more)) != more {
		t.Skip("an int has 32 bits")
	}
	wide, narrow := newRing(2, second, math.MaxInt), newRing(2, second, 10)
	st := wide.Spend(make([]uint64, wide.Width()), begun, int(more))
	st = narrow.adoptRing(&wide, st, more, begun)
	assert.Equal(t, uint64(math.MaxUint32), narrow.back(st, begun/second, 0))
}
