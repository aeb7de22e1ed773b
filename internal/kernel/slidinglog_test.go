package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLogGrowsWithUse checks that the memory of a SlidingLog follows the number of
// events in the window, not Limit, and that events which have left the window are
// dropped.
func TestLogGrowsWithUse(t *testing.T) {
	k := NewSlidingLog(math.MaxInt, uint64(time.Second), false)
	var st []uint64
	for i := range uint64(1000) {
		st = k.Spend(st, i, 1)
	}
	assert.Len(t, st, logHeader+1000, "a word for each event")
	assert.Equal(t, math.MaxInt-1000, k.Remaining(st, 1000))
	grown := cap(st)

	st = k.Spend(st, uint64(time.Second)+998, 5)
	assert.Len(t, st, logHeader+1+2, "one left, and two words for five at once")
	assert.Less(t, cap(st), grown/2, "memory is given back")

	now := uint64(time.Hour)
	for range 100_000 { // a steady flow of about 100 in the window
		now += uint64(10 * time.Millisecond)
		st = k.Spend(st, now, 1)
		require.LessOrEqual(t, len(st), logHeader+2*100+2)
	}
	require.LessOrEqual(t, cap(st), 1024)
}

// TestLogForgetsRefused: a log that counts denied events keeps no more of them than its limit, and
// those of the last instant. Older ones change no answer.
func TestLogForgetsRefused(t *testing.T) {
	k := NewSlidingLog(10, uint64(time.Second), true).(*eventLog)
	st := k.Spend(nil, 1, 10)
	for i := range uint64(10_000) {
		var changed bool
		st, changed = k.Refuse(st, 2+i, 1+int(i%10), 0)
		require.True(t, changed)
		require.LessOrEqual(t, st[0], uint64(10+20), "those before, and those at one instant")
		require.LessOrEqual(t, len(st), logHeader+2*(2*10))
	}
}

// TestLogRefusesNonsense: the header of a log is consistent.
func TestLogRefusesNonsense(t *testing.T) {
	k := NewSlidingLog(10, uint64(time.Second), false)
	assert.True(t, k.Valid([]uint64{1, 3, 7, 7}, InMemory))
	for _, st := range [][]uint64{{0, 3}, {0, 2, 0}, {0, 4, 0}, {0, 3, MaxInstant + 1}, {1, 4, 7, 7}, {1, 3, MaxInstant + 1, 7}} {
		assert.False(t, k.Valid(st, InMemory), "%v", st)
	}
}

// TestRemoveAll: each entry loses what is removed at its instant, in whatever order that is given, and
// a log that loses all is the fresh one.
func TestRemoveAll(t *testing.T) {
	log := NewSlidingLog(1<<20, 10*second, false).(*eventLog)
	var st []uint64
	var removals []removal
	const n = 1 << 12
	for i := range Instant(n) {
		st = log.Spend(st, begun+i, 2)
		removals = append(removals, removal{begun + i, 1})
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, j int) { removals[i], removals[j] = removals[j], removals[i] })
	st = log.removeAll(st, removals)
	require.Equal(t, uint64(n), st[0])
	require.Len(t, st, logHeader+n)
	require.True(t, log.Valid(st, InMemory))
	st = log.removeAll(st, removals)
	require.Empty(t, st)
}
