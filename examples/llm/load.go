package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// load asks g for ann, with twenty requests at once that come again when they are told to. It returns how
// many tokens were used, and how many the limit allows.
func load(g *gateway, span time.Duration) (used int64, allowed float64) {
	start := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for time.Since(start) < span {
				r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/", strings.NewReader("Hello there"))
				r.Header.Set("User", "ann")
				w := httptest.NewRecorder()
				g.ServeHTTP(w, r)
				after, _ := strconv.Atoi(w.Header().Get("Retry-After"))
				time.Sleep(min(time.Duration(after)*time.Second, span))
			}
		})
	}
	wg.Wait()
	bucket := ratelimit.AlgorithmOf(g.tokens).(ratelimit.TokenBucket)
	return g.used.Load(), float64(bucket.Burst) + float64(bucket.Rate.Events)*float64(time.Since(start))/float64(bucket.Rate.Per)
}
