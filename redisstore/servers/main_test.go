package servers

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

// TestMain stops go-redis from logging that a server is away, because tests stop servers.
func TestMain(m *testing.M) {
	logging.Disable()
	burnIfAsked()
	m.Run()
}
