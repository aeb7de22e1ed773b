package otellimit

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ratelimit-go/ratelimit"
)

// ObserveMemory reports the counts of a store each time that the SDK collects metrics, until the
// registration is unregistered. The attribute ratelimit.store is name. The stores of a provider
// must have different names, because counts with the same attributes would be added up.
// [ratelimit.MemoryStore.Stats] says what reading the counts costs.
func ObserveMemory(
	provider metric.MeterProvider,
	name string,
	store *ratelimit.MemoryStore,
) (metric.Registration, error) {
	switch {
	case provider == nil:
		return nil, missing("ObserveMemory's provider", "must be a metric.MeterProvider")
	case store == nil:
		return nil, missing("ObserveMemory's store", "must be a MemoryStore")
	}
	return observeMemory(provider, name, store.Stats)
}

func observeMemory(
	provider metric.MeterProvider,
	name string,
	read func() ratelimit.MemoryStats,
) (metric.Registration, error) {
	in := newInstruments(provider, "ratelimit.memory.")
	keys := in.upDownCounter("keys", "{key}", "Keys held, including idle ones not yet forgotten")
	usage := in.upDownCounter("usage", "By", "Memory of keys and states")
	inserts := in.counter("inserts", "{key}", "Keys stored that were new or had been forgotten")
	evictions := in.counter("evictions", "{key}",
		"Keys in use that were evicted because the store was full")
	rejections := in.counter("rejections", "{request}",
		"Requests for new keys that a full store denied or decided together")
	ended := in.counter("holds.ended", "{hold}",
		"Holds that ended because nobody settled them in time")

	set := metric.WithAttributeSet(attribute.NewSet(attribute.String("ratelimit.store", name)))
	return in.observe(func(_ context.Context, to metric.Observer) error {
		stats := read()
		to.ObserveInt64(keys, int64(stats.Keys), set)
		to.ObserveInt64(usage, int64(stats.Bytes), set)
		to.ObserveInt64(inserts, int64(stats.Inserts), set)
		to.ObserveInt64(evictions, int64(stats.Evictions), set)
		to.ObserveInt64(rejections, int64(stats.Rejected), set)
		to.ObserveInt64(ended, int64(stats.Ended), set)
		return nil
	})
}
