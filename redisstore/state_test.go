package redisstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A later version must find the same names. A change here would give every key its whole
// limit back on a deploy.
func TestNamesArePinned(t *testing.T) {
	s, err := New(nonsense(""))
	require.NoError(t, err)
	for _, tt := range []struct {
		want string
		alg  ratelimit.Algorithm
	}{
		{"ratelimit:api:rkBneEEpESPh{}:key", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}},
		{"ratelimit:api:rkBneEEpESPh{}:key", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 10}}, // the same limit
		{"ratelimit:api:zj5plcOh4quD{}:key", ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}}},
	} {
		tr, err := ratelimit.NewTransition(tt.alg)
		require.NoError(t, err)
		st, err := s.Open("api", tr)
		require.NoError(t, err)
		assert.Equal(t, tt.want, st.(*states).name("key").text)
	}
	own := &opened{Store: s}
	_, err = ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.WithName("api"), ratelimit.WithStore(own),
		ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil }))
	require.NoError(t, err)
	assert.Equal(t, "ratelimit:api:7HZ36I0szwSV{}:key", own.states.(*states).name("key").text)
}

// opened records the States of a limiter.
type opened struct {
	*Store
	states ratelimit.States
}

func (o *opened) Open(name string, t *ratelimit.Transition) (_ ratelimit.States, err error) {
	o.states, err = o.Store.Open(name, t)
	return o.states, err
}

// An unreadable value is reported once, counted, and replaced by a new state, whether the
// script detects it or the arithmetic does.
func TestUnreadableState(t *testing.T) {
	for name, value := range map[string]string{
		"short":   "damaged",
		"invalid": "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: 2, Window: time.Hour})
				s, l := f.store(t)
				require.True(t, l.Allow("k"))
				for key := range f.states {
					f.states[key] = value
				}
				_, err := l.Take(t.Context(), "k", 1)
				require.ErrorIs(t, err, ratelimit.ErrState)
				for _, want := range []bool{true, false} {
					d, err := l.Take(t.Context(), "k", 1)
					require.NoError(t, err)
					assert.Equal(t, want, d.Allowed, "the first call has spent one of two")
				}
				assert.EqualValues(t, 1, s.Stats().Unreadable)
				assert.EqualValues(t, 1, s.Stats().OtherErrors)
				assert.EqualValues(t, 1, s.Stats().Failures)
			})
		})
	}
}
