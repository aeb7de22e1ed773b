package redis_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
	"github.com/ratelimit-go/ratelimit/redisstore/rueidis"
	"github.com/ratelimit-go/ratelimit/redisstore/valkey"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	valkeyclient "github.com/valkey-io/valkey-go"
)

// A maker makes a store as users do, with a client that has default options.
type maker func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store

var makers = map[string]maker{
	"goredis": func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { c.Close() })
		s, err := goredis.New(c, opts...)
		require.NoError(t, err)
		return s
	},
	"rueidis": func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
		s, err := rueidis.New(newRueidis(t, rueidisclient.ClientOption{InitAddress: []string{addr}}), opts...)
		require.NoError(t, err)
		return s
	},
	"valkey": func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
		s, err := valkey.New(newValkey(t, valkeyclient.ClientOption{InitAddress: []string{addr}}), opts...)
		require.NoError(t, err)
		return s
	},
}

// clients are those that a test runs with: all at night, and in CI one, which the name of the test
// says, and those of always. In CI, valkey, which has the code of rueidis, is only one of always.
func clients(t testing.TB, always ...string) map[string]maker {
	if budget.Nightly() {
		return makers
	}
	one := []string{"goredis", "rueidis"}[len(t.Name())%2]
	chosen := map[string]maker{one: makers[one]}
	for _, name := range always {
		chosen[name] = makers[name]
	}
	return chosen
}

// distances are how far away servers are: 0.5 ms in CI, and more at night.
func distances() map[string]wire {
	if budget.Nightly() {
		return wires
	}
	return map[string]wire{"0.5 ms": wires["0.5 ms"]}
}

// withEach runs a test with the clients, usually 0.5 ms away from the server: see
// TestEverywhere.
func withEach(t *testing.T, test func(t *testing.T, create maker)) {
	for name, m := range clients(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(t testing.TB, addr string, opts ...redisstore.Option) *redisstore.Store {
				return m(t, startWire(t, addr, usualWire()).addr(), opts...)
			})
		})
	}
}

// hourly is a limit that does not refill while a test runs.
func hourly(limit int) ratelimit.Algorithm {
	return ratelimit.FixedWindow{Limit: limit, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}
}

// limiter returns a limiter named after its limit, unless opts has a name.
func limiter(t testing.TB, store ratelimit.Store, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(alg, append([]ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName(fmt.Sprintf("%#v", alg))}, opts...)...)
	require.NoError(t, err)
	return l
}

// A load counts what happens to callers that take from a key all the time.
type load struct {
	allowed  atomic.Int64 // by Redis
	denied   atomic.Int64 // by Redis
	degraded atomic.Int64 // decided by the policy
	open     atomic.Int64 // of those, allowed
	why      atomic.Value // the latest error

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// start starts callers that take one event of key after another, until the load ends.
func start(t testing.TB, l ratelimit.Limiter, key string, callers int) *load {
	of := &load{}
	var ctx context.Context
	ctx, of.stop = context.WithCancel(t.Context())
	for range callers {
		of.wg.Go(func() {
			for ctx.Err() == nil {
				of.ask(l, key)
			}
		})
	}
	t.Cleanup(of.end)
	return of
}

func (of *load) ask(l ratelimit.Limiter, key string) {
	d, err := l.Take(context.Background(), key, 1)
	if err != nil {
		of.why.Store(err.Error())
	}
	switch {
	case d.Degraded != (err != nil):
		panic("a decision that is degraded and no error, or the other way round")
	case d.Degraded && d.Allowed:
		of.open.Add(1)
		of.degraded.Add(1)
	case d.Degraded:
		of.degraded.Add(1)
	case d.Allowed:
		of.allowed.Add(1)
	default:
		of.denied.Add(1)
	}
}

func (of *load) end() {
	of.stop()
	of.wg.Wait()
}

// meet waits until count has grown by some calls from now on.
func meet(t testing.TB, what string, count *atomic.Int64) {
	t.Helper()
	was := count.Load()
	eventually(t, what, func() bool { return count.Load() > was+10 })
}

// exact checks that a new key grants exactly its limit, as soon as the server answers. If the
// policy decided some of the calls, because the server or this process did not run in time,
// it asks for another key.
func exact(t testing.TB, store ratelimit.Store, key string) {
	t.Helper()
	l := limiter(t, store, hourly(20), ratelimit.WithName("exact"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	var of *load
	tries := 0
	eventually(t, "the server answers all calls for a key", func() bool {
		tries++
		of = &load{}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 10 {
					of.ask(l, fmt.Sprint(key, tries))
				}
			})
		}
		wg.Wait()
		return of.degraded.Load() == 0
	})
	assert.EqualValues(t, 20, of.allowed.Load(), "try %d", tries)
}

// When the limit of a key changes, its leases are given back, and the new limit keeps what
// was spent.
func TestLeaseOfChangedLimit(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		const before, after = 10_000, 5_000
		var limit atomic.Int64
		limit.Store(before)
		store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithLease(100, time.Hour))
		l := limiter(t, store, hourly(before), ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return hourly(int(limit.Load())), nil }))
		used := 0
		for store.Stats().Leased < 1000 || store.Stats().Leased%2 == 0 {
			require.True(t, l.Allow("k"))
			used++
		}
		limit.Store(after)
		for range 1000 {
			require.True(t, l.Allow("k"))
			used++
		}
		require.NoError(t, store.Close(t.Context()))
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, after-used, d.Remaining)
		assert.Greater(t, store.Stats().Leased, uint64(1100), "it is leased again")
		assert.Zero(t, store.Stats().Lost)
	})
}

// While callers disagree about the limit of a key, nothing is leased.
func TestNoLeaseOfDisputedLimit(t *testing.T) {
	s := startServer(t)
	store := makers["goredis"](t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithLease(100, time.Hour))
	var calls atomic.Int64
	l := limiter(t, store, hourly(1000), ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
		ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
			return hourly(1000 + 1000*int(calls.Add(1)/2%2)), nil // the first of two adopts
		}))
	const used = 101
	for range used {
		require.True(t, l.Allow("k"))
	}
	d, err := l.Peek(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, d.Limit-used, d.Remaining)
}
