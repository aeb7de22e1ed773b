package goredis

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// integration/redis tests the store with real servers.

func TestNew(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing is sent
	defer c.Close()
	s, err := New(c)
	require.NoError(t, err)
	assert.NotNil(t, s)
}

func TestNilClient(t *testing.T) {
	var none *redis.Client
	for _, c := range []redis.UniversalClient{nil, none} {
		_, err := New(c)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, "nil")
		assert.Regexp(t, "^goredis: ", err)
	}
}

func TestNilOption(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing is sent
	defer c.Close()
	_, err := New(c, redisstore.WithPrefix("x"), nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "option 1 of New is nil")
	_, err = New(c, nil)
	assert.ErrorContains(t, err, "option 0 of New is nil")
}

// A dead or a wrong address is named, although the client tries for longer than the store waits.
func TestNoConnection(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, refused }
	for name, client := range map[string]redis.UniversalClient{
		"Client":  redis.NewClient(&redis.Options{Addr: "redis:1", Dialer: dial}),
		"Cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"redis:1"}, Dialer: dial}),
		"Ring": redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "redis:1"}, Dialer: dial,
			HeartbeatFn: func(context.Context, *redis.Client) bool { return true }}),
	} {
		t.Run(name, func(t *testing.T) {
			defer client.Close()
			s, err := New(client)
			require.NoError(t, err)
			l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
				ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailureLog(nil)))
			_, err = l.Take(t.Context(), "k", 1)
			require.ErrorIs(t, err, refused)
			require.ErrorIs(t, s.Check(t.Context()), refused)
		})
	}
}

// After as many failed attempts as its pool has connections, the client tries to connect only once
// a second, and answers with the error of the latest attempt. While commands get that, it tries more
// often. It stops when nobody asks.
func TestConnectsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int64
		client := redis.NewClient(&redis.Options{Addr: "192.0.2.1:6379", PoolSize: 1, DialerRetries: 1,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				attempts.Add(1)
				return nil, errors.New("connection refused")
			}})
		conn := NewConn(client)
		var before int64
		for i := range 200 {
			if i == 100 { // after a second
				before = attempts.Load()
			}
			replies := conn.Do(t.Context(), []redisstore.Command{
				{Words: []string{"EVAL", "return 1", "1", "k"}, Key: 3},
			})
			require.ErrorContains(t, replies[0].Err, "connection refused")
			time.Sleep(10 * time.Millisecond)
			if i == 0 {
				time.Sleep(time.Millisecond) // from now on between two attempts
			}
		}
		assert.Equal(t, int64(time.Second/retry), attempts.Load()-before)
		require.NoError(t, client.Close())
		time.Sleep(5 * time.Second)
	})
}

// A command whose attempts to connect have begun before the client began to fail at once returns
// after its own attempts, however long others ask. So does the question for the slots of a cluster,
// which goes to a dead node as well, and for which the client makes all other ones wait.
func TestAttemptsOfOthersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "192.0.2.1:6379", PoolSize: 2, MaxRetries: -1,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				return nil, errors.New("connection refused")
			}})
		defer time.Sleep(5 * time.Second) // until the client has stopped
		defer client.Close()
		conn := NewConn(client)
		ask := func() {
			replies := conn.Do(t.Context(), []redisstore.Command{getOf("k")})
			assert.ErrorContains(t, replies[0].Err, "connection refused")
		}
		ask() // as long as the client tries
		returned := make(chan time.Duration, 1)
		go func() {
			time.Sleep(client.Options().DialerRetryTimeout / 2)
			begin := time.Now()
			_ = client.Get(context.Background(), "another").Err()
			returned <- time.Since(begin)
		}()
		ask() // from then on, commands fail at once
		for range 500 {
			ask()
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		require.NotEmpty(t, returned, "it waits for as long as others ask")
		assert.Less(t, <-returned, time.Second)
	})
}

// getOf returns a command on a key.
func getOf(key string) redisstore.Command {
	return redisstore.Command{Words: []string{"GET", key}, Key: 1}
}
