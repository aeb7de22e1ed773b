package otellimit

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// ObserveRedis reports the counts of a store each time that the SDK collects metrics, until the
// registration is unregistered. The attribute ratelimit.store is name. The stores of a provider
// must have different names, because counts with the same attributes would be added up.
//
// ObserveRedis does not report the latency of commands, because OpenTelemetry's API cannot observe
// a histogram that is already counted. Instrumentation of the Redis client measures latency.
func ObserveRedis(
	provider metric.MeterProvider,
	name string,
	store *redisstore.Store,
) (metric.Registration, error) {
	switch {
	case provider == nil:
		return nil, missing("ObserveRedis's provider", "must be a metric.MeterProvider")
	case store == nil:
		return nil, missing("ObserveRedis's store",
			"must be the result of New of module goredis, rueidis or valkey")
	}
	return observeRedis(provider, name, store.Stats)
}

func observeRedis(
	provider metric.MeterProvider,
	name string,
	read func() redisstore.Stats,
) (metric.Registration, error) {
	in := newInstruments(provider, "ratelimit.redis.")
	calls := in.counter("calls", "{call}", "Commands sent to Redis")
	coalesced := in.counter("coalesced", "{request}",
		"Requests that shared another request's command")
	cached := in.counter("cache.denials", "{request}", "Denials answered from the denial cache")
	leased := in.counter("lease.events", "{event}", "Events granted from leases")
	lost := in.counter("lost.events", "{event}", "Events that perhaps were not given back")
	failures := in.counter("failures", "{request}", "Requests that the failure policy decided")
	ended := in.counter("holds.ended", "{hold}",
		"Holds that ended because nobody settled them in time")
	unreadable := in.counter("unreadable", "{state}",
		"Unreadable states that were replaced by new ones")
	breakers := in.upDownCounter("breakers", "{breaker}", "Circuit breakers by state")

	of := attribute.String("ratelimit.store", name)
	with := func(attrs ...attribute.KeyValue) metric.ObserveOption {
		return metric.WithAttributeSet(attribute.NewSet(append(attrs, of)...))
	}
	failure := func(kind string) metric.ObserveOption {
		return with(attribute.String("error.type", kind))
	}
	set := with()
	timeout, breakerOpen := failure("timeout"), failure("breaker_open")
	errorReply, other := failure("error_reply"), failure("_OTHER")

	return in.observe(func(_ context.Context, to metric.Observer) error {
		stats := read()
		to.ObserveInt64(calls, int64(stats.Calls), set)
		to.ObserveInt64(coalesced, int64(stats.Coalesced), set)
		to.ObserveInt64(cached, int64(stats.Cached), set)
		to.ObserveInt64(leased, int64(stats.Leased), set)
		to.ObserveInt64(lost, int64(stats.Lost), set)
		to.ObserveInt64(failures, int64(stats.Timeouts), timeout)
		to.ObserveInt64(failures, int64(stats.BreakerOpen), breakerOpen)
		to.ObserveInt64(failures, int64(stats.ErrorReplies), errorReply)
		to.ObserveInt64(failures, int64(stats.OtherErrors), other)
		to.ObserveInt64(ended, int64(stats.Ended), set)
		to.ObserveInt64(unreadable, int64(stats.Unreadable), set)
		for server, state := range stats.Breakers {
			breaker := func(state string) metric.ObserveOption {
				return with(attribute.String("ratelimit.redis.server", server),
					attribute.String("ratelimit.redis.breaker.state", state))
			}
			to.ObserveInt64(breakers, 1, breaker(state))
			for _, other := range breakerStates {
				if other != state {
					to.ObserveInt64(breakers, 0, breaker(other))
				}
			}
		}
		return nil
	})
}

// breakerStates are the states of a breaker.
var breakerStates = [...]string{"closed", "half-open", "open"}
