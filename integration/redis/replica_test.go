package redis_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// startReplicated starts a primary and its replica, in sync. Writes reach the replica after
// the primary has answered, or not at all.
func startReplicated(t testing.TB) (primary, replica *server) {
	t.Helper()
	args := []string{"--repl-diskless-sync-delay", "0"} // otherwise it waits five seconds for more replicas
	primary = startServer(t, args...)
	replica = startServer(t, append(args, "--replicaof", "127.0.0.1", strconv.Itoa(primary.port))...)
	awaitSync(t, primary, replica)
	return primary, replica
}

// awaitSync waits until the primary knows that the replica has all its data.
func awaitSync(t testing.TB, primary, replica *server) {
	t.Helper()
	eventually(t, "the replica is in sync", func() bool {
		return replica.info("replication", "master_port") == strconv.Itoa(primary.port) &&
			replica.info("replication", "master_link_status") == "up" &&
			strings.Contains(primary.info("replication", "slave0"), "state=online") &&
			replica.info("replication", "slave_repl_offset") == primary.info("replication", "master_repl_offset")
	})
}

// failover exchanges primary and replica, and loses no write.
func failover(t testing.TB, primary, replica *server) {
	t.Helper()
	_, err := primary.admin.Do(t.Context(), "FAILOVER", "TO", "127.0.0.1", replica.port).Result()
	if err != nil && strings.HasPrefix(err.Error(), "ERR unknown command") { // before 6.2
		promote(t, replica)
		follow(t, primary, replica)
		return
	}
	require.NoError(t, err)
	awaitSync(t, replica, primary)
}

// promote makes the replica a primary, as after the loss of the primary: writes that have
// not reached it are lost.
func promote(t testing.TB, replica *server) {
	t.Helper()
	replica.do("REPLICAOF", "NO", "ONE")
	eventually(t, "the replica is a primary", func() bool { return replica.info("replication", "role") == "master" })
}

// follow makes s a replica of primary, in sync.
func follow(t testing.TB, s, primary *server) {
	t.Helper()
	s.do("REPLICAOF", "127.0.0.1", primary.port)
	awaitSync(t, primary, s)
}
