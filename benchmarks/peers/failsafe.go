package peers

import "github.com/failsafe-go/failsafe-go/ratelimiter"

// failsafe has a fixed window, because its smooth limiter allows no bursts.
func failsafe() Peer {
	return Peer{
		Name:    "failsafe",
		NotIdle: true,
		Memory: func(l Limit) (Allow, error) {
			limiters := &syncMap[ratelimiter.RateLimiter[any]]{fresh: func() ratelimiter.RateLimiter[any] {
				return ratelimiter.NewBursty[any](uint(l.Burst), l.Window)
			}}
			return func(key string) (bool, error) { return limiters.get(key).TryAcquirePermit(), nil }, nil
		},
	}
}
