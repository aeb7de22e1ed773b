package ratelimit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// What follows shows the external tests of this package some of its inside.

// ManyTogether is how many reservations one call of a store cancels.
const ManyTogether = manyTogether

// Times is how a key that several Bounds name asks for its events.
var Times = times

// LateCoarseClock returns a CoarseClock without its goroutine, which is never in time.
var LateCoarseClock = newCoarseClock

// KernelOf returns alg as the arithmetic has it.
func KernelOf(t testing.TB, alg Algorithm) *kernel.Compiled {
	t.Helper()
	l, err := newLimit(alg, kernel.InMemory)
	require.NoError(t, err)
	return l.Compiled
}

// NowOf returns the time for l.
func NowOf(l Limiter) kernel.Instant {
	now, _ := l.(*limiter).timeline.Now()
	return now
}

// Spaces returns how many limiters' states s has.
func Spaces(s *MemoryStore) int { return len(s.spaces) }

// Lines returns how many keys of l have reservations in line.
func Lines(l Limiter) int64 { return l.(*limiter).lines.count.Load() }

// LinesOf returns those lines, by their keys.
func LinesOf(l Limiter) map[string]*kernel.Line {
	all := make(map[string]*kernel.Line)
	shards := l.(*limiter).lines.all()
	for i := range shards {
		for key, ln := range shards[i].keys {
			all[key] = &ln.Line
		}
	}
	return all
}

// Waiters returns how many callers wait for what is in flight.
func Waiters(l Limiter) int64 { return l.(*limiter).waiters.Count() }

// Undo cancels first, and asks for it by the limits of both reservations.
func Undo(key string, first, other *Reservation) (cancelled bool, _ error) {
	out, err := first.l.undo(key, []*limit.Limit{first.by, other.by}, first.line.Cancel([]*kernel.Waiter{first.waiter}, 0))
	return out.Any(), err
}
