// Package redis_test runs package redisstore on real servers, a cluster, replicas and broken
// connections.
package redis_test

import (
	"log/slog"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

// TestMain stops go-redis and limiters from logging that a server is away, because tests
// stop servers.
func TestMain(m *testing.M) {
	logging.Disable()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	burnIfAsked()
	m.Run()
}
