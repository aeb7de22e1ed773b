package redis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
)

// When a limit falls while events are leased, these are given back, or counted as lost, and
// none vanishes.
func TestLeaseOfLoweredLimit(t *testing.T) {
	s := startServer(t)
	for _, lowered := range []int{300, 50} {
		for name, alg := range algorithms(1000) {
			if name == "WarmingUp" || name == "LeakyBucket" {
				continue // are not leased
			}
			var limit atomic.Int64
			limit.Store(1000)
			look := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
				return algorithms(int(limit.Load()))[name], nil
			})
			prefix := redisstore.WithPrefix(prefixes())
			leasing, err := goredis.New(s.admin, prefix, redisstore.WithTimeout(patient), redisstore.WithLease(64, time.Hour))
			require.NoError(t, err)
			plain, err := goredis.New(s.admin, prefix, redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
			require.NoError(t, err)
			l, other := limiter(t, leasing, alg, look), limiter(t, plain, alg, look)
			granted := 0
			for leasing.Stats().Leased == 0 && granted < 300 && l.Allow("k") {
				granted++
			}
			require.True(t, other.AllowN("k", 400), name)
			granted += 400
			limit.Store(int64(lowered))
			require.False(t, other.Allow("k"), name)
			require.NoError(t, leasing.Close(t.Context()))
			limit.Store(1000)
			d, err := other.Peek(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, 1000, granted+d.Remaining+int(leasing.Stats().Lost), "%s, to %d", name, lowered)
		}
	}
}

// When a lease ends while another process's reservation is ahead, its events are given back
// or counted as lost, so that none has vanished once the reservation is cancelled.
func TestLeaseBehindReservation(t *testing.T) {
	s := startServer(t)
	for name, alg := range algorithms(1000) {
		if name == "WarmingUp" || name == "LeakyBucket" {
			continue // are not leased
		}
		prefix := redisstore.WithPrefix(prefixes())
		leasing, err := goredis.New(s.admin, prefix, redisstore.WithTimeout(patient), redisstore.WithLease(64, time.Hour))
		require.NoError(t, err)
		plain, err := goredis.New(s.admin, prefix, redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
		require.NoError(t, err)
		l, other := limiter(t, leasing, alg), limiter(t, plain, alg)
		granted := 0
		for leasing.Stats().Leased == 0 && granted < 300 && l.Allow("k") {
			granted++
		}
		r, _, err := other.Reserve(t.Context(), "k", 999)
		require.NoError(t, err)
		require.Positive(t, r.Delay(), name)
		require.NoError(t, leasing.Close(t.Context()))
		r.Cancel()
		d, err := other.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 1000, granted+d.Remaining+int(leasing.Stats().Lost), name)
	}
}

// When a limit changes to one of another kind, the lease of a key is given back to the state
// that it was taken from, as long as that is there: the old limit may be used again.
func TestLeaseOfLimitOfOtherKind(t *testing.T) {
	s := startServer(t)
	was := hourly(1000)
	var other ratelimit.Algorithm = ratelimit.All{was}
	conn := &refusing{Conn: connectors["goredis"](t, s.addr())}
	store, err := redisstore.New(conn, redisstore.WithTimeout(patient), redisstore.WithLease(64, time.Hour))
	require.NoError(t, err)
	c := newChangeable(t, store, other)
	c.ask(t, "another key", 1, 2)
	script := conn.script.Load() // that decides under the other limit
	c.limit.Store(&was)
	granted := 0
	for store.Stats().Leased == 0 && granted < 300 {
		granted += c.ask(t, "k", 1, 1)
	}
	c.limit.Store(&other)
	conn.refused.Store(script)
	_, err = c.Take(t.Context(), "k", 1)
	require.ErrorIs(t, err, errRefused)
	conn.refused.Store("")
	c.limit.Store(&was)
	require.NoError(t, store.Close(t.Context()))
	d, err := c.Peek(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, 1000, granted+d.Remaining+int(store.Stats().Lost))
	assert.Zero(t, store.Stats().Lost)
}

// A refusing is a connection that fails to run one script.
type refusing struct {
	redisstore.Conn
	script, refused atomic.Value // the hashes of the latest script, and of the one that is refused
}

var errRefused = errors.New("refused")

func (r *refusing) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	return oneByOne(commands, func(c redisstore.Command) (string, error) {
		if c.Words[0] == "EVALSHA" {
			r.script.Store(c.Words[1])
			if r.refused.Load() == c.Words[1] {
				return "", errRefused
			}
		}
		reply := r.Conn.Do(ctx, []redisstore.Command{c})[0]
		return reply.Text, reply.Err
	})
}

// Turns of more events than a limit that was lowered since grants at once come all the same.
func TestTurnsAboveALoweredLimit(t *testing.T) {
	conn := connectors["goredis"](t, startServer(t).addr())
	for name, of := range map[string]func(limit int) ratelimit.Algorithm{
		"SlidingWindow": func(n int) ratelimit.Algorithm { return ratelimit.SlidingWindow{Limit: n, Window: time.Second} },
		"RollingWindow": func(n int) ratelimit.Algorithm {
			return ratelimit.RollingWindow{Quota: n, Window: time.Second, Period: 100 * time.Millisecond}
		},
		"SlidingLog":  func(n int) ratelimit.Algorithm { return ratelimit.SlidingLog{Limit: n, Window: time.Second} },
		"InFlight":    func(n int) ratelimit.Algorithm { return ratelimit.InFlight{Limit: n, Timeout: time.Second} },
		"FixedWindow": func(n int) ratelimit.Algorithm { return ratelimit.FixedWindow{Limit: n, Window: time.Second} },
	} {
		t.Run(name, func(t *testing.T) {
			store, err := redisstore.New(conn, redisstore.WithTimeout(patient), redisstore.WithPrefix(prefixes()))
			require.NoError(t, err)
			alg := of(10)
			l := limiter(t, store, alg, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil }))
			require.True(t, l.AllowN("k", 10))
			one, _, err := l.Reserve(t.Context(), "k", 8)
			require.NoError(t, err)
			two, _, err := l.Reserve(t.Context(), "k", 8)
			require.NoError(t, err)
			alg = of(3)
			_, err = l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.NoError(t, one.Wait(t.Context()))
			_, err = l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			two.Cancel()
			_, err = l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
		})
	}
}
