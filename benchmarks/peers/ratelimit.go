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
			"ratelimit":         inRedis(OpenGoRedis, take),
			"ratelimit-rueidis": inRedis(OpenRueidis, take),
			"ratelimit-hold":    inRedis(OpenRueidis, holdSettle),
			"ratelimit-lease":   inRedis(OpenRueidis, take, redisstore.WithLease(1000, 100*time.Millisecond)),
		},
	}
}

func bucket(l Limit) ratelimit.Algorithm {
	return ratelimit.TokenBucket{Rate: ratelimit.Every(l.Every), Burst: l.Burst}
}

// OpenGoRedis and OpenRueidis return this library's limiter in the Redis at addr, and a function that
// disconnects it.
func OpenGoRedis(addr string, l Limit, opts ...redisstore.Option) (ratelimit.Limiter, func(), error) {
	client := goRedis(addr)
	store, err := goredisstore.New(client, append(opts, redisstore.WithTimeout(time.Second))...)
	return open(store, err, func() { _ = client.Close() }, l)
}

// OpenRueidis is described at OpenGoRedis.
func OpenRueidis(addr string, l Limit, opts ...redisstore.Option) (ratelimit.Limiter, func(), error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
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

// goRedis returns the client that all limiters on go-redis use, with a connection for each caller.
func goRedis(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: Callers})
}

// Callers is the number of concurrent callers of a limiter in Redis.
const Callers = 64

// inRedis dials a limiter that is called by call.
func inRedis(
	open func(addr string, l Limit, opts ...redisstore.Option) (ratelimit.Limiter, func(), error),
	call func(l ratelimit.Limiter, key string) (bool, error), opts ...redisstore.Option,
) Dial {
	return func(addr string, l Limit) (Allow, func(), error) {
		limiter, end, err := open(addr, l, opts...)
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
