// Package redis_test runs package redisstore on real servers, a cluster, replicas and broken
// connections.
//
// In CI each law is tested with one client, 0.5 ms away from the server, and at night
// (RATELIMIT_NIGHTLY=1) with both and at all distances. Random histories are compared with a limiter
// in this process (FuzzScripts, FuzzBatches, FuzzJoint), also on a fake server, and that server with a
// real one (FuzzFake).
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
