package servers

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// startReplicated starts a server and one that copies it, in sync. What the primary
// has answered reaches the replica a moment later, or not at all.
func startReplicated(t testing.TB) (primary, replica *server) {
	t.Helper()
	args := []string{"--repl-diskless-sync-delay", "0"} // or it waits five seconds for more replicas
	primary = startServer(t, args...)
	replica = startServer(t, append(args, "--replicaof", "127.0.0.1 "+strconv.Itoa(primary.port))...)
	awaitSync(t, primary, replica)
	return primary, replica
}

// awaitSync waits until the replica has all that the primary has, and the primary
// knows.
func awaitSync(t testing.TB, primary, replica *server) {
	t.Helper()
	eventually(t, "the replica is in sync", func() bool {
		return replica.info("replication", "master_port") == strconv.Itoa(primary.port) &&
			replica.info("replication", "master_link_status") == "up" &&
			strings.Contains(primary.info("replication", "slave0"), "state=online") &&
			replica.info("replication", "slave_repl_offset") == primary.info("replication", "master_repl_offset")
	})
}

// failover has primary and replica change places, with no write lost.
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

// promote makes a primary of the replica, as after the loss of the other one: what
// has not reached it is lost.
func promote(t testing.TB, replica *server) {
	t.Helper()
	replica.do("REPLICAOF", "NO", "ONE")
	eventually(t, "the replica is a primary", func() bool { return replica.info("replication", "role") == "master" })
}

// follow makes a replica of primary of s, in sync.
func follow(t testing.TB, s, primary *server) {
	t.Helper()
	s.do("REPLICAOF", "127.0.0.1", primary.port)
	awaitSync(t, primary, s)
}
