package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestRing writes each slot once, then goes around.
func TestRing(t *testing.T) {
	for most, width := range map[uint64]int{math.MaxUint32: 4, math.MaxUint32 + 1: 5} {
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
		sum := func(slot uint64) uint64 {
			turn := r.at(st, slot*second)
			return turn.sum
		}
		assert.EqualValues(t, 1+2+3, sum(slot+2))
		assert.EqualValues(t, 3, sum(slot+4))
		assert.Zero(t, sum(slot+5))
		assert.EqualValues(t, 2, r.back(st, slot+2, 1))
		assert.Equal(t, begun+5*second, r.Fresh(st))
		st = r.Spend(st, begun+4*second, 7)
		assert.EqualValues(t, 3+7, sum(slot+4), "two slots have left the ring")
		assert.True(t, r.Valid(st, InMemory))
		st[1]++
		assert.False(t, r.Valid(st, InMemory))
	}
}

// TestRingEndsWithTime: no state has an instant after the last one of its encoding, at which nothing is
// granted. A script cannot count slots from there.
func TestRingEndsWithTime(t *testing.T) {
	portable := Encoding{Tick: 1000, Portable: true, Varies: true}
	k := NewRollingWindow(8, 0, 4, 1)
	st := k.Spend(make([]uint64, k.Width()), portable.LastInstant(), 1)
	assert.True(t, k.Valid(st, portable))
	st[0]++
	assert.False(t, k.Valid(st, portable))
	assert.True(t, k.Valid(st, InMemory))
}

// TestNarrowRingCutsCounts: half a word holds no more.
func TestNarrowRingCutsCounts(t *testing.T) {
	more := uint64(math.MaxUint32) + 5
	if uint64(int(more)) != more {
		t.Skip("an int has 32 bits")
	}
	wide, narrow := newRing(2, second, math.MaxInt), newRing(2, second, 10)
	st := wide.Spend(make([]uint64, wide.Width()), begun, int(more))
	st, _ = narrow.Adopt(&slidingWindow{ring: wide}, st, begun, begun)
	assert.Equal(t, uint64(math.MaxUint32), narrow.back(st, begun/second, 0))
}

// TestRingAdoptsEmptySlots: a slot without events makes no difference to what is adopted.
func TestRingAdoptsEmptySlots(t *testing.T) {
	old, next := NewRollingWindow(10, 0, 2, 100).(*rollingWindow), NewRollingWindow(10, 0, 4, 50)
	st := old.Spend(make([]uint64, old.Width()), 110, 1)
	st = old.Spend(st, 210, 1)
	old.set(st, old.place(2), 0)
	_, lasting := next.Adopt(old, st, 210, 210)
	assert.True(t, lasting)
}
