package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRemovedKeysHideNoOthers forgets every third key of shards whose slots lie close
// together: the others are still found.
func TestRemovedKeysHideNoOthers(t *testing.T) {
	l, s, _ := newTestLimiter(t, eventLog(10, time.Hour))
	const n = 5000
	for i := range n {
		require.True(t, l.AllowN(fmt.Sprint(i), 1+i%10))
	}
	for i := 0; i < n; i += 3 {
		require.NoError(t, l.Reset(t.Context(), fmt.Sprint(i)))
	}
	s.check(t)
	for i := range n {
		d, err := l.Peek(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
		want := 10
		if i%3 > 0 {
			want = 9 - i%10
		}
		require.Equal(t, want, d.Remaining, "key %d", i)
	}
	require.Equal(t, n-(n+2)/3, s.Len())
}
