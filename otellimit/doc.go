// Package otellimit makes OpenTelemetry metrics of limiters and their stores. It needs only
// OpenTelemetry's API: the program chooses the SDK and the exporter.
//
// An [Observer] counts the decisions of limiters, and measures how long callers wait.
// [ObserveMemory] and [ObserveRedis] report the counters of stores.
//
// # Metrics
//
// The metrics of an Observer are:
//
//	metric                           instrument     unit        meaning
//	ratelimit.decisions              Counter        {decision}  decisions
//	ratelimit.wait.duration          Histogram      s           how long callers wait for their turn
//
// The metrics of ObserveMemory are the fields of [ratelimit.MemoryStats]:
//
//	metric                           instrument     unit        meaning
//	ratelimit.memory.keys            UpDownCounter  {key}       Keys: keys held now
//	ratelimit.memory.usage           UpDownCounter  By          Bytes: memory in use now
//	ratelimit.memory.inserts         Counter        {key}       Inserts: keys stored
//	ratelimit.memory.evictions       Counter        {key}       Evictions: keys in use that MaxKeys evicted
//	ratelimit.memory.rejections      Counter        {request}   Rejected: requests for new keys in a full store
//	ratelimit.memory.holds.ended     Counter        {hold}      Ended: holds that ended because nobody settled them in time
//
// The metrics of ObserveRedis are the fields of [redisstore.Stats], except Latency and Outages:
//
//	metric                           instrument     unit        meaning
//	ratelimit.redis.calls            Counter        {call}      Calls: commands sent
//	ratelimit.redis.coalesced        Counter        {request}   Coalesced: requests that shared a command
//	ratelimit.redis.cache.denials    Counter        {request}   Cached: denials from the cache of denials
//	ratelimit.redis.lease.events     Counter        {event}     Leased: events granted from leases
//	ratelimit.redis.lost.events      Counter        {event}     Lost: events that perhaps were not given back
//	ratelimit.redis.failures         Counter        {request}   Failures: requests that the FailurePolicy decided
//	ratelimit.redis.holds.ended      Counter        {hold}      Ended: holds that ended because nobody settled them in time
//	ratelimit.redis.unreadable       Counter        {state}     Unreadable: unreadable states that were replaced
//	ratelimit.redis.breakers         UpDownCounter  {breaker}   Breakers: 1 for the state that a breaker is in, otherwise 0
//
// The scope of all metrics is the name of this module. The counters are asynchronous: they are read
// when the SDK collects metrics.
//
// In Prometheus, the dots of a name are underscores. The unit follows the name, unless the unit is
// in braces. The name of a Counter ends with total: ratelimit_decisions_total,
// ratelimit_wait_duration_seconds, ratelimit_memory_keys, ratelimit_memory_usage_bytes.
//
// # Attributes
//
// No attribute contains a key of a limiter, because keys are many and may be personal data. Other
// attributes have few values, provided that names of limiters and stores do not come from requests.
//
//	attribute                      of                meaning
//	ratelimit.limiter              decisions, waits  the limiter's name: see ratelimit.WithName
//	ratelimit.call                 decisions, waits  the call: allow, take, wait, and so on; see ratelimit.Call
//	ratelimit.outcome              decisions, waits  granted, denied, and so on; see ratelimit.Outcome
//	ratelimit.part                 decisions         of a denial, the index of the part of an All that refused
//	ratelimit.store                stores            the name that ObserveMemory or ObserveRedis was given
//	error.type                     redis.failures    timeout, breaker_open, error_reply or _OTHER
//	ratelimit.redis.server         redis.breakers    the server that the breaker is for; see redisstore.Stats
//	ratelimit.redis.breaker.state  redis.breakers    the breaker's state: closed, half-open or open
//
// ratelimit.part is 0 for algorithms without parts.
//
// An Observer keeps 1,999 combinations of these attributes. Decisions with a further combination
// are counted together, with the attribute otel.metric.overflow, as in OpenTelemetry's SDK.
//
// # Cost
//
// Observing allocates nothing, except for the first decision with a combination of attributes. On
// the machine of BENCHMARKS.md, counting a decision takes about 40 ns, and recording a wait with
// OpenTelemetry's SDK takes another 200 ns (go test -bench Observe). In addition, Allow takes
// longer with any observer: see [ratelimit.WithObserver].
//
// The page [docs/observe.md] is an introduction.
//
// [docs/observe.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/observe.md
package otellimit
