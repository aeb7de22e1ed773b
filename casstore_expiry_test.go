package ratelimit

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// A state expires when the key is fresh by the limiter's clock, wherever that stands.
func TestCASStoreExpiry(t *testing.T) {
	for _, start := range []time.Time{{}, time.Unix(0, 0), time.Date(2026, 3, 1, 12, 0, 0, 7, time.UTC), time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)} {
		var expires time.Time
		db := mapStates{}
		s := NewCASStore(
			func(_ context.Context, key string) ([]byte, string, error) { return []byte(db[key]), db[key], nil },
			func(_ context.Context, key, _ string, state []byte, until time.Time) (bool, error) {
				db[key], expires = string(state), until
				return true, nil
			},
			func(context.Context, string) error { return nil })
		clk := stepclock.New()
		clk.Set(start)
		l := Must(New(FixedWindow{Limit: 10, Window: time.Hour, Start: StartOnFirstEvent}, WithStore(s), WithName("test"), WithClock(clk)))
		clk.Advance(time.Minute)
		for range 3 {
			require.True(t, l.Allow("key"))
			assert.True(t, start.Add(61*time.Minute).Equal(expires), "%v", expires)
			clk.Advance(-time.Second) // time stands still, and is a second behind
		}
		l = Must(New(FixedWindow{Limit: 10, Window: math.MaxInt64, Start: StartOnFirstEvent}, WithStore(s), WithClock(clk), WithName("never")))
		require.True(t, l.Allow("key"))
		assert.Zero(t, expires)
	}
}
