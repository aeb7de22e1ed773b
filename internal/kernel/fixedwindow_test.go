package kernel

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFixedWindowWords(t *testing.T) {
	at := begun + second/4
	for name, tt := range map[string]struct {
		aligned  bool
		encoding Encoding
		want     []uint64 // after three events at that instant
		end      Instant
	}{
		"aligned":     {true, InMemory, []uint64{begun/second<<31 | 3}, begun + second},
		"limits vary": {true, InMemory.Varying(), []uint64{begun, 3}, begun + second},
		"first event": {false, InMemory, []uint64{at, 3}, at + second},
	} {
		k := NewFixedWindow(10, second, tt.aligned, tt.encoding)
		st := k.Spend(make([]uint64, k.Width()), at, 3)
		assert.Equal(t, tt.want, st, name)
		assert.Equal(t, 7, k.Remaining(st, at), name)
		assert.Equal(t, at, k.Ready(st, at, 7), name)
		assert.Equal(t, tt.end, k.Ready(st, at, 8), name)
		assert.Equal(t, tt.end, k.Fresh(st), name)
		assert.Equal(t, 10, k.Remaining(st, tt.end), name)
	}
}

// TestFixedWindowAdopts: the count is kept, and its window lasts as the new one does.
func TestFixedWindowAdopts(t *testing.T) {
	short := NewFixedWindow(10, second, true, InMemory.Varying())
	long := NewFixedWindow(5, 60*second, true, InMemory.Varying())
	st := short.Spend(make([]uint64, 2), begun, 8)
	st = long.Adopt(short, st, begun)
	assert.Equal(t, []uint64{begun, 8}, st)
	assert.Zero(t, long.Remaining(st, begun), "more than the limit")
	assert.Equal(t, begun+60*second, long.Ready(st, begun, 1))
	assert.Equal(t, []uint64{0, 0}, short.Adopt(long, st, begun+60*second), "it was over")
}
