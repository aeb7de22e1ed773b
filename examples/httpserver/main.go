// Httpserver is a web server that limits how often each client may ask. All it
// takes is a limiter and the ten lines of the handler limited.
//
//	go run ./examples/httpserver -addr localhost:8080 -limit 5/10s
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5 6 7; do curl -si localhost:8080 | grep -iE 'HTTP|Retry'; done
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	limit := flag.String("limit", "5/10s", "how many `requests/span` a client may make")
	flag.Parse()

	rate, err := ratelimit.ParseRate(*limit)
	if err != nil {
		log.Fatalf("-limit: %v", err)
	}
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: rate}))
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	server := &http.Server{Addr: *addr, Handler: limited(limiter, hello), ReadHeaderTimeout: 5 * time.Second}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	stopped := make(chan error)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.Background()) })

	log.Printf("%v for each client; try: for i in 1 2 3 4 5 6 7; do curl -si %s | grep -iE 'HTTP|Retry'; done", rate, *addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	if err := <-stopped; err != nil { // requests under way have been answered
		log.Fatal(err)
	}
}

// limited lets a request through to next if the client's address has not used
// up its limit, and answers 429 otherwise. Behind a proxy, every request comes
// from the proxy's address: take the client's from what the proxy adds then.
func limited(limiter ratelimit.Limiter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			client = r.RemoteAddr
		}
		decision, err := limiter.Take(r.Context(), client, 1)
		if err != nil {
			log.Printf("limiter: %v", err) // the decision holds all the same
		}
		if !decision.Allowed {
			seconds := math.Ceil(decision.RetryAfter.Seconds())
			w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}
