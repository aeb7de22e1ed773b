package redis_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// While no server listens, each error says so, and Stats name the server, until it is back.
func TestOutage(t *testing.T) {
	for name, create := range clients(t, "valkey") { // without a proxy, which would accept connections
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			store := create(t, s.addr())
			l := limiter(t, store, hourly(1_000_000))
			check := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), patient)
				defer cancel()
				return store.Check(ctx)
			}
			require.NoError(t, check())
			s.kill()
			eventually(t, "a connection is refused", func() bool {
				_, err := l.Take(t.Context(), "k", 1)
				return errors.Is(err, syscall.ECONNREFUSED)
			})
			eventually(t, "a check says so", func() bool { // rueidis and valkey may have lost a connection without noticing
				return errors.Is(check(), syscall.ECONNREFUSED)
			})
			eventually(t, "the breaker is open", func() bool {
				_, err := l.Take(t.Context(), "k", 1)
				return errors.Is(err, redisstore.ErrOpen)
			})
			eventually(t, "the outage has the cause", func() bool {
				_, _ = l.Take(t.Context(), "k", 1)
				return errors.Is(store.Stats().Outages[s.addr()].Cause, syscall.ECONNREFUSED)
			})
			s.restart()
			eventually(t, "it is back", func() bool {
				_, err := l.Take(t.Context(), "k", 1)
				return err == nil && len(store.Stats().Outages) == 0
			})
			eventually(t, "a check says so", func() bool { return check() == nil })
		})
	}
}
