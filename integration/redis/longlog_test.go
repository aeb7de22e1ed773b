package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A reply omits the entries of a long log that its decision does not depend on. Every decision must
// be that of a limiter in memory.
func TestLongLog(t *testing.T) {
	clk := storetest.NewClock(time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC))
	alg := ratelimit.SlidingLog{Limit: 40, Window: time.Minute}
	s := startServer(t)
	store := makers["rueidis"](t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithLimiterClock(), redisstore.WithDenialCache(0))
	redis := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk)))
	memory := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
	take := func(n int) {
		t.Helper()
		got, err := redis.Take(t.Context(), "k", n)
		require.NoError(t, err)
		want, err := memory.Take(t.Context(), "k", n)
		require.NoError(t, err)
		assert.Equal(t, want, got, "Take(%d)", n)
	}
	for range 40 {
		take(1)
		clk.Advance(time.Second)
	}
	for n := range 41 { // each denial waits for n entries to leave the window
		take(n)
	}
	clk.Advance(30 * time.Second) // ten of them have left it
	take(35)
	take(2)
	for _, l := range []ratelimit.Limiter{redis, memory} {
		_, _, err := l.Reserve(t.Context(), "k", 20)
		require.NoError(t, err)
	}
	for n := range 41 { // after the reservation ahead
		take(n)
	}
}
