package peers

import (
	"github.com/puzpuzpuz/xsync/v4"
	"golang.org/x/time/rate"
)

// xtime is the usual code for a limit per key, with a fast concurrent map. It never forgets a key.
func xtime() Peer {
	return Peer{
		Name: "xtime",
		Memory: func(l Limit) (Allow, error) {
			limiters := xsync.NewMap[string, *rate.Limiter]()
			fresh := func() (*rate.Limiter, bool) { return rate.NewLimiter(rate.Every(l.Every), l.Burst), false }
			return func(key string) (bool, error) {
				limiter, _ := limiters.LoadOrCompute(key, fresh)
				return limiter.Allow(), nil
			}, nil
		},
	}
}
