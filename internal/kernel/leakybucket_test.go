package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestQueue: of ten places, three are taken, and one gets free each 100 ms.
func TestQueue(t *testing.T) {
	made, err := NewLeakyBucket(10, time.Second, time.Second, 10, InMemory, "")
	require.NoError(t, err)
	k := made.(*leaky)
	st := k.Spend(make([]uint64, k.Width()), begun, 3)
	assert.Equal(t, 300*ms, k.Delay(st, begun))
	assert.Equal(t, 50*ms, k.Delay(st, begun+250*ms))
	assert.Zero(t, k.Delay(st, begun+second))
	assert.False(t, k.Full(st, begun, 7))
	assert.True(t, k.Full(st, begun, 8))
	assert.False(t, k.Full(st, begun+100*ms, 8))
}

// TestTurnsStay: a reservation keeps its turn when the bucket leaks faster, and later
// events come after it.
func TestTurnsStay(t *testing.T) {
	bucket := func(events int) *leaky {
		k, err := NewLeakyBucket(events, time.Second, time.Second, 10, InMemory.Varying(), "")
		require.NoError(t, err)
		return k.(*leaky)
	}
	slow, fast := bucket(1), bucket(10)
	st := slow.Spend(make([]uint64, slow.Width()), begun, 5)
	slow.Promise(st)
	st, _ = fast.Adopt(slow, st, begun, begun)
	assert.Equal(t, 5*second, fast.Delay(st, begun))
	assert.Equal(t, 5*second+100*ms, fast.Delay(fast.Spend(st, begun, 1), begun))
}
