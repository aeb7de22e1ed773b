package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	valkeyclient "github.com/valkey-io/valkey-go"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
	"github.com/ratelimit-go/ratelimit/redisstore/rueidis"
	"github.com/ratelimit-go/ratelimit/redisstore/valkey"
)

// clusterConns returns a Conn to a cluster for each client.
func clusterConns(t *testing.T, c *cluster) map[string]redisstore.Conn {
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.addr())
	}
	one := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { one.Close() })
	return map[string]redisstore.Conn{
		"goredis": goredis.NewConn(one),
		"rueidis": rueidis.NewConn(newRueidis(t, rueidisclient.ClientOption{InitAddress: addrs})),
		"valkey":  valkey.NewConn(newValkey(t, valkeyclient.ClientOption{InitAddress: addrs})),
	}
}

// Every promise holds in a cluster as well. Its nodes do not know the scripts at first.
func TestClusterConformance(t *testing.T) {
	long(t) // TestConformance is the same on one server
	t.Parallel()
	c := startCluster(t)
	for name, conn := range clusterConns(t, c) {
		t.Run(name, func(t *testing.T) {
			conform(t, func() redisstore.Conn { return conn }, 60)
		})
	}
}

// Keys in a slot that moves between nodes lose and gain nothing.
func TestMovingSlot(t *testing.T) {
	t.Parallel()
	askWhileMoving(t, 100, func(_ *testing.T, _ int, l ratelimit.Limiter, of []load) {
		k := rand.IntN(len(of))
		of[k].ask(l, strconv.Itoa(k))
	})
}

// askWhileMoving has callers, which are numbered, ask for keys of one slot while that moves
// between the nodes of a cluster, until all keys are denied. It checks that each key is granted
// its limit, and no more.
func askWhileMoving(t *testing.T, limit int, ask func(t *testing.T, caller int, l ratelimit.Limiter, of []load)) {
	withMovingSlot(t, func(t *testing.T, m movingSlot) {
		l := limiter(t, m.store, hourly(limit), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		of := make([]load, 20)
		m.while(t, func(caller int) { ask(t, caller, l, of) }, func() bool {
			for k := range of {
				if of[k].denied.Load() == 0 {
					return false
				}
			}
			return true
		})
		assertLimit(t, limit, of)
	})
}

// A movingSlot is a slot of a cluster, and a store whose keys are all in it.
type movingSlot struct {
	c     *cluster
	slot  int
	store *redisstore.Store
}

// withMovingSlot runs a test with each client of a cluster.
func withMovingSlot(t *testing.T, test func(t *testing.T, m movingSlot)) {
	t.Helper()
	c := startCluster(t)
	for name, conn := range clusterConns(t, c) {
		t.Run(name, func(t *testing.T) {
			tag := "{" + name + "}" // a prefix with a tag puts all keys into one slot
			store, err := redisstore.New(conn, redisstore.WithPrefix(tag), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
			require.NoError(t, err)
			test(t, movingSlot{c, c.slotOf(t, tag), store})
		})
	}
}

// while has callers, which are numbered, ask again and again while the slot moves from node to
// node, after that for a while, and until enough returns true.
func (m movingSlot) while(t *testing.T, ask func(caller int), enough func() bool) {
	t.Helper()
	var asked atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				ask(i)
				asked.Add(1)
			}
		})
	}
	to := m.c.owner(m.slot)
	for range 5 {
		meet(t, "they ask", &asked)
		to = (to + 1) % 3
		m.c.moveSlot(t, m.slot, to)
	}
	meet(t, "they ask", &asked)
	eventually(t, "they have asked enough", enough)
	stop()
	wg.Wait()
}

// When the primary is lost, grants that had not reached the replica are lost with it; then
// the limit is exact again. A failover that waits for the replica loses nothing.
func TestFailover(t *testing.T) {
	for name, connect := range map[string]func(t *testing.T, sentinel string) redisstore.Conn{
		"goredis": func(t *testing.T, sentinel string) redisstore.Conn {
			c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: sentinelName, SentinelAddrs: []string{sentinel}})
			t.Cleanup(func() { c.Close() })
			return goredis.NewConn(c)
		},
		"rueidis": func(t *testing.T, sentinel string) redisstore.Conn {
			return rueidis.NewConn(newRueidis(t, rueidisclient.ClientOption{
				InitAddress: []string{sentinel}, Sentinel: rueidisclient.SentinelOption{MasterSet: sentinelName}}))
		},
		"valkey": func(t *testing.T, sentinel string) redisstore.Conn {
			return valkey.NewConn(newValkey(t, valkeyclient.ClientOption{
				InitAddress: []string{sentinel}, Sentinel: valkeyclient.SentinelOption{MasterSet: sentinelName}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const limit = 100_000_000
			primary, _ := startReplicated(t)
			store, err := redisstore.New(connect(t, startSentinel(t, primary)), redisstore.WithTimeout(time.Second))
			require.NoError(t, err)
			l := limiter(t, store, hourly(limit), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			of := start(t, l, "k", callers)
			meet(t, "it is allowed", &of.allowed)
			primary.kill()
			meet(t, "it is allowed again", &of.allowed)
			of.end()
			d, err := l.Peek(t.Context(), "k")
			require.NoError(t, err)
			used := int64(limit - d.Remaining)
			lost := of.allowed.Load() - used
			t.Logf("%d allowed, %d degraded, %d on the new primary: %d were granted that it does not know", of.allowed.Load(), of.degraded.Load(), used, lost)
			assert.LessOrEqual(t, used, of.allowed.Load()+of.degraded.Load(), "more is spent than was requested")
			exact(t, store, "after")
		})
	}
}

// With leases, N processes get exactly the limit, and others can use what they give back.
func TestLeasesOfProcesses(t *testing.T) {
	long(t)
	for name, w := range distances() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			leasesOfProcesses(t, w, 0)
		})
	}
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		leasesOfProcesses(t, wires["0.5 ms"], 8)
	})
}

func leasesOfProcesses(t *testing.T, w wire, busy int) {
	s := startServer(t)
	const processes = 4
	addr := startWire(t, s.addr(), w).addr()
	total := runProcesses(t, processes, task{Addr: addr, Client: "rueidis", Callers: 4, Tries: 40, Busy: busy, Lease: 10, LeaseAge: time.Second})
	if busy == 0 { // callers that seldom run do not ask for enough
		assert.Positive(t, total["leased"])
	}
	delete(total, "leased")
	for name, allowed := range total {
		if name == "WarmingUp" {
			assert.Equal(t, 1, allowed, name)
			continue
		}
		// None of these limits refills within an hour, so nothing may be granted twice; and
		// unused events are given back.
		assert.LessOrEqual(t, allowed, 100, name)
	}
	store := makers["rueidis"](t, s.addr())
	for name, alg := range algorithms(100) {
		if name == "WarmingUp" {
			continue
		}
		l := limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		left := 0
		for l.Allow("k") {
			left++
		}
		assert.Equal(t, 100, total[name]+left, "%s: %d were granted, and %d were left", name, total[name], left)
	}
}

// keysOn returns keys of a limiter of this name that are on the third node, and others.
func keysOn(t *testing.T, c *cluster, conn redisstore.Conn, name string) (third, others []string) {
	t.Helper()
	probe := &recorder{Conn: conn}
	asking, err := redisstore.New(probe, redisstore.WithTimeout(patient))
	require.NoError(t, err)
	l := limiter(t, asking, hourly(1_000_000), ratelimit.WithName(name))
	for i := 0; len(third) < 10 || len(others) < 20; i++ {
		key := fmt.Sprint(i)
		require.True(t, l.Allow(key))
		if c.owner(c.slotOf(t, probe.key)) == 2 {
			third = append(third, key)
		} else {
			others = append(others, key)
		}
	}
	return third, others
}

// Each node has its own breaker: a node that hangs gets no more calls, and the others do.
func TestBreakerOfNode(t *testing.T) {
	long(t)
	t.Parallel()
	c := startCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")
	conn := clusterConns(t, c)["goredis"]
	dead, live := keysOn(t, c, conn, "x")
	store, err := goredis.New(c.client(), redisstore.WithTimeout(time.Second)) // no live node stalls for so long
	require.NoError(t, err)
	l := limiter(t, store, hourly(1_000_000), ratelimit.WithName("x"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	require.True(t, l.Allow(live[0])) // now the client knows the cluster
	c.nodes[2].stop()
	hanging := inBackground(func() {
		for store.Stats().BreakerOpen < 10_000 {
			for _, key := range dead {
				_, err := l.Take(context.Background(), key, 1)
				assert.Error(t, err)
			}
		}
	})
	eventually(t, "the node gets no more calls", func() bool { return store.Stats().BreakerOpen > 100 })
	var of load
	for _, key := range live {
		for range 20 {
			of.ask(l, key)
		}
	}
	assert.Zero(t, of.degraded.Load(), "%v", of.why.Load())
	<-hanging
	c.nodes[2].cont()
	eventually(t, "the node answers again", func() bool { _, err := l.Peek(t.Context(), dead[0]); return err == nil })
}

// A node that hangs delays its own keys only.
func TestHangingNode(t *testing.T) {
	long(t)
	t.Parallel()
	c := startCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")
	for name, conn := range clusterConns(t, c) {
		store, err := redisstore.New(conn, redisstore.WithTimeout(time.Second)) // no live node stalls for so long
		require.NoError(t, err)
		l := limiter(t, store, hourly(1_000_000), ratelimit.WithName(name), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		dead, live := keysOn(t, c, conn, name)
		c.nodes[2].stop()
		var wg sync.WaitGroup
		var ofDead, ofLive load
		for i := range callers {
			wg.Go(func() {
				for range 2 {
					ofDead.ask(l, dead[rand.IntN(len(dead))])
				}
			})
			wg.Go(func() {
				for range 100 {
					ofLive.ask(l, live[(i*7+rand.IntN(5))%len(live)])
				}
			})
		}
		wg.Wait()
		c.nodes[2].cont()
		assert.EqualValues(t, 2*callers, ofDead.degraded.Load(), name)
		assert.Zero(t, ofLive.degraded.Load(), "%s: %v", name, ofLive.why.Load())
		eventually(t, "the node answers again", func() bool { _, err := l.Peek(t.Context(), dead[0]); return err == nil })
	}
}
