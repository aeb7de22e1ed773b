package redis_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"

	"github.com/redis/go-redis/v9"
)

// When the replica of a dead primary has taken over, go-redis asks for the slots, and does not wait
// for the time at which it would do so by itself. It does so also if the replica takes that long
// that the client no longer tries to connect for each command. There is no breaker, so that more
// commands meet the dead node.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	replica := startServer(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
		"--cluster-announce-ip", "127.0.0.1", "--cluster-replica-validity-factor", "0",
		"--cluster-replica-no-failover", "yes")
	replica.do("CLUSTER", "MEET", "127.0.0.1", c.nodes[0].port)
	primary := c.nodes[c.owner(c.slotOf(t, "{k}"))]
	id := primary.do("CLUSTER", "MYID")
	eventually(t, "it follows the primary", func() bool {
		return replica.admin.Do(t.Context(), "CLUSTER", "REPLICATE", id).Err() == nil
	})
	eventually(t, "it is in step", func() bool { return replica.info("replication", "master_link_status") == "up" })
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{c.nodes[0].addr(), c.nodes[1].addr(), c.nodes[2].addr()}, ClusterStateReloadInterval: time.Hour,
	})
	t.Cleanup(func() { client.Close() })
	store, err := goredis.New(client, redisstore.WithBreaker(1_000_000, time.Second))
	require.NoError(t, err)
	l := limiter(t, store, hourly(1_000_000), ratelimit.WithName("x{k}"), ratelimit.WithFailureLog(nil))
	eventually(t, "it is asked", func() bool {
		_, err := l.Take(t.Context(), "k", 1)
		return err == nil
	})
	eventually(t, "the client knows the nodes", func() bool {
		_, _ = l.Take(t.Context(), "k", 1)
		_, has := store.Stats().Breakers[primary.addr()]
		return has || len(store.Stats().Breakers) > 1
	})
	primary.kill()
	_, err = l.Take(t.Context(), "k", 1)
	require.Error(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the latest error: %v; the client says of the shards: %v; %+v", err,
				client.ClusterShards(context.Background()), store.Stats())
		}
	})
	eventually(t, "the client fails at once", func() bool {
		begin := time.Now()
		_, err = l.Take(t.Context(), "k", 1)
		return errors.Is(err, syscall.ECONNREFUSED) && time.Since(begin) < 10*time.Millisecond
	})
	replica.do("CONFIG", "SET", "cluster-replica-no-failover", "no")
	eventually(t, "the replica answers", func() bool {
		_, err = l.Take(t.Context(), "k", 1)
		return err == nil
	})
	assert.Equal(t, "master", replica.info("replication", "role"))
}
