package otellimit

import "go.opentelemetry.io/otel/metric"

// scope is the name of the meters: the module that makes the metrics.
const scope = "github.com/ratelimit-go/ratelimit/otellimit"

// instruments makes the instruments that one callback observes, and registers the callback. It
// keeps the first error, which observe returns.
type instruments struct {
	meter  metric.Meter
	prefix string // of the names of the instruments
	all    []metric.Observable
	err    error
}

func newInstruments(provider metric.MeterProvider, prefix string) *instruments {
	return &instruments{meter: provider.Meter(scope), prefix: prefix}
}

func (in *instruments) counter(name, unit, description string) metric.Int64Observable {
	c, err := in.meter.Int64ObservableCounter(in.prefix+name, metric.WithUnit(unit),
		metric.WithDescription(description))
	return add(in, c, err)
}

func (in *instruments) upDownCounter(name, unit, description string) metric.Int64Observable {
	c, err := in.meter.Int64ObservableUpDownCounter(in.prefix+name, metric.WithUnit(unit),
		metric.WithDescription(description))
	return add(in, c, err)
}

func add[T metric.Int64Observable](in *instruments, i T, err error) T {
	if in.err == nil {
		in.err = err
	}
	in.all = append(in.all, i)
	return i
}

// observe registers a callback that observes the instruments.
func (in *instruments) observe(f metric.Callback) (metric.Registration, error) {
	if in.err != nil {
		return nil, in.err
	}
	return in.meter.RegisterCallback(f, in.all...)
}
