package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestWarmingUp: a cold key takes nearly three times as long for an event as a warm one.
func TestWarmingUp(t *testing.T) {
	k := NewWarmingUp(10, time.Second, time.Second, 3, InMemory)
	st := make([]uint64, k.Width())
	at := begun
	var cost []uint64
	for range 30 {
		st = k.Spend(st, at, 1)
		next := k.Ready(st, at, 1)
		assert.True(t, k.Valid(st, InMemory))
		cost, at = append(cost, next-at), next
	}
	// Each cost is a floating-point number that is rounded to a nanosecond.
	assert.InDelta(t, 280*ms, cost[0], 2)
	assert.InDelta(t, second, cost[0]+cost[1]+cost[2]+cost[3]+cost[4], 5, "it is warm after Warmup")
	assert.IsNonIncreasing(t, cost)
	assert.Equal(t, 100*ms, cost[29], "warm")
	assert.Equal(t, at+second, k.Fresh(st), "it cools down in the time that it warms up")
	fresh, _ := k.Adopt(k, make([]uint64, 2), 0, 0)
	assert.Equal(t, make([]uint64, 2), fresh)

	faster := NewWarmingUp(100, time.Second, 2*time.Second, 3, InMemory)
	st, _ = faster.Adopt(k, st, at, at)
	assert.Equal(t, at, faster.Ready(st, at, 1))
	assert.Equal(t, at+2*second, faster.Fresh(st), "as warm as before")
}
