package otellimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/ratelimit-go/ratelimit"
)

// newProvider returns a provider of the SDK, and the reader that collects what it has recorded.
func newProvider(opts ...sdk.Option) (metric.MeterProvider, *sdk.ManualReader) {
	reader := sdk.NewManualReader()
	return sdk.NewMeterProvider(append(opts, sdk.WithReader(reader))...), reader
}

// collect returns all metrics.
func collect(t *testing.T, reader *sdk.ManualReader) []metricdata.Metrics {
	t.Helper()
	var got metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &got))
	if len(got.ScopeMetrics) == 0 {
		return nil
	}
	require.Len(t, got.ScopeMetrics, 1)
	require.Equal(t, reflect.TypeFor[Observer]().PkgPath(), got.ScopeMetrics[0].Scope.Name)
	return got.ScopeMetrics[0].Metrics
}

// written returns the name of a metric without "ratelimit.", and the values of its attributes.
func written(m metricdata.Metrics, set attribute.Set) string {
	name := m.Name[len("ratelimit."):]
	for _, attr := range set.ToSlice() {
		name += " " + string(attr.Key[max(0, 1+lastDot(string(attr.Key))):]) + "=" + attr.Value.String()
	}
	return name
}

func lastDot(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '.' {
			return i
		}
	}
	return -1
}

// counts returns the values of all counters.
func counts(t *testing.T, reader *sdk.ManualReader) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	for _, m := range collect(t, reader) {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			for _, p := range sum.DataPoints {
				found[written(m, p.Attributes)] = p.Value
			}
		}
	}
	return found
}

// histograms returns the points of all histograms.
func histograms(t *testing.T, reader *sdk.ManualReader) map[string]metricdata.HistogramDataPoint[float64] {
	t.Helper()
	found := map[string]metricdata.HistogramDataPoint[float64]{}
	for _, m := range collect(t, reader) {
		if h, ok := m.Data.(metricdata.Histogram[float64]); ok {
			for _, p := range h.DataPoints {
				found[written(m, p.Attributes)] = p
			}
		}
	}
	return found
}

func newObserver(t *testing.T, opts ...sdk.Option) (*Observer, *sdk.ManualReader) {
	t.Helper()
	provider, reader := newProvider(opts...)
	o, err := New(provider)
	require.NoError(t, err)
	return o, reader
}

// key must not be in any metric.
const key = "ann@example.com"

func limiter(o *Observer, name string, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	return ratelimit.Must(ratelimit.New(alg, append(opts, ratelimit.WithName(name), ratelimit.WithObserver(o.Observe))...))
}

// decide makes decisions of every call and outcome, and returns how many.
func decide(t *testing.T, o *Observer) map[string]int64 {
	t.Helper()
	ctx := t.Context()
	hourly := func(limit int) ratelimit.FixedWindow { return ratelimit.FixedWindow{Limit: limit, Window: time.Hour} }

	api := limiter(o, "api", ratelimit.All{hourly(3), hourly(2)})
	for range 5 {
		api.Allow(key)
	}
	_, err := api.Take(ctx, key, 1)
	require.NoError(t, err)
	_, err = api.Take(ctx, key, 4) // both parts refuse, and 4 are never granted
	require.NoError(t, err)
	late, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	require.ErrorIs(t, api.Wait(late, key), context.DeadlineExceeded)
	_, _, err = api.Reserve(ctx, key, 3)
	require.NoError(t, err)
	_, _, err = api.Reserve(ctx, key, 1, ratelimit.Within(time.Minute))
	require.NoError(t, err)

	users, orgs := limiter(o, "users", hourly(1)), limiter(o, "orgs", hourly(9))
	for range 3 {
		_, err = ratelimit.TakeAll(ctx, 1, ratelimit.For(users, key), ratelimit.For(orgs, key))
		require.NoError(t, err)
	}

	tokens := limiter(o, "tokens", hourly(9))
	r, _, err := tokens.Hold(ctx, key, 5)
	require.NoError(t, err)
	_, err = r.Settle(ctx, 2)
	require.NoError(t, err)
	_, err = tokens.Charge(ctx, key, 1)
	require.NoError(t, err)
	r, _, err = tokens.Reserve(ctx, key, 1)
	require.NoError(t, err)
	r.Cancel()

	limiter(o, "far", hourly(1), ratelimit.WithStore(ratelimit.NewStore(down{})), ratelimit.WithFailureLog(nil)).Allow(key)
	return map[string]int64{
		"decisions call=allow limiter=api outcome=granted":            2,
		"decisions call=allow limiter=api outcome=denied part=1":      3,
		"decisions call=take limiter=api outcome=denied part=0":       1,
		"decisions call=take limiter=api outcome=denied part=1":       1,
		"decisions call=wait limiter=api outcome=denied part=1":       1,
		"decisions call=reserve limiter=api outcome=denied part=1":    2,
		"decisions call=take_all limiter=users outcome=granted":       1,
		"decisions call=take_all limiter=orgs outcome=granted":        1,
		"decisions call=take_all limiter=users outcome=denied part=0": 2,
		"decisions call=take_all limiter=orgs outcome=withheld":       2,
		"decisions call=hold limiter=tokens outcome=granted":          1,
		"decisions call=settle limiter=tokens outcome=counted":        2,
		"decisions call=charge limiter=tokens outcome=counted":        1,
		"decisions call=reserve limiter=tokens outcome=granted":       1,
		"decisions call=allow limiter=far outcome=failed":             1,
	}
}

// A down database does not answer.
type down struct{}

var errDown = errors.New("down")

func (down) Get(context.Context, string) ([]byte, error) { return nil, errDown }

func (down) CompareAndSwap(context.Context, string, []byte, []byte, time.Time) (bool, error) {
	return false, errDown
}

func (down) Delete(context.Context, string) error { return errDown }

func TestDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, reader := newObserver(t)
		want := decide(t, o)
		assert.Equal(t, want, counts(t, reader))
		assert.NotContains(t, fmt.Sprintf("%+v", collect(t, reader)), key)
	})
}

// TestWaits compares the histogram with waits by the clock of a bubble.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, reader := newObserver(t)
		l := limiter(o, "slow", ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 10})
		ctx := t.Context()
		for range 4 {
			require.NoError(t, l.Wait(ctx, key)) // waits 0 or 1 second
		}
		leaving, leave := context.WithCancel(ctx)
		time.AfterFunc(300*time.Millisecond, leave)
		require.ErrorIs(t, l.Wait(leaving, key), context.Canceled)
		late, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		require.Error(t, l.Wait(late, key))
		r, _, err := l.Reserve(ctx, key, 1)
		require.NoError(t, err)
		assert.Equal(t, 700*time.Millisecond, r.Delay())
		d, err := l.Take(ctx, key, 1)
		require.NoError(t, err)
		assert.Equal(t, 1700*time.Millisecond, d.Delay)

		assert.Equal(t, map[string]int64{
			"decisions call=wait limiter=slow outcome=granted":       1,
			"decisions call=wait limiter=slow outcome=delayed":       3,
			"decisions call=wait limiter=slow outcome=abandoned":     1,
			"decisions call=wait limiter=slow outcome=denied part=0": 1,
			"decisions call=reserve limiter=slow outcome=delayed":    1,
			"decisions call=take limiter=slow outcome=delayed":       1,
		}, counts(t, reader))
		got := histograms(t, reader)
		for name, want := range map[string]struct {
			count  uint64
			sum    float64
			bucket float64 // the bound of the only one that is not empty
		}{
			"wait.duration call=wait limiter=slow outcome=granted":    {1, 0, 0.001},
			"wait.duration call=wait limiter=slow outcome=delayed":    {3, 3, 1},
			"wait.duration call=wait limiter=slow outcome=abandoned":  {1, 0.3, 0.5},
			"wait.duration call=reserve limiter=slow outcome=delayed": {1, 0.7, 1},
			"wait.duration call=take limiter=slow outcome=delayed":    {1, 1.7, 2.5},
		} {
			p := got[name]
			delete(got, name)
			assert.Equal(t, want.count, p.Count, name)
			assert.Equal(t, want.sum, p.Sum, name)
			require.Equal(t, []float64{ // which queries of users name
				0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
			}, p.Bounds)
			for i, bound := range p.Bounds {
				assert.Equal(t, bound == want.bucket, p.BucketCounts[i] == want.count, "%s, up to %v s", name, bound)
			}
		}
		assert.Empty(t, got, "a denial waits for nothing")
	})
}

// TestConcurrentCounts: goroutines that decide on the same keys see as many grants and denials
// as are counted.
func TestConcurrentCounts(t *testing.T) {
	o, reader := newObserver(t)
	var limiters []ratelimit.Limiter
	for i := range 3 {
		limiters = append(limiters, limiter(o, fmt.Sprint("l", i), ratelimit.FixedWindow{Limit: 100, Window: 24 * time.Hour}))
	}
	var granted [3]atomic.Int64
	const each = 1000
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range each {
				if limiters[i%3].Allow(key) {
					granted[i%3].Add(1)
				}
				for range 200 {
					o.Observe(t.Context(), ratelimit.Observation{Limiter: "busy"})
				}
				if i%100 == 0 {
					collect(t, reader)
				}
			}
		})
	}
	all.Wait()
	got := counts(t, reader)
	assert.Equal(t, int64(8*each*200), got["decisions call=allow limiter=busy outcome=granted"])
	delete(got, "decisions call=allow limiter=busy outcome=granted")
	var sum int64
	for i := range granted {
		assert.Equal(t, granted[i].Load(), got[fmt.Sprintf("decisions call=allow limiter=l%d outcome=granted", i)])
	}
	for _, n := range got {
		sum += n
	}
	assert.Equal(t, int64(8*each), sum)
}

func TestObserveAllocatesNothing(t *testing.T) {
	o, reader := newObserver(t)
	l := limiter(o, "api", ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(5)}, ratelimit.LeakyBucket{Rate: ratelimit.PerHour(3), Capacity: 9}})
	ctx := t.Context()
	call := func() {
		l.Allow(key)
		_, _ = l.Take(ctx, key, 1)
	}
	for range 10 {
		call() // each outcome occurs, and makes its series
	}
	assert.Zero(t, testing.AllocsPerRun(100, call))
	wait := ratelimit.Observation{Limiter: "api", Call: ratelimit.CallWait, Outcome: ratelimit.Delayed, Waited: time.Second}
	o.Observe(ctx, wait)
	assert.Zero(t, testing.AllocsPerRun(100, func() { o.Observe(ctx, wait) }))
	assert.Len(t, histograms(t, reader), 3, "calls were delayed")
}

// TestManySeries: what is beyond the documented number of combinations is counted together, and
// allocates nothing.
func TestManySeries(t *testing.T) {
	o, reader := newObserver(t, sdk.WithCardinalityLimit(0))
	const documented, more = 1999, 100
	var decisions []ratelimit.Observation
	for i := range documented + more {
		decisions = append(decisions, ratelimit.Observation{Limiter: fmt.Sprint(i), Call: ratelimit.CallWait})
	}
	observe := func(all []ratelimit.Observation) {
		for _, seen := range all {
			o.Observe(t.Context(), seen)
		}
	}
	observe(decisions[:documented+1])
	assert.Equal(t, int64(1), counts(t, reader)["decisions overflow=true"], "the first one")
	observe(decisions[documented+1:])
	observe(decisions)
	got, lengths := counts(t, reader), histograms(t, reader)
	if len(got) != documented+1 { // which are too many to print
		t.Errorf("%d series, not %d", len(got), documented+1)
	}
	assert.Equal(t, int64(2*more), got["decisions overflow=true"])
	assert.Equal(t, uint64(2*more), lengths["wait.duration overflow=true"].Count)
	delete(got, "decisions overflow=true")
	for name, n := range got {
		require.Equal(t, int64(2), n, name)
	}
	assert.Zero(t, testing.AllocsPerRun(100, func() { o.Observe(t.Context(), decisions[documented]) }))
}

// TestUnregister: no decisions are reported afterwards.
func TestUnregister(t *testing.T) {
	o, reader := newObserver(t)
	o.Observe(t.Context(), ratelimit.Observation{})
	assert.Len(t, counts(t, reader), 1)
	require.NoError(t, o.Unregister())
	o.Observe(t.Context(), ratelimit.Observation{})
	assert.Empty(t, counts(t, reader))
}

func TestMissingArguments(t *testing.T) {
	_, err := New(nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	require.ErrorContains(t, err, "otellimit: New's provider is nil: it must be")
	for _, observe := range []func(metric.MeterProvider) error{
		func(p metric.MeterProvider) error { _, err := ObserveMemory(p, "", nil); return err },
		func(p metric.MeterProvider) error { _, err := ObserveRedis(p, "", nil); return err },
	} {
		require.ErrorIs(t, observe(nil), ratelimit.ErrInvalid)
		require.ErrorContains(t, observe(nil), "provider is nil")
		require.ErrorIs(t, observe(noop.MeterProvider{}), ratelimit.ErrInvalid)
		require.ErrorContains(t, observe(noop.MeterProvider{}), "store is nil")
	}
}

// A madeOf is a provider of one meter.
type madeOf struct {
	noop.MeterProvider
	meter metric.Meter
}

func (p madeOf) Meter(string, ...metric.MeterOption) metric.Meter { return p.meter }

// A brokenMeter cannot make some instruments.
type brokenMeter struct{ noop.Meter }

// A brokenCounters can make histograms only.
type brokenCounters struct{ noop.Meter }

var errBroken = errors.New("broken")

func (brokenMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return nil, errBroken
}

func (brokenCounters) Int64ObservableCounter(string, ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return nil, errBroken
}

func (brokenMeter) Int64ObservableUpDownCounter(string, ...metric.Int64ObservableUpDownCounterOption) (metric.Int64ObservableUpDownCounter, error) {
	return nil, errBroken
}

func TestInstrumentsThatCannotBeMade(t *testing.T) {
	o, err := New(madeOf{meter: brokenMeter{}})
	require.ErrorIs(t, err, errBroken)
	assert.Nil(t, o)
	o, err = New(madeOf{meter: brokenCounters{}})
	require.ErrorIs(t, err, errBroken)
	assert.Nil(t, o)
	_, err = ObserveMemory(madeOf{meter: brokenMeter{}}, "", new(ratelimit.MemoryStore))
	require.ErrorIs(t, err, errBroken)
}

// BenchmarkObserve measures an observation alone: with a provider that counts nothing, and with the
// SDK's.
func BenchmarkObserve(b *testing.B) {
	counting, _ := newProvider()
	for name, provider := range map[string]metric.MeterProvider{"noop": noop.MeterProvider{}, "sdk": counting} {
		for _, seen := range []ratelimit.Observation{
			{Limiter: "api", Call: ratelimit.CallAllow, Outcome: ratelimit.Granted},
			{Limiter: "api", Call: ratelimit.CallWait, Outcome: ratelimit.Delayed, Waited: time.Second},
		} {
			b.Run("provider="+name+"/call="+seen.Call.String(), func(b *testing.B) {
				o, err := New(provider)
				require.NoError(b, err)
				b.ReportAllocs()
				for b.Loop() {
					o.Observe(context.Background(), seen)
				}
			})
		}
	}
}
