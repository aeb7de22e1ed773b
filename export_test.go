package ratelimit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// What follows shows the external tests of this package some of its inside.

// Sum is how a key that several Bounds name asks for its events.
var Sum = addSaturating

// LateCoarseClock returns a coarse clock without its goroutine, which is never in time.
var LateCoarseClock = newCoarseClock

// KernelOf returns alg as the arithmetic has it.
func KernelOf(t testing.TB, alg Algorithm) *step.Machine {
	t.Helper()
	lim, err := newLimit(alg, kernel.InMemory)
	require.NoError(t, err)
	return lim.Machine
}

// SealOf returns the hash in a token of l and key, whose other fields are given.
func SealOf(l Limiter, key string, fields []byte) []byte {
	return l.(*limiter).seal(key, fields)
}

// NowOf returns the time for l.
func NowOf(l Limiter) kernel.Instant {
	now, _ := l.(*limiter).timeline.Now()
	return now
}

// Spaces returns how many limiters' states s has.
func Spaces(s *MemoryStore) int { return len(s.byName) }

// Waiters returns how many callers wait for what is in flight.
func Waiters(l Limiter) int64 { return l.(*limiter).lines.Count() }
