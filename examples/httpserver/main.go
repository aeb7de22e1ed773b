// Httpserver is a web server that limits the rate of each client's requests. It needs
// only a limiter, and one line that wraps its handlers.
//
//	go run ./examples/httpserver -addr localhost:8080 -limit 5/10s
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5 6 7; do curl -si localhost:8080 | grep -iE '^(HTTP|RateLimit|Retry)'; done
//
// A page at http://localhost:6060/debug/ratelimit/ shows what the limiter does. It has an address
// of its own because clients must not see it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/limitpage"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	limit := flag.String("limit", "5/10s", "how many `requests/span` a client may make")
	debug := flag.String("debug", "localhost:6060", "the `address` of the page that shows the limiter, for operators only")
	flag.Parse()

	rate, err := ratelimit.ParseRate(*limit)
	if err != nil {
		log.Fatalf("-limit: %v", err)
	}
	page := limitpage.New()
	server := &http.Server{Addr: *addr, Handler: handler(rate, page), ReadTimeout: 5 * time.Second}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	stopped := make(chan error)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.Background()) })

	http.Handle("/debug/ratelimit/", page)
	go func() { log.Printf("no page: %v", http.ListenAndServe(*debug, nil)) }()
	log.Printf("http://%s/debug/ratelimit/ shows the limiter", *debug)

	log.Printf("%v for each client; try: for i in 1 2 3 4 5 6 7; do curl -si %s | grep -iE '^(HTTP|RateLimit|Retry)'; done", rate, *addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	if err := <-stopped; err != nil { // running requests have been answered
		log.Fatal(err)
	}
}

// handler returns a handler that limits each client, and shows the limiter on page. Behind a load
// balancer, all requests come from the address of the balancer: use clientip.TrustedProxies in
// that case.
func handler(rate ratelimit.Rate, page *limitpage.Page) http.Handler {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: rate},
		ratelimit.WithName("clients"), ratelimit.WithObserver(page.Observe)))
	if err := page.Add(limiter); err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	return httplimit.Middleware(limiter)(mux)
}
