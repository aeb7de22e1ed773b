package contenders

import (
	"github.com/failsafe-go/failsafe-go/ratelimiter"
)

func failsafeSyncMap() Contender {
	return Contender{
		Name:   failsafeMap,
		Role:   Peer,
		Module: "github.com/failsafe-go/failsafe-go",
		Setup:  "`sync.Map` of bursty `ratelimiter`s, `TryAcquirePermit`; that is a fixed window, here of 1000 h (its smooth one allows no bursts)",
		New: func(l Limit) (Allow, error) {
			limiters := newSyncMap(func() ratelimiter.RateLimiter[any] {
				return ratelimiter.NewBursty[any](uint(l.Burst), window)
			})
			return func(key string) Answer {
				return answer(limiters.get(key).TryAcquirePermit())
			}, nil
		},
	}
}
