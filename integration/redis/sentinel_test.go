package redis_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// sentinelName is the sentinel's name for the primary and its replica.
const sentinelName = "main"

// startSentinel starts a sentinel that promotes the replica soon after primary is gone, and
// returns the sentinel's address.
func startSentinel(t testing.TB, primary *server) (addr string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "sentinel.conf") // the sentinel rewrites it
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
sentinel monitor %[1]s 127.0.0.1 %[2]d 1
sentinel down-after-milliseconds %[1]s 500
sentinel failover-timeout %[1]s 3000
`, sentinelName, primary.port), 0o600))
	s := launch(t, dir, file, "--sentinel")
	c := redis.NewSentinelClient(s.options())
	t.Cleanup(func() { c.Close() })
	eventually(t, "the sentinel knows the replica", func() bool {
		replicas, err := c.Replicas(context.Background(), sentinelName).Result()
		return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave" && replicas[0]["master-link-status"] == "ok"
	})
	return s.addr()
}
