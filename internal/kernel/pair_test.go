package kernel

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPairFits: a SlidingWindow of one segment is one word, unless the counts are too large for that.
func TestPairFits(t *testing.T) {
	for _, tt := range []struct {
		limit  int
		length uint64
		fits   bool
	}{
		{10, second, true},
		{1<<15 - 1, second, true},
		{1 << 15, second, false},
		{1 << 15, 3600 * second, true},
	} {
		_, fits := NewSlidingWindow(tt.limit, 1, tt.length, InMemory).(*pair)
		assert.Equal(t, tt.fits, fits, "%+v", tt)
	}
}
