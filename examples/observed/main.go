// Observed is a web server whose limiters Prometheus observes: OpenTelemetry's SDK collects the
// metrics of otellimit, and its exporter serves them at /metrics.
//
//	go run ./examples/observed
//
// Prometheus, in another terminal, reads them each second:
//
//	prometheus --config.file=examples/observed/prometheus.yml --storage.tsdb.path="$(mktemp -d)" --web.listen-address=localhost:9091
//
// Then send requests. Requests for /search are refused beyond 5 in 10 seconds. Requests for /report
// get one turn a second. They wait for their turn for at most ten seconds, and are refused if it
// comes later:
//
//	for i in 1 2 3 4 5 6 7 8; do curl -s localhost:8080/search -H 'User: ann'; done
//	for i in 1 2 3 4 5 6 7 8 9 10 11 12; do curl -s localhost:8080/report -H 'User: ann' & done; wait
//
// docs/observe.md has queries that Prometheus, at http://localhost:9091, answers about them.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/otellimit"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	flag.Parse()
	handler, err := newService(clock.New())
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("http://%s has /search, /report and /metrics; requests need a header field such as User: ann", *addr)
	server := &http.Server{Addr: *addr, Handler: handler, ReadTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// newService returns the server's handler. Its limiters decide by clk.
func newService(clk clock.Clock) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	provider, err := newProvider(registry)
	if err != nil {
		return nil, err
	}
	search, reports, err := newLimiters(provider, clk)
	if err != nil {
		return nil, err
	}

	user := httplimit.WithKey(key.Header("User"))
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "done:", r.URL.Path) })
	mux := http.NewServeMux()
	mux.Handle("GET /search", httplimit.Middleware(search, user)(answer))
	mux.Handle("GET /report", httplimit.Middleware(reports, user, httplimit.WithShaping(10*time.Second))(answer))
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux, nil
}

// newProvider returns a provider whose metrics are in registry.
func newProvider(registry *prometheus.Registry) (metric.MeterProvider, error) {
	reader, err := exporter.New(exporter.WithRegisterer(registry),
		exporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return nil, err
	}
	return sdk.NewMeterProvider(sdk.WithReader(reader)), nil
}

// newLimiters returns the limiters, which share a store, and lets OpenTelemetry observe the
// limiters and the store. This function is the essential part of the example.
func newLimiters(provider metric.MeterProvider, clk clock.Clock) (search, reports ratelimit.Limiter, err error) {
	observer, err := otellimit.New(provider)
	if err != nil {
		return nil, nil, err
	}
	store := new(ratelimit.MemoryStore)
	if _, err := otellimit.ObserveMemory(provider, "main", store); err != nil {
		return nil, nil, err
	}
	options := func(name string) []ratelimit.Option {
		return []ratelimit.Option{
			ratelimit.WithName(name), ratelimit.WithObserver(observer.Observe), ratelimit.WithStore(store), ratelimit.WithClock(clk),
		}
	}
	search, err = ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: 10 * time.Second}, options("search")...)
	if err != nil {
		return nil, nil, err
	}
	reports, err = ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, options("reports")...)
	return search, reports, err
}
