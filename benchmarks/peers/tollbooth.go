package peers

import (
	"net/http"

	"github.com/didip/tollbooth/v7"
)

// tollbooths makes the decision of its middleware without HTTP.
func tollbooths() Peer {
	return Peer{
		Name:    "tollbooth",
		NotIdle: true,
		Memory: func(l Limit) (Allow, error) {
			limiter := tollbooth.NewLimiter(1/l.Every.Seconds(), nil).SetBurst(l.Burst)
			return func(key string) (bool, error) { return !limiter.LimitReached(key), nil }, nil
		},
		Middleware: func(l Limit) func(http.Handler) http.Handler {
			limiter := tollbooth.NewLimiter(1/l.Every.Seconds(), nil).SetBurst(l.Burst).SetIPLookups([]string{"RemoteAddr"})
			return func(next http.Handler) http.Handler { return tollbooth.LimitHandler(limiter, next) }
		},
	}
}
