// Package redis_test runs package redisstore on real servers, a cluster, replicas and broken
// connections.
//
// In CI each law is tested with one client, 0.5 ms away from the server, and at night
// (RATELIMIT_NIGHTLY=1) with both and at all distances. Random histories, in CI and at night: 40 and
// 120 of scripts, 60 and 200 of cancelling, 12 and 30 of batches, 50 and 150 of keys together and of
// settling, as many of each on a fake server, 60 and 200 that compare that with a real one, and
// conformance with 60 and 200 calls of each algorithm.
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
