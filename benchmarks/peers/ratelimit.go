package peers

import (
	"context"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	goredisstore "github.com/ratelimit-go/ratelimit/redisstore/goredis"
	rueidisstore "github.com/ratelimit-go/ratelimit/redisstore/rueidis"
)

// ratelimits is this library's token bucket, with the default store and clock.
func ratelimits() Peer {
	return Peer{
		Name: "ratelimit",
		Memory: func(l Limit) (Allow, error) {
			limiter, err := ratelimit.New(bucket(l))
			if err != nil {
				return nil, err
			}
			return func(key string) (bool, error) { return limiter.Allow(key), nil }, nil
		},
		Middleware: func(l Limit) func(http.Handler) http.Handler {
			return httplimit.Middleware(ratelimit.Must(ratelimit.New(bucket(l))))
		},
		Redis: map[string]Dial{
			"lib-goredis": inRedis(OpenGoRedis, take),
			"lib-rueidis": inRedis(OpenRueidis, take),
			"lib-hold":    inRedis(OpenRueidis, holdSettle),
			"lib-lease":   inRedis(OpenRueidis, take, redisstore.WithLease(1000, 100*time.Millisecond)),
		},
	}
}

func bucket(l Limit) ratelimit.Algorithm {
	return ratelimit.TokenBucket{Rate: ratelimit.Every(l.Every), Burst: l.Burst}
}

// OpenGoRedis and OpenRueidis return this library's limiter in a Redis, and a function that disconnects
// it.
func OpenGoRedis(at Address, l Limit, opts ...redisstore.Option) (ratelimit.Limiter, func(), error) {
	client := goRedis(at)
	store, err := goredisstore.New(client, append(opts, redisstore.WithTimeout(time.Second))...)
	return open(store, err, func() { _ = client.Close() }, l)
}

// OpenRueidis is described at OpenGoRedis.
func OpenRueidis(at Address, l Limit, opts ...redisstore.Option) (ratelimit.Limiter, func(), error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{at.Addr}})
	if err != nil {
		return nil, nil, err
	}
	store, err := rueidisstore.New(client, append(opts, redisstore.WithTimeout(time.Second))...)
	return open(store, err, client.Close, l)
}

func open(store *redisstore.Store, err error, end func(), l Limit) (ratelimit.Limiter, func(), error) {
	if err != nil {
		end()
		return nil, nil, err
	}
	limiter, err := ratelimit.New(bucket(l), ratelimit.WithStore(store), ratelimit.WithName("rl"))
	return limiter, func() {
		_ = store.Close(context.Background()) // the unused events of leases do not matter
		end()
	}, err
}

// goRedis returns the client that all limiters on go-redis use.
func goRedis(at Address) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: at.Addr, PoolSize: at.Conns})
}

// goRedisAuto returns the AutoPipeliner of such a client, which sends the commands of several callers
// together, and a function that closes both.
func goRedisAuto(at Address, o redis.AutoPipelineOptions) (*redis.AutoPipeliner, func(), error) {
	client := goRedis(at)
	auto, err := client.AutoPipelineWithOptions(&o)
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return auto, func() {
		_ = auto.Close()
		_ = client.Close()
	}, nil
}

// The two ways in which an AutoPipeliner sends: one batch at a time, and batches while it waits for the
// answers to others.
var (
	halfDuplex = *redis.DefaultBlockingAutoPipelineOptions()
	fullDuplex = redis.AutoPipelineOptions{FullDuplex: true}
)

// inRedis dials a limiter that is called by call.
func inRedis(
	open func(at Address, l Limit, opts ...redisstore.Option) (ratelimit.Limiter, func(), error),
	call func(l ratelimit.Limiter, key string) (bool, error), opts ...redisstore.Option,
) Dial {
	return func(at Address, l Limit) (Allow, func(), error) {
		limiter, end, err := open(at, l, opts...)
		return func(key string) (bool, error) { return call(limiter, key) }, end, err
	}
}

func take(l ratelimit.Limiter, key string) (bool, error) {
	d, err := l.Take(context.Background(), key, 1)
	return d.Allowed, err
}

// holdSettle holds two events, of which one happens. It is two calls.
func holdSettle(l ratelimit.Limiter, key string) (bool, error) {
	r, d, err := l.Hold(context.Background(), key, 2)
	if r == nil || err != nil {
		return d.Allowed, err
	}
	_, err = r.Settle(context.Background(), 1)
	return true, err
}
