package kernel

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAfter(t *testing.T) {
	assert.EqualValues(t, 7, After(3, 4))
	assert.Equal(t, Forever, After(3, Forever-3))
	assert.Equal(t, Forever, After(3, Forever-2))
}

// TestPortableBounds: in microseconds, a float64 holds each number.
func TestPortableBounds(t *testing.T) {
	enc := Encoding{Tick: 1000, Portable: true}
	n, err := enc.Ticks(3*time.Microsecond, "Window")
	require.NoError(t, err)
	assert.EqualValues(t, 3, n)
	_, err = enc.Ticks(3001, "Window")
	assert.ErrorContains(t, err, "Window is 3.001µs: it must be a multiple of 1µs")
	const longest = 1 << 51 * time.Microsecond
	n, err = enc.Ticks(longest, "Window")
	require.NoError(t, err)
	assert.Equal(t, uint64(1)<<51, n)
	_, err = enc.Ticks(longest+time.Microsecond, "Window")
	assert.ErrorContains(t, err, "Window is 625499h56m53.685249s: it must be at most 625499h56m53.685248s in this store")
	if most := int64(1) << 51; int64(int(most)) == most { // an int has 64 bits
		assert.NoError(t, enc.Count(int(most), "Limit"))
		assert.ErrorContains(t, enc.Count(int(most)+1, "Limit"), "Limit is")
	}
	assert.NoError(t, enc.Slots(4096, "Segments"))
	assert.ErrorContains(t, enc.Slots(4097, "Segments"), "Segments is 4097")

	assert.NoError(t, InMemory.Count(min(math.MaxInt, MostCounted), "Limit"))
	if most := int64(1) << 62; int64(int(most)) == most {
		err := InMemory.Count(int(most)+1, "Limit")
		assert.ErrorContains(t, err, "Limit is 4611686018427387905: it must be at most 2⁶²; Unlimited has no limit")
		_, err = NewTokenBucket(1, time.Second, time.Second, int(most)+1, InMemory, "TokenBucket")
		assert.ErrorContains(t, err, "TokenBucket.Burst is 4611686018427387905")
		_, err = NewLeakyBucket(1, time.Second, time.Second, int(most)+1, InMemory, "LeakyBucket")
		assert.ErrorContains(t, err, "LeakyBucket.Capacity is 4611686018427387905")
	}
	assert.NoError(t, InMemory.Slots(MaxSlots, "Segments"))
}
