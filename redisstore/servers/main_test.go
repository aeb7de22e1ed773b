package servers

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

// TestMain keeps go-redis from saying each time that a server is away: tests take
// them away.
func TestMain(m *testing.M) {
	logging.Disable()
	m.Run()
}
