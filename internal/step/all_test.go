package step

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// TestAllWords pins where the states of the parts lie: the length of each log, the
// others, the logs.
func TestAllWords(t *testing.T) {
	k := NewAll([]kernel.Kernel{
		kernel.NewSlidingLog(10, second, false),
		kernel.NewFixedWindow(8, second, false, kernel.InMemory),
		kernel.NewSlidingLog(20, 2*second, false),
	}, kernel.InMemory)
	assert.Equal(t, 8, k.Limit())
	assert.Zero(t, k.Width())
	st := k.Spend(nil, begun, 1)
	st = k.Spend(st, begun+1, 2)
	entries := []uint64{3, 3, begun + 1, begun, begun + 1, 2 | 1<<63}
	want := append([]uint64{6, 6, begun, 3}, append(entries, entries...)...)
	assert.Equal(t, want, st)
	assert.True(t, k.Valid(st, kernel.InMemory))
	assert.False(t, k.Valid(st[:len(st)-1], kernel.InMemory))
	assert.Equal(t, 5, k.Remaining(st, begun+1))
	assert.Equal(t, begun+second, k.Ready(st, begun+1, 6), "when the window ends")
	assert.Equal(t, begun+2*second+1, k.Fresh(st))
	assert.Equal(t, 1, k.(*all).part(st, begun+1, 6, false))
	assert.Equal(t, 1, k.(*all).part(st, begun+1, 0, false))
}
