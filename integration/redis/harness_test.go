package redis_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests in this file test the helpers of the others.

func TestServer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	assert.Equal(t, "PONG", s.do("PING"))
	assert.Equal(t, "OK", s.do("SET", "k", "v"))
	assert.Equal(t, "v", s.client().Get(t.Context(), "k").Val())
	if major(t, s.path) >= 7 {
		assert.Equal(t, "OK", s.do("DEBUG", "SLEEP", 0))
	}

	s.stop()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c := redis.NewClient(s.options())
	defer c.Close()
	require.ErrorIs(t, c.Do(short, "PING").Err(), os.ErrDeadlineExceeded, "it is connected, and there is no answer")
	s.cont()
	assert.Equal(t, "v", s.do("GET", "k"))

	s.kill()
	s.kill() // once is enough
	require.Error(t, s.client().Ping(t.Context()).Err())
	addr := s.addr()
	s.restart()
	assert.Equal(t, addr, s.addr())
	assert.Equal(t, int64(0), s.do("EXISTS", "k"))
	s.restart() // while the server runs
	s.stop()    // a stopped server still ends
}

func TestServerArguments(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--maxmemory", "2mb", "--requirepass", "secret")
	assert.Equal(t, "2097152", s.info("memory", "maxmemory"))
}

func TestServerPortTaken(t *testing.T) {
	t.Parallel()
	other := startServer(t)
	s := &server{t: t, path: other.path, dir: t.TempDir(), port: other.port}
	assert.False(t, s.start(), "the other one's answers are not its own")
	assert.Contains(t, string(s.log()), "Address already in use")
}

// TestClusterMoveSlot counts while the slot moves to and fro: no increment is lost or made
// twice.
func TestClusterMoveSlot(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	client := c.client()
	slot := c.slotOf(t, "{tag}")
	from := c.owner(slot)
	const keys = 50
	key := func(i int) string { return fmt.Sprintf("{tag}%d", i) }
	var counted [keys]int64
	var rounds atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for i := range keys {
				counted[i]++
				n, err := client.Incr(context.Background(), key(i)).Result()
				assert.NoError(t, err)
				assert.Equal(t, counted[i], n)
			}
			rounds.Add(1)
		}
	})
	more := func() {
		before := rounds.Load()
		eventually(t, "clients go on", func() bool { return rounds.Load() > before+1 })
	}
	more()
	asked := func() bool { // the client used a key that had moved
		return slices.ContainsFunc(c.nodes, func(n *server) bool { return n.info("errorstats", "errorstat_ASK") != "" })
	}
	to := from
	for moves := 0; moves < 3 || moves < 30 && !asked(); moves++ {
		to = (to + 1) % 3
		c.moveSlot(t, slot, to)
		assert.Equal(t, to, c.owner(slot))
		assert.Equal(t, int64(keys), c.nodes[to].do("CLUSTER", "COUNTKEYSINSLOT", slot))
		more()
	}
	close(stop)
	wg.Wait()
	for i := range keys {
		assert.Equal(t, fmt.Sprint(counted[i]), c.nodes[to].do("GET", key(i)))
	}
}

func TestReplica(t *testing.T) {
	t.Parallel()
	primary, replica := startReplicated(t)
	primary.do("SET", "k", "v")
	eventually(t, "it is copied", func() bool { return replica.do("EXISTS", "k") == int64(1) })
	primary.do("SET", "last", "v")
	failover(t, primary, replica)
	assert.Equal(t, "v", replica.do("GET", "last"))
	assert.Equal(t, "OK", replica.do("SET", "k", "w"))
	require.ErrorContains(t, primary.client().Set(t.Context(), "k", "x", 0).Err(), "READONLY")
	eventually(t, "it is copied", func() bool { return primary.do("GET", "k") == "w" })

	// And back, without waiting for the writer.
	replica.kill()
	promote(t, primary)
	assert.Equal(t, "OK", primary.do("SET", "k", "x"))
	replica.restart()
	follow(t, replica, primary)
	assert.Equal(t, "x", replica.do("GET", "k"))
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	primary, replica := startReplicated(t)
	addr := startSentinel(t, primary)
	c := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: sentinelName, SentinelAddrs: []string{addr}, DisableIdentity: true,
	})
	defer c.Close()
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	assert.Equal(t, "v", primary.do("GET", "k"))
	primary.kill()
	eventually(t, "writes go to the replica", func() bool { return c.Set(t.Context(), "k", "w", 0).Err() == nil })
	assert.Equal(t, "w", replica.do("GET", "k"))
}

// throughProxy returns a server, a proxy to it, and a client that has one connection
// through the proxy.
func throughProxy(t *testing.T) (*server, *proxy, *redis.Client) {
	t.Helper()
	s := startServer(t)
	p := startProxy(t, s.addr())
	o := s.options()
	o.Addr = p.addr()
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.Ping(t.Context()).Err())
	return s, p, c
}

func TestProxyCut(t *testing.T) {
	t.Parallel()
	s, p, c := throughProxy(t)
	p.cutAfterRequest()
	require.Error(t, c.Incr(t.Context(), "k").Err())
	assert.Equal(t, "1", s.do("GET", "k"), "it is done")
	assert.Equal(t, int64(2), c.Incr(t.Context(), "k").Val(), "that was the only one")

	p.cutAfterRequest("INCR")
	require.NoError(t, c.Set(t.Context(), "other", "v", 0).Err())
	require.Error(t, c.Incr(t.Context(), "k").Err())
	assert.Equal(t, int64(4), c.Incr(t.Context(), "k").Val())
}

// TestProxyCutAmong cuts one of several requests that are sent together: those before it are
// answered, and those after it are not sent.
func TestProxyCutAmong(t *testing.T) {
	t.Parallel()
	s, p, _ := throughProxy(t)
	conn, err := net.Dial("tcp", p.addr())
	require.NoError(t, err)
	defer conn.Close()
	p.cutAfterRequest("incr")
	_, err = conn.Write([]byte("*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\r\n\r\n*2\r\n$4\r\nINCR\r\n$1\r\na\r\n*2\r\n$4\r\nINCR\r\n$1\r\nb\r\n"))
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	r := bufio.NewReader(conn)
	got, err := readValue(r)
	require.NoError(t, err)
	assert.Equal(t, "$4\r\n\r\n\r\n\r\n", string(got))
	_, err = r.ReadByte()
	require.Error(t, err)
	assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is closed")
	assert.Equal(t, "1", s.do("GET", "a"))
	assert.Equal(t, int64(0), s.do("EXISTS", "b"))
}

func TestProxyRefuse(t *testing.T) {
	t.Parallel()
	s, p, c := throughProxy(t)
	p.refuse()
	require.Error(t, c.Incr(t.Context(), "k").Err())
	require.Error(t, c.Incr(t.Context(), "k").Err())
	assert.Equal(t, int64(0), s.do("EXISTS", "k"))
	p.accept()
	assert.Equal(t, int64(1), c.Incr(t.Context(), "k").Val())
}

func TestProxyHold(t *testing.T) {
	t.Parallel()
	s, p, c := throughProxy(t)
	p.hold()
	var n atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() { n.Store(c.Incr(context.Background(), "k").Val()) })
	eventually(t, "the reply is held back", func() bool { return p.holding() == 1 })
	assert.Equal(t, "1", s.do("GET", "k"), "it is done")
	assert.Zero(t, n.Load(), "but not answered")
	p.release()
	wg.Wait()
	assert.Equal(t, int64(1), n.Load())
	p.hold() // leaves no goroutine behind
	wg.Go(func() { _ = c.Ping(context.Background()).Err() })
	eventually(t, "the reply is held back", func() bool { return p.holding() == 1 })
	p.refuse()
	wg.Wait()
	eventually(t, "nothing is held back", func() bool { return p.holding() == 0 })
}

func TestReadValue(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"+OK\r\n", "-ERR x\r\n", ":1\r\n", "_\r\n", "$-1\r\n", "*-1\r\n", "$0\r\n\r\n", "$3\r\na\r\n\r\n",
		"*0\r\n", "*2\r\n*1\r\n:1\r\n$2\r\n\r\n\r\n", "%1\r\n+a\r\n~1\r\n#t\r\n", "|1\r\n+a\r\n:1\r\n*1\r\n,1.5\r\n", ">1\r\n+x\r\n",
	} {
		r := bufio.NewReader(strings.NewReader(value + "+next\r\n"))
		got, err := readValue(r)
		require.NoError(t, err)
		assert.Equal(t, value, string(got))
		got, err = readValue(r)
		require.NoError(t, err)
		assert.Equal(t, "+next\r\n", string(got))
	}
	for _, value := range []string{"", "+OK", "$x\r\n", "$3\r\na", "*2\r\n:1\r\n"} {
		_, err := readValue(bufio.NewReader(strings.NewReader(value)))
		assert.Error(t, err, "%q", value)
	}
	assert.Equal(t, "evalsha", commandOf([]byte("*2\r\n$7\r\nEVALSHA\r\n$1\r\nx\r\n")))
	assert.Empty(t, commandOf([]byte("PING\r\n")))
}
