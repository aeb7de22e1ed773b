package contenders

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	goredisstore "github.com/ratelimit-go/ratelimit/redisstore/goredis"
	rueidisstore "github.com/ratelimit-go/ratelimit/redisstore/rueidis"
)

// Callers is the number of concurrent callers of a limiter in Redis. A client that uses a
// connection for each call has as many connections.
const Callers = 64

// Names of contenders that targets refer to, and the modules of the clients.
const (
	Rueidis   = "ratelimit, rueidis"
	GoRedis   = "ratelimit, go-redis"
	Lease     = "ratelimit, rueidis, lease"
	Settles   = "ratelimit, rueidis, Hold and Settle"
	RedisRate = "redis_rate"

	GoRedisModule = "github.com/redis/go-redis/v9"
	RueidisModule = "github.com/redis/rueidis"
)

// An opener returns a store of this library that uses the server at addr, and a function
// that closes its client.
type opener func(addr string, opts ...redisstore.Option) (*redisstore.Store, func(), error)

func openRueidis(addr string, opts ...redisstore.Option) (*redisstore.Store, func(), error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return nil, nil, err
	}
	store, err := rueidisstore.New(client, opts...)
	return store, client.Close, err
}

func openGoRedis(addr string, opts ...redisstore.Option) (*redisstore.Store, func(), error) {
	client := goRedis(addr)
	store, err := goredisstore.New(client, opts...)
	return store, closer(client), err
}

func openAutoPipeline(addr string, opts ...redisstore.Option) (*redisstore.Store, func(), error) {
	client := goRedis(addr)
	pipeline, err := client.AutoPipeline()
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	store, err := goredisstore.New(pipeline, opts...)
	return store, closer(client), err
}

// goRedis returns the client that all contenders on go-redis use.
func goRedis(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: Callers})
}

func closer(client *redis.Client) func() {
	return func() { _ = client.Close() } // no call is running
}

// A dialer returns a limiter of this library on the server at addr, and a function that
// disconnects it.
type dialer func(addr string, l Limit, timeout time.Duration) (ratelimit.Limiter, func(), error)

func newDialer(open opener, alg func(Limit) ratelimit.Algorithm, opts ...redisstore.Option) dialer {
	return func(addr string, l Limit, timeout time.Duration) (ratelimit.Limiter, func(), error) {
		own := opts
		if timeout > 0 {
			own = append(slices.Clip(opts), redisstore.WithTimeout(timeout))
		}
		store, closeClient, err := open(addr, own...)
		if err != nil {
			return nil, nil, err
		}
		limiter, err := ratelimit.New(alg(l), ratelimit.WithStore(store), ratelimit.WithName("rl"))
		if err != nil {
			closeClient()
			return nil, nil, err
		}
		return limiter, func() {
			_ = store.Close(context.Background()) // the unused events of leases do not matter
			closeClient()
		}, nil
	}
}

// inRedis returns a contender that is this library in Redis.
func inRedis(name string, role Role, setup string, open opener, alg func(Limit) ratelimit.Algorithm, opts ...redisstore.Option) Contender {
	dial := newDialer(open, alg, opts...)
	return Contender{
		Name:   name,
		Role:   role,
		Module: ModulePath,
		Setup:  setup,
		Dial: func(addr string, l Limit, timeout time.Duration) (Allow, func(), error) {
			limiter, end, err := dial(addr, l, timeout)
			if err != nil {
				return nil, nil, err
			}
			return taking(limiter), end, nil
		},
		DialEach: func(addr string, l Limit, timeout time.Duration) (Allow, Each, func(), error) {
			limiter, end, err := dial(addr, l, timeout)
			if err != nil {
				return nil, nil, nil, err
			}
			return taking(limiter), takingEach(limiter), end, nil
		},
	}
}

func redisRueidis() Contender {
	return inRedis(Rueidis, Main, "`redisstore/rueidis`, `TokenBucket`, `Take`; `WithTimeout` of 1 s, except where the cores are busy, where it is the default of 50 ms", openRueidis, bucketOf)
}

func redisGoRedis() Contender {
	return inRedis(GoRedis, Variant, "the same on `redisstore/goredis` with a `redis.Client`", openGoRedis, bucketOf)
}

func redisAutoPipeline() Contender {
	return inRedis("ratelimit, go-redis, AutoPipeline", Variant, "the same with its `AutoPipeline()`", openAutoPipeline, bucketOf)
}

func redisLease() Contender {
	c := inRedis(Lease, Variant, "the first with `WithLease(1000, 100*time.Millisecond)`", openRueidis, bucketOf, redisstore.WithLease(1000, 100*time.Millisecond))
	c.DialEach = nil // most decisions make no round trip that others could share
	return c
}

func redisHoldSettle() Contender {
	c := inRedis(Settles, Settled, "the first, with `Hold` of two events and `Settle` of one for each decision", openRueidis, bucketOf)
	dial := newDialer(openRueidis, bucketOf)
	c.Dial, c.DialEach = func(addr string, l Limit, timeout time.Duration) (Allow, func(), error) {
		limiter, end, err := dial(addr, l, timeout)
		if err != nil {
			return nil, nil, err
		}
		return settling(limiter), end, nil
	}, nil
	return c
}

// withState returns a contender that is not in all rows, because it differs from the first
// only in its state and its script.
func withState(name string, role Role, setup string, alg func(Limit) ratelimit.Algorithm) Contender {
	return inRedis("ratelimit in Redis, "+name, role, setup, openRueidis, alg)
}

func redisFixedWindow() Contender {
	return withState("fixed window", Weighed, "`FixedWindow` of 1000 h", windowOf)
}

// The names of contenders in Redis with states of many slots.
const (
	RedisSegments = "ratelimit in Redis, sliding window, segments: 60"
	RedisPeriods  = "ratelimit in Redis, rolling window, periods: 24"
)

func redisSlidingWindow() Contender {
	return withState("sliding window, segments: 1", Weighed, "`SlidingWindow` of 1000 h", func(l Limit) ratelimit.Algorithm {
		return ratelimit.SlidingWindow{Limit: l.Burst, Window: window}
	})
}

// redisSegments and redisPeriods have slots of a second, so that a key's slots change while
// it is used.
func redisSegments() Contender {
	return withState("sliding window, segments: 60", Slots, "`SlidingWindow` of 60 s, 60 segments", func(l Limit) ratelimit.Algorithm {
		return ratelimit.SlidingWindow{Limit: l.Burst, Window: time.Minute, Segments: 60}
	})
}

func redisPeriods() Contender {
	return withState("rolling window, periods: 24", Slots, "`RollingWindow` of 24 periods of 1 s each", func(l Limit) ratelimit.Algorithm {
		return ratelimit.RollingWindow{Quota: l.Burst, Window: 24 * time.Second, Period: time.Second}
	})
}

func redisSlidingLog() Contender {
	c := withState("sliding log", Weighed, "`SlidingLog` of 1000 h with 100 events of each key in it", func(l Limit) ratelimit.Algorithm {
		return ratelimit.SlidingLog{Limit: l.Burst, Window: window}
	})
	c.Events = 100
	return c
}

func redisWarmingUp() Contender {
	return withState("warming up", Weighed, "`WarmingUp` of 24 h", func(l Limit) ratelimit.Algorithm {
		return ratelimit.WarmingUp{Rate: ratelimit.Every(l.Every), Warmup: 24 * time.Hour}
	})
}
