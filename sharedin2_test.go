package ratelimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

func newTestLimiter(t testing.TB, alg Algorithm, opts ...MemoryOption) (*limiter, *MemoryStore, *stepclock.Clock) {
	t.Helper()
	s, clk := NewMemoryStore(opts...), stepclock.New()
	l, err := New(alg, WithStore(s), WithName("test"), WithClock(clk))
	require.NoError(t, err)
	return l.(*limiter), s, clk
}

var everyWidth = []Algorithm{
	TokenBucket{Rate: PerSecond(10)},
	SlidingWindow{Limit: 10, Window: time.Second, Segments: 5},
	SlidingLog{Limit: 10, Window: time.Second},
	All{SlidingLog{Limit: 10, Window: time.Second}, TokenBucket{Rate: PerSecond(10)}},
}

// check fails the test if what the store says does not fit together. Its own tests,
// in internal/memory, look inside.
func (s *MemoryStore) check(t testing.TB) {
	t.Helper()
	keys := s.Stats().Keys
	require.Equal(t, keys, s.Len())
	if s.maxKeys > 0 {
		require.LessOrEqual(t, int64(keys), s.maxKeys)
	}
}
