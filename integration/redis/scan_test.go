package redis_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
	"github.com/ratelimit-go/ratelimit/redisstore/rueidis"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// scan returns the entries of the limiters of these names, by key, or by hash if there is no key.
func scan(t testing.TB, store *redisstore.Store, limiters ...string) map[string]redisstore.Entry {
	t.Helper()
	entries := map[string]redisstore.Entry{}
	for entry, err := range store.Scan(t.Context(), limiters...) {
		require.NoError(t, err)
		entries[entry.Key+entry.Hash] = entry
	}
	return entries
}

// TestScanAlgorithms: an entry has the limit, and what Peek returns.
func TestScanAlgorithms(t *testing.T) {
	keys := []string{"k", "a{b}c", "", "@1:", strings.Repeat("long", 100)}
	for client, create := range makers {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			addr := startServer(t).addr()
			for name, alg := range storetest.Algorithms() {
				for _, own := range []bool{false, true} {
					store := create(t, addr, redisstore.WithTimeout(patient), redisstore.WithDenialCache(0), redisstore.WithPrefix(prefixes()))
					opts := []ratelimit.Option{ratelimit.WithName(name + "{%@}")}
					if own {
						opts = append(opts, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil }))
					}
					l := limiter(t, store, alg, opts...)
					assertScanned(t, store, l, keys, fmt.Sprint(name, own))
				}
			}
		})
	}
}

// assertScanned takes events from keys, and asserts that Scan finds these keys as they are.
func assertScanned(t *testing.T, store *redisstore.Store, l ratelimit.Limiter, keys []string, what string) {
	t.Helper()
	before, after := map[string]ratelimit.Decision{}, map[string]ratelimit.Decision{}
	peek := func(into map[string]ratelimit.Decision) {
		for _, key := range keys {
			d, err := l.Peek(t.Context(), key)
			require.NoError(t, err)
			into[key] = d
		}
	}
	for i, key := range keys {
		_, err := l.Take(t.Context(), key, 1+i%3)
		require.NoError(t, err)
	}
	peek(before)
	entries := scan(t, store)
	peek(after)
	alg, err := l.Describe().AlgorithmOf(t.Context(), "k")
	require.NoError(t, err)
	for _, key := range keys {
		id := key
		if len(key) > 128 {
			sum := sha256.Sum256([]byte(key))
			id = base64.RawURLEncoding.EncodeToString(sum[:])
		}
		entry, found := entries[id]
		if !found {
			assert.Zero(t, after[key].ResetAfter, "%s %q: a key in use is found", what, key)
			continue
		}
		d := entry.Decision
		require.NoError(t, entry.Err, "%s %q", what, key)
		assert.Equal(t, l.Describe().Name, entry.Limiter)
		assert.Equal(t, alg, entry.Algorithm, "%s %q", what, key)
		assert.Equal(t, before[key].Limit, d.Limit, "%s %q", what, key)
		assert.GreaterOrEqual(t, d.Remaining, before[key].Remaining, "%s %q", what, key)
		assert.LessOrEqual(t, d.Remaining, after[key].Remaining, "%s %q", what, key)
		assert.LessOrEqual(t, d.ResetAfter, before[key].ResetAfter, "%s %q", what, key)
		assert.GreaterOrEqual(t, d.ResetAfter, after[key].ResetAfter, "%s %q", what, key)
	}
}

// TestScanStates: whatever has happened to a key, its entry says so, and those of the others follow.
func TestScanStates(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(patient))
		l := limiter(t, store, hourly(10), ratelimit.WithName("api"))
		bucket := limiter(t, store, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, ratelimit.WithName("bucket"))
		limit := ratelimit.Algorithm(ratelimit.SlidingLog{Limit: 10, Window: time.Hour})
		changing := limiter(t, store, limit, ratelimit.WithName("changing"),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return limit, nil }))
		take := func(l ratelimit.Limiter, key string, n int) {
			d, err := l.Take(t.Context(), key, n)
			require.NoError(t, err)
			require.True(t, d.Allowed)
		}
		take(l, "taken", 3)
		take(l, "damaged", 3)
		take(bucket, "short", 3)
		_, _, err := l.Hold(t.Context(), "held", 4)
		require.NoError(t, err)
		take(bucket, "reserved", 10)
		_, _, err = bucket.Reserve(t.Context(), "reserved", 5)
		require.NoError(t, err)
		_, err = l.Charge(t.Context(), "charged", 25)
		require.NoError(t, err)
		for _, span := range []time.Duration{time.Hour, 2 * time.Hour} {
			limit = ratelimit.FixedWindow{Limit: 10, Window: span}
			take(changing, "changed", 2)
		}

		name := func(key string) string { return "rl:api@f3:" + key }
		require.Equal(t, int64(1), s.do("EXISTS", name("damaged")))
		s.do("SET", name("damaged"), "damaged")
		s.do("SET", name("later"), "\x09\x01\x02\x03")
		s.do("RPUSH", name("list"), "of another program")
		for _, foreign := range []string{"rl:api@f3", "rl:api@f4:k", "rl:api@3:k", "rl:api@f3#k", "rl:api:k", "x:api@f3:k", "xrl:api@f3:k", "rl:", ""} {
			s.do("SET", foreign, "of another program")
		}
		before := s.do("DBSIZE")
		entries := scan(t, store)
		assert.Equal(t, before, s.do("DBSIZE"), "Scan changes nothing")
		for key, remaining := range map[string]int{"taken": 7, "short": 7, "held": 6, "reserved": 0, "charged": 0, "changed": 6} {
			require.NoError(t, entries[key].Err, key)
			assert.Equal(t, remaining, entries[key].Decision.Remaining, key)
			assert.Equal(t, remaining > 0, entries[key].Decision.Allowed, key)
		}
		assert.Equal(t, limit, entries["changed"].Algorithm, "the limit that granted last")
		assert.ErrorIs(t, entries["damaged"].Err, ratelimit.ErrState)
		assert.ErrorIs(t, entries["later"].Err, ratelimit.ErrState)
		assert.ErrorContains(t, entries["list"].Err, "WRONGTYPE")
		assert.Len(t, entries, 9)
		assert.Len(t, scan(t, store, "api"), 6)
		assert.Len(t, scan(t, store, "bucket", "changing"), 3)
		assert.Empty(t, scan(t, store, "none"))

		other := scan(t, create(t, s.addr(), redisstore.WithTimeout(patient)))
		assert.ErrorIs(t, other["short"].Err, redisstore.ErrUnknownLimit)
		assert.Equal(t, entries["held"].Algorithm, other["held"].Algorithm, "other values say what their limit is")
		assert.Empty(t, scan(t, create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithPrefix("r?:"))), "a prefix is no pattern")
		odd := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithPrefix(`[r]?*\l:`))
		take(limiter(t, odd, hourly(10), ratelimit.WithName(`[a]*`)), "k", 1)
		assert.Len(t, scan(t, odd), 1)
		assert.Len(t, scan(t, odd, `[a]*`), 1)
	})
}

// TestScanCluster: Scan finds the keys of all servers, each of which has thousands.
func TestScanCluster(t *testing.T) {
	t.Parallel()
	conns := clusterConns(t, startCluster(t))
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": startServer(t).addr(), "b": startServer(t).addr()}})
	t.Cleanup(func() { ring.Close() })
	assertAllScanned(t, goredis.NewConn(ring), goredis.NewConn(ring))
	assertAllScanned(t, conns["goredis"], conns["goredis"], conns["rueidis"], conns["valkey"])
}

// assertAllScanned stores 10,000 keys through a Conn, and asserts that others list them.
func assertAllScanned(t *testing.T, through redisstore.Conn, others ...redisstore.Conn) {
	t.Helper()
	store, err := redisstore.New(through, redisstore.WithTimeout(patient))
	require.NoError(t, err)
	l := limiter(t, store, hourly(10), ratelimit.WithName("many"))
	var keys []string
	for i := range 10_000 {
		keys = append(keys, strconv.Itoa(i))
	}
	for batch := range slices.Chunk(keys, 500) {
		_, err := l.TakeEach(t.Context(), batch, 1, nil)
		require.NoError(t, err)
	}
	for _, conn := range others {
		store, err := redisstore.New(conn, redisstore.WithTimeout(patient))
		require.NoError(t, err)
		entries := scan(t, store, "many")
		assert.Len(t, entries, len(keys))
		for key, entry := range entries {
			require.NoError(t, entry.Err, key)
			require.Equal(t, 9, entry.Decision.Remaining, key)
		}
	}
}

// TestScanEnds: a loop may end early, and the end of the context ends a scan, even while the server
// does not answer.
func TestScanEnds(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(patient))
		l := limiter(t, store, hourly(10), ratelimit.WithName("many"))
		var keys []string
		for i := range 2000 {
			keys = append(keys, strconv.Itoa(i))
		}
		_, err := l.TakeEach(t.Context(), keys, 1, nil)
		require.NoError(t, err)
		found := 0
		for _, err := range store.Scan(t.Context()) {
			require.NoError(t, err)
			found++
			if found == 10 {
				break
			}
		}
		assert.Equal(t, 10, found)

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		found = 0
		var failed error
		for _, err := range store.Scan(ctx) {
			if err != nil {
				failed = err
				continue
			}
			found++
			if found == 10 {
				s.stop()
				cancel()
			}
		}
		assert.ErrorIs(t, failed, context.Canceled)
		assert.Less(t, found, len(keys))
		s.cont()
	})
}

// TestScanOtherClients: a client that does not say which servers it has cannot list keys.
func TestScanOtherClients(t *testing.T) {
	t.Parallel()
	store, err := redisstore.New(connectors["goredis, auto-pipelining"](t, startServer(t).addr()))
	require.NoError(t, err)
	var failed []error
	for _, err := range store.Scan(t.Context()) {
		failed = append(failed, err)
	}
	require.Len(t, failed, 1)
	assert.ErrorIs(t, failed[0], ratelimit.ErrInvalid)
	assert.ErrorContains(t, failed[0], "*redis.AutoPipeliner")
}

// TestScanUser: besides the permissions of a store, Scan needs those that docs/redis.md names.
func TestScanUser(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.do(documentedUser(t)...)
	one := redis.NewClient(&redis.Options{Addr: s.addr(), Username: userName, Password: userPassword})
	t.Cleanup(func() { one.Close() })
	other, err := rueidisclient.NewClient(rueidisclient.ClientOption{
		InitAddress: []string{s.addr()}, Username: userName, Password: userPassword, DisableCache: true,
	})
	require.NoError(t, err)
	t.Cleanup(other.Close)
	for name, conn := range map[string]redisstore.Conn{"goredis": goredis.NewConn(one), "rueidis": rueidis.NewConn(other)} {
		s.do("ACL", "SETUSER", userName, "-scan")
		store, err := redisstore.New(conn, redisstore.WithTimeout(patient))
		require.NoError(t, err)
		require.True(t, limiter(t, store, hourly(10), ratelimit.WithName("api")).Allow("k"))
		var failed error
		for _, err := range store.Scan(t.Context()) {
			failed = errors.Join(failed, err)
		}
		assert.ErrorContains(t, failed, "NOPERM", name)
		s.do(documentedUser(t, "+scan")...)
		assert.Len(t, scan(t, store), 1, name)
	}
}

// TestScanReplica: the keys of a replica, which are those of its primary, are not listed again.
func TestScanReplica(t *testing.T) {
	t.Parallel()
	primary, replica := startReplicated(t)
	option := rueidisclient.ClientOption{
		InitAddress:    []string{primary.addr()},
		SendToReplicas: func(rueidisclient.Completed) bool { return false },
	}
	option.Standalone.ReplicaAddress = []string{replica.addr()}
	client, err := rueidisclient.NewClient(option)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	require.Len(t, client.Nodes(), 2)
	store, err := rueidis.New(client, redisstore.WithTimeout(patient))
	require.NoError(t, err)
	require.True(t, limiter(t, store, hourly(10), ratelimit.WithName("api")).Allow("k"))
	eventually(t, "the key is copied", func() bool { return replica.do("DBSIZE") == int64(1) })
	found := 0
	for _, err := range store.Scan(t.Context()) {
		require.NoError(t, err)
		found++
	}
	assert.Equal(t, 1, found)
}
