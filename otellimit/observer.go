package otellimit

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ratelimit-go/ratelimit"
)

// An Observer counts decisions and waits: see the tables in the documentation of the package. Any
// number of limiters may have the same Observer, and any number of goroutines may use it at once.
//
// The Observer counts decisions in counters of its own, and reports them when the SDK collects
// metrics. A call of the SDK for each decision would take several times as long.
type Observer struct {
	waits        metric.Float64Histogram
	registration metric.Registration

	mu    sync.Mutex                       // protects stores of known; loads need no lock
	known atomic.Pointer[map[kind]*series] // the map is replaced, and never changed
	// The decisions of all kinds beyond maxKnown.
	others *series
}

// A kind is a combination of attributes. Decisions of the same kind are counted together.
type kind struct {
	limiter string
	part    int // -1 if there is none
	call    ratelimit.Call
	outcome ratelimit.Outcome
}

// A series counts the decisions of a kind. Its options are made once, because making them allocates
// memory.
type series struct {
	decisions atomic.Int64
	attrs     []metric.ObserveOption // of the decisions
	waits     []metric.RecordOption
}

// maxKnown bounds the memory of an Observer. By default, the SDK has the same bound for the series
// of a metric.
const maxKnown = 1999

// waitBounds are the bounds of the histogram's buckets, in seconds.
var waitBounds = []float64{
	0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
}

// New returns an Observer that records with a meter of the provider. Give its method Observe to
// [ratelimit.WithObserver]. One Observer serves all limiters.
func New(provider metric.MeterProvider) (*Observer, error) {
	if provider == nil {
		return nil, missing("New's provider", "must be a metric.MeterProvider")
	}
	in := newInstruments(provider, "ratelimit.")
	waits, err := in.meter.Float64Histogram("ratelimit.wait.duration",
		metric.WithUnit("s"), metric.WithDescription("How long callers wait for their turn"),
		metric.WithExplicitBucketBoundaries(waitBounds...))
	if err != nil {
		return nil, err
	}
	o := &Observer{
		waits:  waits,
		others: newSeries(attribute.NewSet(overflow), attribute.NewSet(overflow)),
	}
	o.known.Store(&map[kind]*series{})
	decisions := in.counter("decisions", "{decision}", "Decisions of limiters")
	o.registration, err = in.observe(func(_ context.Context, to metric.Observer) error {
		for _, s := range *o.known.Load() {
			to.ObserveInt64(decisions, s.decisions.Load(), s.attrs...)
		}
		if n := o.others.decisions.Load(); n > 0 {
			to.ObserveInt64(decisions, n, o.others.attrs...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Unregister ends the reports of decisions to the SDK.
func (o *Observer) Unregister() error { return o.registration.Unregister() }

// Observe is a [ratelimit.Observer]. It counts each decision. It records the wait of each Wait and
// Reserve, even if the wait is 0 seconds. Of other calls, it records a wait if a
// [ratelimit.LeakyBucket] delays the events. It records no wait of a denial.
func (o *Observer) Observe(ctx context.Context, seen ratelimit.Observation) {
	k := kind{limiter: seen.Limiter, call: seen.Call, outcome: seen.Outcome, part: part(&seen)}
	s := o.seriesOf(k)
	s.decisions.Add(1)
	if waits(&seen) {
		o.waits.Record(ctx, seen.Waited.Seconds(), s.waits...)
	}
}

// waits reports whether the call waits, or makes its caller wait.
func waits(seen *ratelimit.Observation) bool {
	switch seen.Call {
	case ratelimit.CallWait, ratelimit.CallReserve:
		return seen.Outcome != ratelimit.Denied
	}
	return seen.Outcome == ratelimit.Delayed
}

// part returns the part that refused, or -1 if none did.
func part(seen *ratelimit.Observation) int {
	if seen.Outcome == ratelimit.Denied {
		return seen.Decision.Part
	}
	return -1
}

// seriesOf returns the series of k.
func (o *Observer) seriesOf(k kind) *series {
	if s := o.find(k); s != nil {
		return s
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.find(k) // another goroutine may have been faster
	if s == nil {
		s = k.newSeries()
		known := maps.Clone(*o.known.Load())
		known[k] = s
		o.known.Store(&known)
	}
	return s
}

// find returns the series of k, or nil if it must be made.
func (o *Observer) find(k kind) *series {
	known := *o.known.Load()
	if s := known[k]; s != nil || len(known) < maxKnown {
		return s
	}
	return o.others
}

// overflow is the attribute of all decisions beyond maxKnown kinds. The SDK writes the same
// attribute if a metric has too many series.
var overflow = attribute.Bool("otel.metric.overflow", true)

func (k kind) newSeries() *series {
	attrs := []attribute.KeyValue{
		attribute.String("ratelimit.limiter", k.limiter),
		attribute.String("ratelimit.call", k.call.String()),
		attribute.String("ratelimit.outcome", k.outcome.String()),
	}
	waits := attribute.NewSet(attrs...)
	if k.part >= 0 {
		attrs = append(attrs, attribute.Int("ratelimit.part", k.part))
	}
	return newSeries(attribute.NewSet(attrs...), waits)
}

func newSeries(decisions, waits attribute.Set) *series {
	return &series{
		attrs: []metric.ObserveOption{metric.WithAttributeSet(decisions)},
		waits: []metric.RecordOption{metric.WithAttributeSet(waits)},
	}
}
