package contenders

import (
	"github.com/didip/tollbooth/v7"
)

func tollboothKeys() Contender {
	return Contender{
		Name:   "tollbooth",
		Role:   Peer,
		Module: "github.com/didip/tollbooth/v7",
		Setup:  "`Limiter.LimitReached`, the decision of its middleware without HTTP",
		New: func(l Limit) (Allow, error) {
			limiter := tollbooth.NewLimiter(1/l.Every.Seconds(), nil).SetBurst(l.Burst)
			return func(key string) Answer {
				return answer(!limiter.LimitReached(key))
			}, nil
		},
	}
}
