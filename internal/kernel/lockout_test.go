package kernel

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The length of a lock is doubled exactly, also where that overflows a word.
func TestLockoutLasts(t *testing.T) {
	for _, shortest := range []uint64{1, 2, 3, 1e9, 1<<62 + 1, math.MaxInt64} {
		for _, longest := range []uint64{shortest, shortest + 1, math.MaxInt64} {
			if longest > math.MaxInt64 {
				continue
			}
			k := &lockout{shortest: shortest, longest: longest}
			for doublings := range uint64(mostDoublings + 1) {
				want := new(big.Int).Lsh(new(big.Int).SetUint64(shortest), uint(doublings))
				if most := new(big.Int).SetUint64(longest); want.Cmp(most) > 0 {
					want = most
				}
				assert.Equal(t, want.Uint64(), k.lasts(doublings), "%d, %d times", shortest, doublings)
			}
		}
	}
}

// A state that no history of events leads to is no state.
func TestLockoutValid(t *testing.T) {
	k := NewLockout(5, 100, 10, 1000)
	assert.True(t, k.Valid([]uint64{5, 7, 3, mostDoublings, MostCounted}, InMemory))
	for _, st := range [][]uint64{
		{MaxInstant + 1, 7, 3, 1, 1},
		{5, MaxInstant + 1, 3, 1, 1},
		{5, 7, MaxInstant + 1, 1, 1},
		{5, 7, 3, mostDoublings + 1, 1},
		{5, 7, 3, 1, MostCounted + 1},
	} {
		assert.False(t, k.Valid(st, InMemory), "%v", st)
	}
}
