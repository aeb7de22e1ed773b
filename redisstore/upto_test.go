package redisstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// TakeUpTo is one command, also for a key that was denied lately.
func TestUpToInOneCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		_, l := f.store(t)
		require.True(t, l.AllowN("k", daily.Limit-5))
		for _, want := range []struct{ granted, calls int }{{3, 1}, {2, 1}, {0, 1}, {0, 0}} {
			calls := f.Calls()
			granted, d, err := l.TakeUpTo(t.Context(), "k", 3)
			require.NoError(t, err)
			assert.Equal(t, want.granted, granted)
			assert.Equal(t, want.granted > 0, d.Allowed)
			assert.Equal(t, want.calls, f.Calls()-calls, "a denial that is cached needs none")
		}
	})
}

// A denial that is cached denies TakeUpTo only if nothing remains.
func TestUpToAfterADenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, alg := range []ratelimit.Algorithm{daily, ratelimit.SlidingLog{Limit: daily.Limit, Window: time.Hour}} {
			f := newFakeServer(t, alg)
			_, l := f.store(t)
			require.True(t, l.AllowN("k", daily.Limit-5))
			require.False(t, l.AllowN("k", 6))
			granted, _, err := l.TakeUpTo(t.Context(), "k", 6)
			require.NoError(t, err)
			assert.Equal(t, 5, granted, "%T", alg)
		}
	})
}

// What is only leased remains for a TakeUpTo, whose command ends the lease: unless a sender has been
// quick, and has settled the lease with a command before.
func TestUpToOfALeasedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		s, l := f.store(t, WithLease(100, time.Hour))
		used := useLease(t, f, s, l, isHalfUsed)
		calls := f.Calls()
		granted, _, err := l.TakeUpTo(t.Context(), "k", 2*daily.Limit)
		require.NoError(t, err)
		assert.Equal(t, daily.Limit-used, granted)
		assert.Contains(t, []int{calls + 1, calls + 2}, f.Calls())
		conserved(t, f, s, daily.Limit, daily.Limit)
	})
}

// A denial is cached while another process has used up all that is not leased. It denies neither a
// TakeUpTo nor a Hold what is only leased.
func TestDenialWhileAKeyIsLeased(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, l ratelimit.Limiter, n int) (granted int){
		"TakeUpTo": func(t *testing.T, l ratelimit.Limiter, n int) int {
			granted, _, err := l.TakeUpTo(t.Context(), "k", n+1)
			require.NoError(t, err)
			return granted
		},
		"Hold": func(t *testing.T, l ratelimit.Limiter, n int) int {
			_, d, err := l.Hold(t.Context(), "k", n)
			require.NoError(t, err)
			if d.Allowed {
				return n
			}
			return 0
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t, daily)
			s, l := f.store(t, WithLease(100, time.Hour))
			useLease(t, f, s, l, isHalfUsed)
			_, other := f.store(t)
			rest, err := other.Peek(t.Context(), "k")
			require.NoError(t, err)
			require.True(t, other.AllowN("k", rest.Remaining))
			require.False(t, l.AllowN("k", daily.Limit))
			_, k := leasesOf(t, s)
			left := k.left(s.elapsed())
			require.Positive(t, left)
			assert.Equal(t, left, take(t, l, left), name)
			conserved(t, f, s, daily.Limit, daily.Limit)
		})
	}
}
