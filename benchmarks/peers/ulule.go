package peers

import (
	"context"
	"net/http"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"github.com/ulule/limiter/v3/drivers/store/redis"
)

// ulule counts in windows from a key's first event. A denial counts as an event too. Its clean-up is
// off, because it would find nothing.
func ulule() Peer {
	on := func(store limiter.Store, l Limit) *limiter.Limiter {
		return limiter.New(store, limiter.Rate{Period: l.Window, Limit: int64(l.Burst)})
	}
	inMemory := func(l Limit) *limiter.Limiter {
		return on(memory.NewStoreWithOptions(limiter.StoreOptions{Prefix: limiter.DefaultPrefix}), l)
	}
	allow := func(limiter *limiter.Limiter) Allow {
		return func(key string) (bool, error) {
			state, err := limiter.Get(context.Background(), key)
			return !state.Reached, err
		}
	}
	return Peer{
		Name:       "ulule",
		Memory:     func(l Limit) (Allow, error) { return allow(inMemory(l)), nil },
		NotIdle:    true,
		Middleware: func(l Limit) func(http.Handler) http.Handler { return stdlib.NewMiddleware(inMemory(l)).Handler },
		Redis: map[string]Dial{"ulule": func(at Address, l Limit) (Allow, func(), error) {
			client := goRedis(at)
			store, err := redis.NewStore(client)
			return allow(on(store, l)), func() { _ = client.Close() }, err
		}},
	}
}
