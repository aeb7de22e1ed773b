package contenders

import (
	"sync"

	"github.com/puzpuzpuz/xsync/v4"
	"golang.org/x/time/rate"
)

const xtimeModule = "golang.org/x/time"

// xtimeMutex is the usual code for a limit per key: a map of golang.org/x/time/rate limiters
// protected by a mutex. It never forgets a key.
func xtimeMutex() Contender {
	return Contender{
		Name:   "x/time in a mutex map",
		Role:   Peer,
		Quick:  true,
		Module: xtimeModule,
		Setup:  "`map[string]*rate.Limiter` under a `sync.Mutex`, which is released before `Allow()`",
		New: func(l Limit) (Allow, error) {
			var mu sync.Mutex
			limiters := make(map[string]*rate.Limiter)
			return func(key string) Answer {
				mu.Lock()
				limiter, ok := limiters[key]
				if !ok {
					limiter = rate.NewLimiter(rate.Every(l.Every), l.Burst)
					limiters[key] = limiter
				}
				mu.Unlock()
				return answer(limiter.Allow())
			}, nil
		},
	}
}

// xtimeXsync is the same with a fast concurrent map, xsync.Map.
func xtimeXsync() Contender {
	return Contender{
		Name:   xtimeInXsync,
		Role:   Peer,
		Quick:  true,
		Module: "github.com/puzpuzpuz/xsync/v4",
		Setup:  "`xsync.Map[string, *rate.Limiter]`, `LoadOrCompute`, then `Allow()`",
		New: func(l Limit) (Allow, error) {
			limiters := xsync.NewMap[string, *rate.Limiter]()
			fresh := func() (*rate.Limiter, bool) {
				return rate.NewLimiter(rate.Every(l.Every), l.Burst), false
			}
			return func(key string) Answer {
				limiter, _ := limiters.LoadOrCompute(key, fresh)
				return answer(limiter.Allow())
			}, nil
		},
	}
}

// xtimeTwice is the usual code for two limits per key.
func xtimeTwice() Contender {
	type pair struct{ first, second *rate.Limiter }
	return Contender{
		Name:   twoXtime,
		Role:   Peer,
		Quick:  true,
		Small:  true,
		Module: "github.com/puzpuzpuz/xsync/v4",
		Setup:  "the same with two limiters for each key, the second with a burst of one more; `Allow()` of the first and then of the second, so that a denial by the second is spent in the first",
		New: func(l Limit) (Allow, error) {
			limiters := xsync.NewMap[string, pair]()
			fresh := func() (pair, bool) {
				return pair{rate.NewLimiter(rate.Every(l.Every), l.Burst), rate.NewLimiter(rate.Every(l.Every), l.Burst+1)}, false
			}
			return func(key string) Answer {
				p, _ := limiters.LoadOrCompute(key, fresh)
				return answer(p.first.Allow() && p.second.Allow())
			}, nil
		},
	}
}
