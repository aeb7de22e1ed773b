package redisstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// Events in flight may be released at any moment, so no denial is repeated; and none are leased.
func TestInFlightIsAsked(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.InFlight{Limit: 1000, Timeout: time.Hour},
		ratelimit.All{daily, ratelimit.InFlight{Limit: 1000, Timeout: time.Hour}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t, alg)
			s, l := f.store(t, WithLease(100, time.Hour))
			for i := range 1010 {
				assert.Equal(t, i < 1000, l.Allow("k"))
				assert.Equal(t, i+1, f.Calls())
			}
			assert.Zero(t, s.Stats().Leased)
			assert.Zero(t, s.Stats().Cached)
		})
	}
}

// A Release without an answer is not repeated. The events may stay in flight until they time out.
func TestReleaseIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.All{daily, ratelimit.InFlight{Limit: 10, Timeout: time.Hour}})
		s, l := f.store(t)
		r, _, err := l.Hold(t.Context(), "k", 4)
		require.NoError(t, err)
		f.Set(func() { f.Hangs = true })
		trips := f.Trips
		require.ErrorIs(t, r.Release(t.Context()), ErrTimeout)
		settle()
		assert.Equal(t, trips+1, f.Trips)
		assert.Equal(t, uint64(4), s.Stats().Lost)
		require.ErrorIs(t, r.Release(t.Context()), ratelimit.ErrEnded)
	})
}
