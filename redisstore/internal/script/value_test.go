package script

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// The short form of a bucket's state, a decimal number, is read as lua/parts.lua describes.
func TestShortState(t *testing.T) {
	words := func(words ...uint64) (b []byte) {
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return b
	}
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}
	for _, tt := range []struct {
		alg   ratelimit.Algorithm
		value string
		per   time.Duration // of an event of the bucket that left it; 0 if it is not short
	}{
		{bucket, "2637912345678901003", time.Second / 10},
		{bucket, "2637912345678909999", 999_000_000_000 * time.Microsecond},
		{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 7}, "2637912345678901003", time.Second / 10},
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)}, "2637912345678901003", time.Second / 10},
		{bucket, "263791234567890100x", 0},
		{bucket, "263791234567890100", 0},
		{ratelimit.All{bucket}, "2637912345678901003", 0},
		{ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, "2637912345678901003", 0},
	} {
		tr, err := fakes.NewLimit(tt.alg)
		require.NoError(t, err)
		prog, err := New(tr)
		require.NoError(t, err)
		state := prog.StateOf(tt.value)
		if tt.per == 0 {
			assert.Equal(t, tt.value, string(state), "%#v %s", tt.alg, tt.value)
			continue
		}
		from, err := prog.Limit.Origin(state)
		require.NoError(t, err)
		assert.Equal(t, words(1763791234567890, 0, 0), state[len(from.Tag()):])
		rate := from.Spec.Rate()
		assert.Equal(t, tt.per, rate.Per/time.Duration(rate.Events), "%#v %s", tt.alg, tt.value)
	}
}

// TestCodes: the cost of an event is in the code if it has three digits and zeros.
func TestCodes(t *testing.T) {
	for c, want := range map[cost]int{
		{600_000, 1}: 6003, {1, 1}: 10, {999, 1}: 9990, {9990, 1}: 9991, {1000, 1}: 1001,
		{999_000_000_000, 1}: 9999, {1001, 1}: -1, {1, 3}: -1, {9_990_000_000_000, 1}: -1,
	} {
		assert.Equal(t, want, codeOf(c), "%v", c)
	}
}
