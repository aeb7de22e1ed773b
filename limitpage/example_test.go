package limitpage_test

import (
	"log"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/limitpage"
)

func Example() {
	page := limitpage.New()
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
		ratelimit.WithName("api"), ratelimit.WithObserver(page.Observe)))
	if err := page.Add(limiter); err != nil {
		log.Fatal(err)
	}
	http.Handle("/debug/ratelimit/", page)
}
