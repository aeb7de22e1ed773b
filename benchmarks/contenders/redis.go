package contenders

import (
	"context"
	"errors"
	"fmt"
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
	GoRedis   = "ratelimit, go-redis"
	Lease     = "ratelimit, rueidis, lease"
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

// inRedis returns a contender that is this library in Redis.
func inRedis(name string, role Role, setup string, open opener, alg func(Limit) ratelimit.Algorithm, opts ...redisstore.Option) Contender {
	return Contender{
		Name:   name,
		Role:   role,
		Module: ModulePath,
		Setup:  setup,
		Dial: func(addr string, l Limit, timeout time.Duration) (Allow, func(), error) {
			own := opts
			if timeout > 0 {
				own = append(slices.Clip(opts), redisstore.WithTimeout(timeout))
			}
			store, closeClient, err := open(addr, own...)
			if err != nil {
				return nil, nil, err
			}
			limiter, err := ratelimit.New(alg(l), ratelimit.WithStore(store))
			if err != nil {
				closeClient()
				return nil, nil, err
			}
			ctx := context.Background()
			allow := func(key string) Answer {
				d, err := limiter.Take(ctx, key, 1)
				if err != nil {
					return Failed
				}
				return answer(d.Allowed)
			}
			return allow, func() {
				_ = store.Close(ctx) // the unused events of leases do not matter
				closeClient()
			}, nil
		},
	}
}

func redisRueidis() Contender {
	return inRedis("ratelimit, rueidis", Main, "`redisstore/rueidis`, `TokenBucket`, `Take`; `WithTimeout` of 1 s, except where the cores are busy, where it is the default of 50 ms", openRueidis, bucketOf)
}

func redisGoRedis() Contender {
	return inRedis(GoRedis, Variant, "the same on `redisstore/goredis` with a `redis.Client`", openGoRedis, bucketOf)
}

func redisAutoPipeline() Contender {
	return inRedis("ratelimit, go-redis, AutoPipeline", Variant, "the same with its `AutoPipeline()`", openAutoPipeline, bucketOf)
}

func redisLease() Contender {
	return inRedis(Lease, Variant, "the first with `WithLease(1000, 100*time.Millisecond)`", openRueidis, bucketOf, redisstore.WithLease(1000, 100*time.Millisecond))
}

// weighed returns a contender of which only the bytes are measured.
func weighed(name, setup string, alg func(Limit) ratelimit.Algorithm) Contender {
	return inRedis("ratelimit in Redis, "+name, Weighed, setup, openRueidis, alg)
}

func redisFixedWindow() Contender {
	return weighed("fixed window", "`FixedWindow` of 1000 h", windowOf)
}

func redisSlidingWindow(segments int) Contender {
	return weighed(fmt.Sprintf("sliding window, segments: %d", segments), "`SlidingWindow` of 1000 h", func(l Limit) ratelimit.Algorithm {
		return ratelimit.SlidingWindow{Limit: l.Burst, Window: window, Segments: segments}
	})
}

func redisSlidingLog() Contender {
	c := weighed("sliding log", "`SlidingLog` of 1000 h with 100 events of each key in it", func(l Limit) ratelimit.Algorithm {
		return ratelimit.SlidingLog{Limit: l.Burst, Window: window}
	})
	c.Events = 100
	return c
}

func redisRollingWindow() Contender {
	return weighed("rolling window", "`RollingWindow` of 24 periods of 1000 h each", rollingOf)
}

func redisWarmingUp() Contender {
	return weighed("warming up", "`WarmingUp` of 24 h", func(l Limit) ratelimit.Algorithm {
		return ratelimit.WarmingUp{Rate: ratelimit.Every(l.Every), Warmup: 24 * time.Hour}
	})
}
