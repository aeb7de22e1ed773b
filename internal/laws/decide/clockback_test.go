package decide_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestClockBack: while a clock shows a time before that of the last event, the key grants nothing
// more. Once the clock shows that time again, the key is as it was.
func TestClockBack(t *testing.T) {
	t.Parallel()
	for name, alg := range storetest.Algorithms() {
		for kind, open := range fakes.Stores {
			t.Run(name+"/"+kind, func(t *testing.T) {
				for _, back := range []time.Duration{1, time.Second, 100 * 365 * 24 * time.Hour} {
					clockBack(t, alg, open(), back)
				}
			})
		}
	}
}

func clockBack(t *testing.T, alg ratelimit.Algorithm, store ratelimit.Store, back time.Duration) {
	t.Helper()
	clk := stepclock.New()
	l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk)))
	require.True(t, l.AllowN("key", fakes.Peek(t, l).Limit))
	before := fakes.Peek(t, l)
	clk.Advance(-back)
	assert.LessOrEqual(t, fakes.Peek(t, l).Remaining, before.Remaining)
	assert.False(t, l.Allow("key"), "%v back", back)
	clk.Advance(back)
	if log, ok := alg.(ratelimit.SlidingLog); ok && log.CountDenied {
		return // it has counted the denial
	}
	assert.Equal(t, before, fakes.Peek(t, l), "%v back and forth", back)
}
