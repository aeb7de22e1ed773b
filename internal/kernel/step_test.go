package kernel

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRetryAfterIsExact: a denied request is granted after RetryAfter, and not a
// nanosecond before.
func TestRetryAfterIsExact(t *testing.T) {
	for name, c := range each(t) {
		if name == "counted" {
			continue // each denial is an event
		}
		st, changed, a := do(c, c.NewState(), begun, Request{Op: OpTake, N: min(10, c.Limit())})
		require.True(t, changed && a.Allowed, name)
		kept := slices.Clone(st)
		st, changed, a = do(c, st, begun, Request{Op: OpTake, N: 1})
		require.False(t, changed || a.Allowed, name)
		assert.Equal(t, kept, st, "%s: a denial changes nothing", name)
		require.Positive(t, a.RetryAfter, name)
		at := begun + uint64(a.RetryAfter)
		_, _, early := do(c, slices.Clone(st), at-1, Request{Op: OpTake, N: 1})
		assert.Equal(t, time.Duration(1), early.RetryAfter, name)
		_, _, a = do(c, st, at, Request{Op: OpTake, N: 1})
		assert.True(t, a.Allowed, name)
	}
}
