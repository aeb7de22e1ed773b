package redis_test

import (
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

// takes returns a function that reports whether Redis decides, on a limiter whose connections, as
// many as the client wants, are there.
func takes(t *testing.T, store ratelimit.Store) func() bool {
	t.Helper()
	l := limiter(t, store, hourly(1_000_000), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	take := func() bool {
		_, err := l.Take(t.Context(), "k", 1)
		return err == nil
	}
	eventually(t, "it is connected", take)
	for range 50 { // rueidis and valkey choose a connection at random
		require.True(t, take())
	}
	return take
}

// A name leads to the new primary after a failover, and the old one, a replica now, keeps its
// connections.
func TestNameOfNewPrimary(t *testing.T) {
	for name, create := range makers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, replica := startReplicated(t)
			p := startProxy(t, primary.addr())
			take := takes(t, create(t, p.addr(), redisstore.WithTimeout(patient)))
			failover(t, primary, replica)
			require.False(t, take(), "the old primary answers")
			p.lead(replica.addr())
			eventually(t, "the new primary answers", take)
		})
	}
}

// While a server replies that it carries out no command, the client connects again, whatever the
// reply is, and whichever way the client has to send commands.
func TestUnwillingServer(t *testing.T) {
	for name, connect := range connectors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			for _, reply := range []string{
				"READONLY You can't write against a read only replica.",
				"ERR READONLY You can't write against a read only replica.",
				"ERR Error running script (call to f_0123): @user_script:7: -READONLY You can't write against a read only replica.",
				"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
				"LOADING Redis is loading the dataset in memory",
				"NOAUTH Authentication required.",
				"NOREPLICAS Not enough good replicas to write.",
				"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
			} {
				p := startProxy(t, s.addr())
				store, err := redisstore.New(connect(t, p.addr()), redisstore.WithTimeout(patient))
				require.NoError(t, err)
				take := takes(t, store)
				p.say(reply)
				require.False(t, take(), reply)
				eventually(t, "a new connection answers: "+reply, take)
			}
		})
	}
}

// TestUnwillingTogether: also if only TakeEach sends commands, for which go-redis has connections
// of their own.
func TestUnwillingTogether(t *testing.T) {
	for name, create := range makers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, startServer(t).addr())
			l := limiter(t, create(t, p.addr(), redisstore.WithTimeout(patient)), hourly(1_000_000), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			take := func() bool {
				_, err := l.TakeEach(t.Context(), []string{"a", "b"}, 1, nil)
				return err == nil
			}
			eventually(t, "it is connected", take)
			for range 50 {
				require.True(t, take())
			}
			p.say("LOADING Redis is loading the dataset in memory")
			require.False(t, take())
			eventually(t, "a new connection answers", take)
		})
	}
}

// TestUnwillingCheck: Check alone gets a new connection, too.
func TestUnwillingCheck(t *testing.T) {
	for name, create := range makers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, startServer(t).addr())
			store := create(t, p.addr())
			check := func() bool { return store.Check(t.Context()) == nil }
			eventually(t, "it is connected", check)
			for range 50 {
				require.True(t, check())
			}
			p.say("NOAUTH Authentication required.")
			require.False(t, check())
			eventually(t, "a new connection answers", check)
		})
	}
}

// A connection that has died without a sign is replaced: by go-redis when a call has had no answer
// in time, and by rueidis and valkey when their own timeout has passed.
func TestSilentConnection(t *testing.T) {
	for name, create := range map[string]maker{
		"goredis": makers["goredis"],
		"rueidis": func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
			c := newRueidis(t, rueidisclient.ClientOption{InitAddress: []string{addr}, ConnWriteTimeout: 200 * time.Millisecond})
			s, err := rueidis.New(c, opts...)
			require.NoError(t, err)
			return s
		},
		"valkey": func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
			c := newValkey(t, valkeyclient.ClientOption{InitAddress: []string{addr}, ConnWriteTimeout: 200 * time.Millisecond})
			s, err := valkey.New(c, opts...)
			require.NoError(t, err)
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, startServer(t).addr())
			take := takes(t, create(t, p.addr()))
			p.silence()
			require.False(t, take())
			eventually(t, "a new connection answers", take)
		})
	}
}

// A connection that has been idle for the client's ConnMaxIdleTime may have died without a sign. No
// call fails because of it: go-redis makes another one.
func TestSilentIdleConnection(t *testing.T) {
	t.Parallel()
	p := startProxy(t, startServer(t).addr())
	c := redis.NewClient(&redis.Options{Addr: p.addr(), ConnMaxIdleTime: time.Nanosecond})
	t.Cleanup(func() { c.Close() })
	store, err := goredis.New(c, redisstore.WithTimeout(time.Second))
	require.NoError(t, err)
	take := takes(t, store)
	p.silence()
	assert.True(t, take())
}
