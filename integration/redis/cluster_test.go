package redis_test

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
)

const slots = 16384

// A cluster has three masters, which share the slots.
type cluster struct {
	t     testing.TB
	nodes []*server
}

// startCluster starts a cluster, with more arguments for each node. It takes at least two
// seconds, because a master waits that long before it reports that the cluster is up.
func startCluster(t testing.TB, args ...string) *cluster {
	t.Helper()
	args = append([]string{
		"--cluster-enabled", "yes",
		"--cluster-node-timeout", "1000",
		"--cluster-announce-ip", "127.0.0.1", // otherwise a node learns its address only from others
	}, args...)
	c := &cluster{t: t}
	for range 3 {
		c.nodes = append(c.nodes, startServer(t, args...))
	}
	for i, n := range c.nodes {
		add := []any{"CLUSTER", "ADDSLOTS"} // Redis 6.2 has no ADDSLOTSRANGE
		for slot := i * slots / 3; slot < (i+1)*slots/3; slot++ {
			add = append(add, slot)
		}
		n.do(add...)
		n.do("CLUSTER", "SET-CONFIG-EPOCH", i+1) // otherwise the nodes have the same epoch, and must resolve that first
	}
	for _, n := range c.nodes[1:] {
		c.nodes[0].do("CLUSTER", "MEET", "127.0.0.1", n.port)
	}
	c.ready(t)
	return c
}

// ready waits until each node knows all nodes and all slots. A node that does not require
// full coverage reports "ok" before it knows the slots of the others, and a client that
// asks it then sends commands on those slots to any node.
func (c *cluster) ready(t testing.TB) {
	t.Helper()
	eventually(t, "the cluster is ready", func() bool {
		for _, n := range c.nodes {
			info, err := n.admin.ClusterInfo(context.Background()).Result()
			if err != nil || field(info, "cluster_state") != "ok" ||
				field(info, "cluster_known_nodes") != strconv.Itoa(len(c.nodes)) ||
				field(info, "cluster_slots_assigned") != strconv.Itoa(slots) {
				return false
			}
		}
		return true
	})
}

// client returns a client of the cluster that is closed with the test.
func (c *cluster) client() *redis.ClusterClient {
	o := &redis.ClusterOptions{
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, n := range c.nodes {
		o.Addrs = append(o.Addrs, n.addr())
	}
	client := redis.NewClusterClient(o)
	c.t.Cleanup(func() { client.Close() })
	return client
}

func (c *cluster) slotOf(t testing.TB, key string) int {
	t.Helper()
	slot, err := c.nodes[0].admin.ClusterKeySlot(context.Background(), key).Result()
	require.NoError(t, err)
	return int(slot)
}

// owner returns the index of the node that says it has the slot.
func (c *cluster) owner(slot int) int {
	c.t.Helper()
	for i, n := range c.nodes {
		for _, r := range n.do("CLUSTER", "SLOTS").([]any) {
			r := r.([]any) // first, last, master, replicas
			master := r[2].([]any)
			if r[0].(int64) <= int64(slot) && int64(slot) <= r[1].(int64) && master[1] == int64(n.port) {
				return i
			}
		}
	}
	c.t.Fatalf("no node has slot %d", slot)
	return 0
}

// moveSlot moves a slot with its keys to another node, while clients use it.
func (c *cluster) moveSlot(t testing.TB, slot, to int) {
	t.Helper()
	from := c.owner(slot)
	require.NotEqual(t, to, from, "it is there already")
	source, target := c.nodes[from], c.nodes[to]
	id := func(n *server) any { return n.do("CLUSTER", "MYID") }
	// The target first: the source sends clients there as soon as it knows.
	target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", id(source))
	source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", id(target))
	for {
		// Small batches, so that clients find some keys here and some keys moved.
		keys := source.do("CLUSTER", "GETKEYSINSLOT", slot, 3).([]any)
		if len(keys) == 0 {
			break // the source creates no new keys in the slot
		}
		source.do(slices.Concat([]any{"MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS"}, keys)...)
	}
	// The target first again: if the source forgot the slot before the target had
	// it, clients would be sent back and forth.
	for _, n := range []*server{target, source, c.nodes[3-from-to]} {
		n.do("CLUSTER", "SETSLOT", slot, "NODE", id(target))
	}
}
