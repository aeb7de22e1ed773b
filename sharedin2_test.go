package ratelimit

import (
	"context"
	"sync"
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

// ownLimits are limits that a test changes.
type ownLimits struct {
	mu  sync.Mutex // protects what follows
	of  map[string]Algorithm
	err error
}

func (o *ownLimits) lookup(_ context.Context, key string) (Algorithm, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[key], o.err
}

func (o *ownLimits) set(key string, alg Algorithm) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = make(map[string]Algorithm)
	}
	o.of[key] = alg
}
