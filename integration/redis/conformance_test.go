package redis_test

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	valkeyclient "github.com/valkey-io/valkey-go"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
	"github.com/ratelimit-go/ratelimit/redisstore/rueidis"
	"github.com/ratelimit-go/ratelimit/redisstore/valkey"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A connector connects to a server with a client that has default options.
type connector func(t testing.TB, addr string) redisstore.Conn

var connectors = map[string]connector{
	"goredis": func(t testing.TB, addr string) redisstore.Conn {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		return goredis.NewConn(c)
	},
	"goredis, RESP2, one connection": func(t testing.TB, addr string) redisstore.Conn {
		c := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, PoolSize: 1})
		t.Cleanup(func() { c.Close() })
		return goredis.NewConn(c)
	},
	"goredis, auto-pipelining": func(t testing.TB, addr string) redisstore.Conn {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		p, err := c.AutoPipeline()
		require.NoError(t, err)
		t.Cleanup(func() { p.Close() })
		return goredis.NewConn(p)
	},
	"goredis, ring": func(t testing.TB, addr string) redisstore.Conn {
		c := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": addr}})
		t.Cleanup(func() { c.Close() })
		return goredis.NewConn(c)
	},
	"rueidis": func(t testing.TB, addr string) redisstore.Conn {
		return rueidis.NewConn(newRueidis(t, rueidisclient.ClientOption{InitAddress: []string{addr}}))
	},
	"rueidis, RESP2": func(t testing.TB, addr string) redisstore.Conn {
		return rueidis.NewConn(newRueidis(t, rueidisclient.ClientOption{InitAddress: []string{addr}, AlwaysRESP2: true, DisableCache: true}))
	},
	"valkey": func(t testing.TB, addr string) redisstore.Conn {
		return valkey.NewConn(newValkey(t, valkeyclient.ClientOption{InitAddress: []string{addr}}))
	},
	"valkey, RESP2": func(t testing.TB, addr string) redisstore.Conn {
		return valkey.NewConn(newValkey(t, valkeyclient.ClientOption{InitAddress: []string{addr}, AlwaysRESP2: true, DisableCache: true}))
	},
}

// newRueidis returns a client that is closed when the test ends.
func newRueidis(t testing.TB, option rueidisclient.ClientOption) rueidisclient.Client {
	t.Helper()
	c, err := rueidisclient.NewClient(option)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// newValkey does as newRueidis.
func newValkey(t testing.TB, option valkeyclient.ClientOption) valkeyclient.Client {
	t.Helper()
	c, err := valkeyclient.NewClient(option)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// patient is the timeout in tests that do not test timeouts.
const patient = 20 * time.Second

// Every promise of the library holds in Redis, to the microsecond.
func TestConformance(t *testing.T) {
	for name := range clients(t, "valkey") {
		t.Run(name, func(t *testing.T) {
			conn := connectors[name](t, startServer(t).addr())
			conform(t, func() redisstore.Conn { return conn }, int(budget.Histories(60, 200)))
		})
	}
}

var prefixes = newPrefixes()

// newPrefixes returns a function that returns a new prefix each time.
func newPrefixes() func() string {
	next := make(chan string)
	go func() {
		for i := 0; ; i++ {
			next <- string(rune('A'+i%26)) + time.Now().Format("05.000000000")
		}
	}()
	return func() string { return <-next }
}

func conform(t *testing.T, conn func() redisstore.Conn, steps int) {
	storetest.Run(t, storetest.Config{
		New: func(t testing.TB, _ clock.Clock) ratelimit.Store {
			s, err := redisstore.New(conn(), redisstore.WithLimiterClock(), redisstore.WithTimeout(patient), redisstore.WithPrefix(prefixes()))
			require.NoError(t, err)
			return s
		},
		Tick:     time.Microsecond,
		Steps:    steps,
		OwnClock: true, // WithLimiterClock reads it before the script runs
		Timeout:  2 * patient,
	})
}
