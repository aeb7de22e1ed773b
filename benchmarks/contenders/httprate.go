package contenders

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/httprate"
)

const httprateModule = "github.com/go-chi/httprate"

// httprateOnLimit calls the limiter of a middleware with a request that is made once, and
// a response that nothing is written to.
func httprateOnLimit() Contender {
	return Contender{
		Name:   httprateName,
		Role:   Peer,
		Module: httprateModule,
		Setup:  "`RateLimiter.OnLimit`, with one request for all calls and every response header switched off; a sliding window of 1000 h",
		New: func(l Limit) (Allow, error) {
			limiter := httprate.NewRateLimiter(l.Burst, window, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
			request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
			if err != nil {
				return nil, err
			}
			return func(key string) Answer {
				return answer(!limiter.OnLimit(silence{http.Header{}}, request, key))
			}, nil
		},
	}
}

// httprateCounter does what OnLimit does without the HTTP part: it reads the counter and
// increments it, under a mutex.
func httprateCounter() Contender {
	return Contender{
		Name:   httprateCount,
		Role:   Peer,
		Quick:  true,
		Module: httprateModule,
		Setup:  "`LimitCounter.Get`, then `IncrementBy` if there is room, under a mutex, as `OnLimit` does, without HTTP",
		New: func(l Limit) (Allow, error) {
			var mu sync.Mutex
			window := l.window()
			counter := httprate.NewLocalLimitCounter(window)
			return func(key string) Answer {
				now := time.Now().UTC()
				current := now.Truncate(window)
				mu.Lock()
				defer mu.Unlock()
				count, before, err := counter.Get(key, current, current.Add(-window))
				if err != nil {
					return Failed
				}
				left := float64(window-now.Sub(current)) / float64(window)
				if float64(before)*left+float64(count)+1 > float64(l.Burst) {
					return Denied
				}
				if err := counter.IncrementBy(key, current, 1); err != nil {
					return Failed
				}
				return Allowed
			}, nil
		},
	}
}
