package otellimit_test

import (
	"context"
	"fmt"
	"log"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/otellimit"
)

// The limiters of a service have the same Observer, and names. Here the metrics are collected by
// hand; a service has an exporter. A program in examples/observed exports them to Prometheus.
func Example() {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))

	observer, err := otellimit.New(provider) // a metric.MeterProvider
	if err != nil {
		log.Fatal(err)
	}
	store := new(ratelimit.MemoryStore)
	if _, err := otellimit.ObserveMemory(provider, "main", store); err != nil {
		log.Fatal(err)
	}
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)},
		ratelimit.WithStore(store), ratelimit.WithName("orders"), ratelimit.WithObserver(observer.Observe)))

	for range 5 {
		limiter.Allow("ann")
	}
	var metrics metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &metrics); err != nil {
		log.Fatal(err)
	}
	for _, m := range metrics.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "ratelimit.decisions" {
			for _, p := range sum.DataPoints {
				outcome, _ := p.Attributes.Value("ratelimit.outcome")
				fmt.Println(outcome.AsString(), p.Value)
			}
		}
	}
	// Unordered output:
	// granted 2
	// denied 3
}
