package redisstore

import (
	"errors"
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

// A Release that the server does not answer is repeated until it does.
func TestReleaseIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.All{daily, ratelimit.InFlight{Limit: 10, Timeout: time.Hour}})
		s, l := f.store(t)
		r, _, err := l.Hold(t.Context(), "k", 4)
		require.NoError(t, err)
		f.Set(func() { f.Hangs = true })
		require.ErrorIs(t, r.Release(t.Context()), ErrTimeout)
		settle()
		assert.Equal(t, uint64(4), s.Stats().Lost)
		require.ErrorIs(t, r.Release(t.Context()), ratelimit.ErrEnded)
		f.Set(func() { f.Hangs = false })
		settle()
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 10, d.Remaining)
		assert.Equal(t, uint64(4), s.Stats().Lost)
	})
}

// A Release that was certainly not executed can be repeated: because the breaker is open, the
// server has refused it, or it has waited in vain behind a command that was not answered.
func TestReleaseThatWasNotExecuted(t *testing.T) {
	for name, tt := range map[string]struct {
		fail func(f *fakeServer, l ratelimit.Limiter)
		want error
	}{
		"breaker": {func(f *fakeServer, l ratelimit.Limiter) {
			f.Hangs = true
			l.Allow("other")
		}, ErrOpen},
		"no memory": {func(f *fakeServer, _ ratelimit.Limiter) { f.Fail = errOOM }, errOOM},
		"read only": {func(f *fakeServer, _ ratelimit.Limiter) { f.Fail = errReadOnly }, errReadOnly},
		"waited": {func(f *fakeServer, l ratelimit.Limiter) {
			f.Hangs = true
			go l.Allow("k")
			time.Sleep(time.Millisecond)
		}, ErrTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.InFlight{Limit: 10, Timeout: time.Hour})
				s, l := f.store(t, WithBreaker(1, time.Second))
				r, _, err := l.Hold(t.Context(), "k", 4)
				require.NoError(t, err)
				tt.fail(f, l)
				require.ErrorIs(t, r.Release(t.Context()), tt.want)
				f.Set(func() { f.Hangs, f.Fail = false, nil })
				time.Sleep(time.Second) // until the breaker is half-open
				require.NoError(t, r.Release(t.Context()))
				require.ErrorIs(t, r.Release(t.Context()), ratelimit.ErrEnded)
				d, err := l.Peek(t.Context(), "k")
				require.NoError(t, err)
				assert.Equal(t, 10, d.Remaining)
				assert.Equal(t, uint64(4), s.Stats().Lost, "the first attempt")
			})
		})
	}
}

var errReadOnly = errors.New("READONLY You can't write against a read only replica")
