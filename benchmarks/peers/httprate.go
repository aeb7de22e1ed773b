package peers

import (
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/httprate"
)

// httprates does what its OnLimit does, without the HTTP part: it reads the counter of a sliding window
// and increments it, under a mutex.
func httprates() Peer {
	return Peer{
		Name: "httprate",
		Memory: func(l Limit) (Allow, error) {
			var mu sync.Mutex
			counter := httprate.NewLocalLimitCounter(l.Window)
			return func(key string) (bool, error) {
				now := time.Now().UTC()
				current := now.Truncate(l.Window)
				mu.Lock()
				defer mu.Unlock()
				count, before, err := counter.Get(key, current, current.Add(-l.Window))
				if err != nil {
					return false, err
				}
				left := float64(l.Window-now.Sub(current)) / float64(l.Window)
				if float64(before)*left+float64(count)+1 > float64(l.Burst) {
					return false, nil
				}
				return true, counter.IncrementBy(key, current, 1)
			}, nil
		},
		Middleware: func(l Limit) func(http.Handler) http.Handler {
			return httprate.LimitBy(l.Burst, l.Window, func(r *http.Request) (string, error) {
				host, _, err := net.SplitHostPort(r.RemoteAddr)
				return httprate.CanonicalizeIP(host), err
			})
		},
	}
}
