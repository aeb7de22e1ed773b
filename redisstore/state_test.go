package redisstore

import (
	"context"
	"strings"
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
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}
	for _, tt := range []struct {
		want string
		alg  ratelimit.Algorithm
	}{
		{"rkBneEEpESPh", bucket},
		{"rkBneEEpESPh", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 10}}, // the same limit
		{"mJ2geipH7sO8", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}},
		{"WYFj3USawp1E", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Refill: ratelimit.RefillInterval}},
		{"pdTOOCbDnOIt", ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 5}},
		{"3k7uDTTRiFYl", ratelimit.FixedWindow{Limit: 10, Window: time.Minute}},
		{"6I8UPrLtXSAd", ratelimit.FixedWindow{Limit: 10, Window: time.Minute, Start: ratelimit.StartOnFirstEvent}},
		{"IX_oONxuEqRM", ratelimit.SlidingWindow{Limit: 10, Window: time.Minute, Segments: 6}},
		{"rwpNz9ZjwqZf", ratelimit.SlidingLog{Limit: 10, Window: time.Minute}},
		{"TeYD2OGX4Ve1", ratelimit.SlidingLog{Limit: 10, Window: time.Minute, CountDenied: true}},
		{"F0Jp9Y1LDeW5", ratelimit.RollingWindow{Quota: 10, Window: time.Hour, Period: time.Minute, PeriodLimit: 5}},
		{"2iQzcC9hBnhT", ratelimit.WarmingUp{Rate: ratelimit.PerSecond(10), Warmup: time.Second}},
		{"zj5plcOh4quD", ratelimit.All{bucket}},
		{"yyIaR-gka9AU", ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 10, Window: time.Minute}}},
	} {
		tr, err := ratelimit.NewTransition(tt.alg)
		require.NoError(t, err)
		st, err := s.Open("api", tr)
		require.NoError(t, err)
		assert.Equal(t, "ratelimit:api:"+tt.want+"{}:key", st.(*states).name("key").text, "%#v", tt.alg)
	}
	long := strings.Repeat("x", maxKey+1)
	for name, want := range map[string]string{
		"api":   "ratelimit:api:7HZ36I0szwSV{}",
		"":      "ratelimit::mb5e-4jKIBO9{}",
		"{tag}": "ratelimit:(tag}:TTuZxbbRe9DD{}",
	} {
		own := &opened{Store: s}
		_, err = ratelimit.New(bucket, ratelimit.WithName(name), ratelimit.WithStore(own),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil }))
		require.NoError(t, err)
		st := own.states.(*states)
		assert.Equal(t, want+":key", st.name("key").text)
		assert.Equal(t, want+"#DsnrM-dFELzdHy6lUgboLyFknFwr7L8rQz60dbNMAb0", st.name(long).text)
	}
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
