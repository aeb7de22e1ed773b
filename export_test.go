package ratelimit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file gives the external tests of this package access to some of its inside.

// Sum adds up the events that several Bounds ask of one key.
var Sum = addSaturating

// LateCoarseClock returns a coarse clock without its goroutine, as if the goroutine never got a
// processor.
var LateCoarseClock = newCoarseClock

// KernelOf returns the machine of alg in memory.
func KernelOf(t testing.TB, alg Algorithm) *step.Machine {
	t.Helper()
	lim, err := newLimit(alg, kernel.InMemory)
	require.NoError(t, err)
	return lim.Machine
}

// SealOf returns the hash in a token of l and key whose other fields are given.
func SealOf(l Limiter, key string, fields []byte) []byte {
	return l.(*limiter).seal(key, fields)
}

// NowOf returns the present instant of l.
func NowOf(l Limiter) kernel.Instant {
	now, _ := l.(*limiter).timeline.Now()
	return now
}

// Spaces returns the number of limiters whose states are in s.
func Spaces(s *MemoryStore) int { return len(s.byName) }

// Waiters returns how many callers stand in the lines of l.
func Waiters(l Limiter) int64 { return l.(*limiter).lines.Count() }
