package redis_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// TestObserverSeesWhichPartRefused: of a Wait or Reserve that is denied, an observer is told which
// part of an All refused, whether Redis decides or the denial is known without a call.
func TestObserverSeesWhichPartRefused(t *testing.T) {
	s := startServer(t)
	day := func(limit int) ratelimit.FixedWindow {
		return ratelimit.FixedWindow{Limit: limit, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent}
	}
	for name, tt := range map[string]struct {
		alg ratelimit.Algorithm
		n   int
		err error
	}{
		"late":       {ratelimit.All{hourly(9), day(1)}, 1, context.DeadlineExceeded},
		"never":      {ratelimit.All{hourly(9), hourly(1)}, 2, ratelimit.ErrNever},
		"flights":    {ratelimit.All{hourly(9), ratelimit.InFlight{Limit: 1, Timeout: time.Hour}}, 2, ratelimit.ErrNever},
		"full queue": {ratelimit.All{hourly(9), ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1)}}, 1, ratelimit.ErrQueueFull},
	} {
		t.Run(name, func(t *testing.T) {
			var seen []ratelimit.Observation
			store := makers["goredis"](t, s.addr(), redisstore.WithTimeout(patient))
			l := limiter(t, store, tt.alg, ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) { seen = append(seen, o) }))
			require.True(t, l.Allow(name))
			short, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range 2 {
				require.ErrorIs(t, l.WaitN(short, name, tt.n), tt.err)
				_, _, err := l.Hold(short, name, tt.n, ratelimit.Waiting())
				require.ErrorIs(t, err, tt.err)
				if !errors.Is(tt.err, context.DeadlineExceeded) {
					r, _, err := l.Reserve(short, name, tt.n)
					require.NoError(t, err)
					require.Nil(t, r)
				}
			}
			for _, o := range seen[1:] {
				assert.Equal(t, ratelimit.Denied, o.Outcome)
				assert.Equal(t, 1, o.Decision.Part)
				assert.Positive(t, o.Decision.RetryAfter)
			}
		})
	}
}
