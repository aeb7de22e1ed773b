package ratelimit_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/observe"
)

// The benchmarks compare the algorithms and the calls of this package, in memory. In less than a
// minute,
//
//	go test -run '^$' -bench . -benchtime 100ms .
//
// prints them all. The folder benchmarks compares the package with others.
//
// Keys have 16 bytes and are made before the measurement. A benchmark fails if an answer is wrong.

const (
	plenty = 400_000_000 // a limit that no benchmark uses up
	spent  = 100         // a limit that useUp uses up
	long   = 1000 * time.Hour
	hotKey = "hot key 12345678"
)

// A named algorithm is one row of a benchmark.
type named struct {
	name string
	alg  ratelimit.Algorithm
}

// algorithms returns every algorithm with a limit of n. No event comes back while a benchmark runs:
// a key that is denied stays denied, and a key that was used stays in use, so that it cannot be
// forgotten. There are two exceptions. A SlidingLog remembers each event of its window, so the
// window is short enough for about a hundred. A WarmingUp has no burst, so its rate is unreachable
// if n is plenty.
func algorithms(n int, window time.Duration) []named {
	rate, warming := ratelimit.Every(long), ratelimit.Every(long)
	if n >= plenty {
		rate, warming = ratelimit.Every(10*time.Second), ratelimit.PerSecond(1e9)
	}
	return everyAlgorithm(n, rate, long, window, warming)
}

// idle returns every algorithm with a limit that comes back before a key is used again, as for most
// clients of most services. It leaves out CalendarWindow, whose shortest window is a day.
func idle() []named {
	const n, window = 10, 10 * time.Microsecond
	algs := everyAlgorithm(n, ratelimit.Every(time.Microsecond), window, window, ratelimit.PerSecond(1e9))
	return slices.DeleteFunc(algs, func(a named) bool { return a.name == "CalendarWindow" })
}

func everyAlgorithm(n int, rate ratelimit.Rate, window, logged time.Duration, warming ratelimit.Rate) []named {
	sliding := window
	if n >= plenty {
		sliding = 100 * 365 * 24 * time.Hour // a state of one word
	}
	return []named{
		{"TokenBucket", ratelimit.TokenBucket{Rate: rate, Burst: n}},
		{"TokenBucketInterval", ratelimit.TokenBucket{Rate: rate, Burst: n, Refill: ratelimit.RefillInterval}},
		{"LeakyBucket", ratelimit.LeakyBucket{Rate: rate, Capacity: n}},
		{"FixedWindow", ratelimit.FixedWindow{Limit: n, Window: window}},
		{"CalendarWindow", ratelimit.CalendarWindow{Limit: n, Every: ratelimit.Month}},
		{"SlidingWindow", ratelimit.SlidingWindow{Limit: n, Window: sliding}},
		{"SlidingWindow10", ratelimit.SlidingWindow{Limit: n, Window: window, Segments: 10}},
		{"SlidingLog", ratelimit.SlidingLog{Limit: n, Window: logged}},
		{"RollingWindow24", ratelimit.RollingWindow{Quota: n, Window: 24 * window, Period: window}},
		{"WarmingUp", ratelimit.WarmingUp{Rate: warming, Warmup: 10 * time.Second, ColdFactor: 1}},
		{"All2", ratelimit.All{
			ratelimit.TokenBucket{Rate: rate, Burst: n},
			ratelimit.TokenBucket{Rate: rate, Burst: n + 1},
		}},
	}
}

// each runs f for every algorithm.
func each(b *testing.B, algs []named, f func(b *testing.B, l ratelimit.Limiter)) {
	for _, a := range algs {
		b.Run(a.name, func(b *testing.B) {
			b.ReportAllocs()
			f(b, ratelimit.Must(ratelimit.New(a.alg)))
		})
	}
}

// loop times f, which reports whether its answer is the expected one.
func loop(b *testing.B, f func() bool) {
	for b.Loop() {
		if !f() {
			b.Fatal("wrong answer")
		}
	}
}

// parallel is loop from all cores at once: its time is the inverse of the throughput.
func parallel(b *testing.B, f func() bool) {
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if !f() {
				b.Error("wrong answer")
				return
			}
		}
	})
}

func BenchmarkHotKey(b *testing.B) {
	each(b, algorithms(plenty, 10*time.Microsecond), func(b *testing.B, l ratelimit.Limiter) {
		loop(b, func() bool { return l.Allow(hotKey) })
	})
}

func BenchmarkHotKeyParallel(b *testing.B) {
	each(b, algorithms(plenty, 10*time.Microsecond), func(b *testing.B, l ratelimit.Limiter) {
		parallel(b, func() bool { return l.Allow(hotKey) })
	})
}

func BenchmarkDenied(b *testing.B) {
	each(b, algorithms(spent, long), func(b *testing.B, l ratelimit.Limiter) {
		useUp(l)
		loop(b, func() bool { return !l.Allow(hotKey) })
	})
}

func BenchmarkDeniedParallel(b *testing.B) {
	each(b, algorithms(spent, long), func(b *testing.B, l ratelimit.Limiter) {
		useUp(l)
		parallel(b, func() bool { return !l.Allow(hotKey) })
	})
}

// useUp spends the limit of hotKey.
func useUp(l ratelimit.Limiter) {
	for l.Allow(hotKey) {
	}
}

// keys returns n keys in a random order. Their bytes follow one another in memory, so that they are
// in the cache when a loop comes to them, as in a server that has just read them: what is cold is
// the limiter's state.
func keys(n int) []string {
	var text strings.Builder
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(n) {
		fmt.Fprintf(&text, "key-%012d", i)
	}
	all := make([]string, n)
	for i := range all {
		all[i] = text.String()[16*i : 16*i+16]
	}
	return all
}

// meet uses each key once, in another order than that of keys. So memory that a limiter allocates
// in sequence is not used in sequence by the benchmark.
func meet(b *testing.B, l ratelimit.Limiter, all []string) {
	for i := range all {
		if !l.Allow(all[i*7919%len(all)]) { // 7919 is a prime
			b.Fatal("denied")
		}
	}
}

// visit returns a function that allows one key after the other.
func visit(l ratelimit.Limiter, all []string, from int) func() bool {
	i := from % len(all)
	return func() bool {
		key := all[i]
		if i++; i == len(all) {
			i = 0
		}
		return l.Allow(key)
	}
}

// sized runs f for several numbers of keys, with every algorithm. With a million keys, it runs only
// the first algorithm, because it takes long to fill a limiter with them.
func sized(b *testing.B, f func(b *testing.B, a named, i int, all []string, window time.Duration)) {
	for _, size := range []struct {
		name   string
		keys   int
		window time.Duration // in which a log has at most a hundred events of a key
	}{{"1k", 1_000, 10 * time.Millisecond}, {"100k", 100_000, time.Second}, {"1M", 1_000_000, 10 * time.Second}} {
		all, algs := keys(size.keys), algorithms(plenty, size.window)
		if size.name == "1M" {
			algs = algs[:1]
		}
		b.Run("keys="+size.name, func(b *testing.B) {
			for i, a := range algs {
				b.Run(a.name, func(b *testing.B) {
					b.ReportAllocs()
					f(b, a, i, all, size.window)
				})
			}
		})
	}
}

// BenchmarkManyKeys uses keys that are in use, and reports the memory of each.
func BenchmarkManyKeys(b *testing.B) {
	sized(b, func(b *testing.B, a named, _ int, all []string, _ time.Duration) {
		manyKeys(b, ratelimit.Must(ratelimit.New(a.alg)), all)
	})
}

// BenchmarkOwnLimits is BenchmarkManyKeys with one of ten limits for each key.
func BenchmarkOwnLimits(b *testing.B) {
	sized(b, func(b *testing.B, a named, i int, all []string, window time.Duration) {
		var plans [10]ratelimit.Algorithm
		for more := range plans {
			plans[more] = algorithms(plenty+more, window)[i].alg
		}
		plan := func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			return plans[key[len(key)-1]-'0'], nil
		}
		manyKeys(b, ratelimit.Must(ratelimit.New(a.alg, ratelimit.WithLimits(plan))), all)
	})
}

func manyKeys(b *testing.B, l ratelimit.Limiter, all []string) {
	grown := heapOf(func() { meet(b, l, all) })
	loop(b, visit(l, all, 0))
	b.ReportMetric(float64(grown)/float64(len(all)), "B/key")
	runtime.KeepAlive(l)
}

func BenchmarkManyKeysParallel(b *testing.B) {
	all := keys(100_000)
	for _, a := range algorithms(plenty, time.Second) {
		l := ratelimit.Must(ratelimit.New(a.alg))
		meet(b, l, all)
		var callers atomic.Int64
		b.Run("keys=100k/"+a.name, func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				next := visit(l, all, int(callers.Add(1))*len(all)/7)
				for pb.Next() {
					if !next() {
						b.Error("denied")
						return
					}
				}
			})
		})
	}
}

// BenchmarkIdleKeys uses keys whose events have come back.
func BenchmarkIdleKeys(b *testing.B) {
	all := keys(1_000)
	each(b, idle(), func(b *testing.B, l ratelimit.Limiter) {
		meet(b, l, all)
		loop(b, visit(l, all, 0))
	})
}

// BenchmarkUnseenKeys meets only new keys. After each million it starts over with an empty limiter,
// out of the timing.
func BenchmarkUnseenKeys(b *testing.B) {
	all := keys(1_000_000)
	for _, a := range algorithms(plenty, 10*time.Second) {
		b.Run(a.name, func(b *testing.B) {
			b.ReportAllocs()
			l, i := ratelimit.Must(ratelimit.New(a.alg)), 0
			for b.Loop() {
				if i == len(all) {
					b.StopTimer()
					l, i = ratelimit.Must(ratelimit.New(a.alg)), 0
					runtime.GC()
					b.StartTimer()
				}
				if !l.Allow(all[i]) {
					b.Fatal("denied")
				}
				i++
			}
		})
	}
}

// heapOf returns how many bytes f adds to the heap.
func heapOf(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return after.HeapAlloc - min(after.HeapAlloc, before.HeapAlloc)
}

// BenchmarkKeyLength shows the time of hashing longer keys.
func BenchmarkKeyLength(b *testing.B) {
	for _, n := range []int{16, 36, 64, 200} {
		key, l := strings.Repeat("k", n), ratelimit.Must(ratelimit.New(algorithms(plenty, long)[0].alg))
		b.Run(strconv.Itoa(n), func(b *testing.B) { loop(b, func() bool { return l.Allow(key) }) })
	}
}

// BenchmarkCoarseBesideSystem reports how many times as long as with the system's clock a decision
// takes with a coarse one.
func BenchmarkCoarseBesideSystem(b *testing.B) {
	coarse, stop, err := ratelimit.NewCoarseClock(time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	for _, size := range []struct {
		name string
		keys int
	}{{"1", 1}, {"1k", 1_000}, {"1M", 1_000_000}} {
		all, alg := keys(size.keys), algorithms(plenty, long)[0].alg
		b.Run("keys="+size.name, func(b *testing.B) {
			visited := func(opts ...ratelimit.Option) func() bool {
				l := ratelimit.Must(ratelimit.New(alg, opts...))
				meet(b, l, all)
				return visit(l, all, 0)
			}
			beside(b, visited(ratelimit.WithClock(coarse)), visited())
		})
	}
}

// beside reports how many times as long as other f takes. Both take turns, so that whatever else the
// machine does slows both.
func beside(b *testing.B, f, other func() bool) {
	timed := func(f func() bool) float64 {
		began := time.Now()
		for range 1000 {
			if !f() {
				b.Fatal("wrong answer")
			}
		}
		return float64(time.Since(began))
	}
	var ratios, times, others []float64
	for b.Loop() {
		t, o := timed(f), timed(other)
		ratios, times, others = append(ratios, t/o), append(times, t), append(others, o)
	}
	for unit, values := range map[string][]float64{"ns": times, "other-ns": others} {
		b.ReportMetric(median(values)/1000, unit)
	}
	b.ReportMetric(median(ratios), "median-ratio")
	b.ReportMetric(0, "ns/op") // of 1000 calls of both
}

// median returns the median of values, which it sorts.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// A benchmark with the name of a call makes that call on one hot key. BenchmarkHotKey calls Allow.

func BenchmarkTake(b *testing.B) {
	called(b, func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error) {
		return l.Take(ctx, hotKey, 1)
	})
}

// BenchmarkCalendarBesideFixed reports how many times as long as a FixedWindow a CalendarWindow takes.
func BenchmarkCalendarBesideFixed(b *testing.B) {
	for _, call := range []struct {
		name    string
		granted func(l ratelimit.Limiter) bool
	}{
		{"HotKey", func(l ratelimit.Limiter) bool { return l.Allow(hotKey) }},
		{"Take", func(l ratelimit.Limiter) bool { d, _ := l.Take(b.Context(), hotKey, 1); return d.Allowed }},
		{"Peek", func(l ratelimit.Limiter) bool { d, _ := l.Peek(b.Context(), hotKey); return d.Allowed }},
	} {
		b.Run(call.name, func(b *testing.B) {
			called := func(alg ratelimit.Algorithm) func() bool {
				l := ratelimit.Must(ratelimit.New(alg))
				l.Allow(hotKey) // so that Peek finds it
				return func() bool { return call.granted(l) }
			}
			beside(b, called(ratelimit.CalendarWindow{Limit: plenty, Every: ratelimit.Month}),
				called(ratelimit.FixedWindow{Limit: plenty, Window: long}))
		})
	}
}

func BenchmarkHoldSettle(b *testing.B) {
	called(b, func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error) {
		r, d, err := l.Hold(ctx, hotKey, 2)
		if r == nil || err != nil {
			return d, err
		}
		return r.Settle(ctx, 1)
	})
}

// BenchmarkReserveCancel reserves on a key that is used up, except that a LeakyBucket has room in
// its queue.
func BenchmarkReserveCancel(b *testing.B) {
	ctx := context.Background()
	each(b, algorithms(spent, long), func(b *testing.B, l ratelimit.Limiter) {
		d, err := l.Peek(ctx, hotKey)
		if err != nil {
			b.Fatal(err)
		}
		n := max(1, d.Limit/4) // a WarmingUp grants one at a time
		for l.AllowN(hotKey, n) && !strings.Contains(b.Name(), "LeakyBucket") {
		}
		for b.Loop() {
			r, d, err := l.Reserve(ctx, hotKey, 1)
			if err != nil || d.Delay == 0 {
				b.Fatal("not ahead", err)
			}
			r.Cancel()
		}
	})
}

// BenchmarkWait waits on a key that has events left. It leaves out LeakyBucket, which paces who
// waits.
func BenchmarkWait(b *testing.B) {
	algs := slices.DeleteFunc(algorithms(plenty, 10*time.Microsecond), func(a named) bool { return a.name == "LeakyBucket" })
	each(b, algs, func(b *testing.B, l ratelimit.Limiter) {
		loop(b, func() bool { return l.Wait(b.Context(), hotKey) == nil })
	})
}

// called times a call. Each call must be allowed.
func called(b *testing.B, call func(ctx context.Context, l ratelimit.Limiter) (ratelimit.Decision, error)) {
	ctx := context.Background()
	each(b, algorithms(plenty, 10*time.Microsecond), func(b *testing.B, l ratelimit.Limiter) {
		for b.Loop() {
			if d, err := call(ctx, l); err != nil || !d.Allowed {
				b.Fatal("denied", err)
			}
		}
	})
}

// BenchmarkOtherCalls has calls that take about as long with every algorithm.
func BenchmarkOtherCalls(b *testing.B) {
	l, ctx := ratelimit.Must(ratelimit.New(algorithms(plenty, long)[0].alg)), context.Background()
	b.Run("Peek", func(b *testing.B) {
		b.ReportAllocs()
		loop(b, func() bool { d, err := l.Peek(ctx, hotKey); return d.Allowed && err == nil })
	})
	b.Run("Charge", func(b *testing.B) {
		b.ReportAllocs()
		loop(b, func() bool { d, err := l.Charge(ctx, hotKey, 1); return d.Allowed && err == nil })
	})
}

// BenchmarkHoldRelease holds and releases an event while 50 other events are in flight.
func BenchmarkHoldRelease(b *testing.B) {
	l, ctx := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 100, Timeout: time.Minute})), context.Background()
	for range 50 {
		l.Allow(hotKey)
	}
	b.Run("InFlight", func(b *testing.B) {
		b.ReportAllocs()
		loop(b, func() bool {
			r, _, err := l.Hold(ctx, hotKey, 1)
			return r != nil && err == nil && r.Release(ctx) == nil
		})
	})
}

// BenchmarkTakeAll decides together on the hot keys of several token buckets. The name of a
// sub-benchmark has their number.
func BenchmarkTakeAll(b *testing.B) {
	together(b, func(ctx context.Context, bounds []ratelimit.Bound) (ratelimit.Decision, error) {
		return ratelimit.TakeAll(ctx, 1, bounds...)
	})
}

// BenchmarkHoldAll is BenchmarkTakeAll with HoldAll and Settle.
func BenchmarkHoldAll(b *testing.B) {
	together(b, func(ctx context.Context, bounds []ratelimit.Bound) (ratelimit.Decision, error) {
		r, d, err := ratelimit.HoldAll(ctx, 2, bounds...)
		if r == nil || err != nil {
			return d, err
		}
		return r.Settle(ctx, 1)
	})
}

// BenchmarkManyBounds calls TakeAll with thousands of Bounds. Each key is given twice. The time is
// that of one Bound.
func BenchmarkManyBounds(b *testing.B) {
	ctx := context.Background()
	for _, n := range []int{64, 1024, 16384} {
		l := ratelimit.Must(ratelimit.New(algorithms(plenty, long)[0].alg))
		var bounds []ratelimit.Bound
		for i := range n {
			bounds = append(bounds, ratelimit.For(l, strconv.Itoa(i/2)))
		}
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for range b.N/n + 1 {
				r, _, err := ratelimit.HoldAll(ctx, 1, bounds...)
				if r == nil || err != nil {
					b.Fatal(err)
				}
				if err := r.Extend(ctx, time.Hour); err != nil {
					b.Fatal(err)
				}
				r.Cancel()
			}
		})
	}
}

func together(b *testing.B, call func(ctx context.Context, bounds []ratelimit.Bound) (ratelimit.Decision, error)) {
	ctx, store := context.Background(), new(ratelimit.MemoryStore)
	var bounds []ratelimit.Bound
	for n := 1; n <= 5; n++ {
		l := ratelimit.Must(ratelimit.New(algorithms(plenty, long)[0].alg, ratelimit.WithStore(store), ratelimit.WithName(strconv.Itoa(n))))
		bounds = append(bounds, ratelimit.For(l, hotKey))
		if n == 4 {
			continue
		}
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			loop(b, func() bool { d, err := call(ctx, bounds); return d.Allowed && err == nil })
		})
	}
}

// BenchmarkTakeEach compares TakeEach with a loop of Take, on 64 of a million keys at a time. The
// time is that of one key.
func BenchmarkTakeEach(b *testing.B) {
	const batch = 64
	ctx, all := context.Background(), keys(1_000_000)
	l := ratelimit.Must(ratelimit.New(algorithms(plenty, long)[0].alg))
	meet(b, l, all)
	var out []ratelimit.Decision
	for _, call := range []struct {
		name string
		take func(keys []string)
	}{
		{"Loop", func(keys []string) {
			for _, key := range keys {
				d, _ := l.Take(ctx, key, 1)
				out = append(out, d)
			}
		}},
		{"TakeEach", func(keys []string) { out, _ = l.TakeEach(ctx, keys, 1, out) }},
	} {
		b.Run(call.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				out = out[:0]
				call.take(all[i : i+batch])
				for j := range batch {
					if !out[j].Allowed {
						b.Fatal("denied")
					}
				}
				if i += batch; i+batch > len(all) {
					i = 0
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/key")
		})
	}
}

// BenchmarkFullStore is the worst case of a bounded store: all keys are exhausted, and each new key
// exhausts its limit at once.
func BenchmarkFullStore(b *testing.B) {
	for _, bound := range []int{10_000, 1_000_000} {
		b.Run("keys="+strconv.Itoa(bound), func(b *testing.B) {
			l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
				ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: bound}), ratelimit.WithName("test")))
			for i := range bound {
				l.Allow("old " + strconv.Itoa(i))
			}
			for i := 0; b.Loop(); i++ {
				l.Allow("new " + strconv.Itoa(i))
			}
		})
	}
}

// BenchmarkFlood is a flood of new keys, each in use for a day. With -benchtime 5000000x, it
// reports the memory of a flood of five million, without a bound and with one.
func BenchmarkFlood(b *testing.B) {
	for _, bound := range []int{0, 1_000_000} {
		b.Run("MaxKeys="+strconv.Itoa(bound), func(b *testing.B) {
			store := &ratelimit.MemoryStore{MaxKeys: bound}
			l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 100, Window: 24 * time.Hour},
				ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New())))
			l.AllowN("used up", 100)
			heap := fakes.HeapOf(func() {
				for i := 0; b.Loop(); i++ {
					l.Allow("new " + strconv.Itoa(i))
				}
			})
			b.ReportMetric(heap/1e6, "MB")
			if l.Allow("used up") {
				b.Error("the flood has evicted a key that has used up its limit")
			}
		})
	}
}

// BenchmarkObserver compares observers on one hot key, allowed and denied.
func BenchmarkObserver(b *testing.B) {
	coarse, stop, err := ratelimit.NewCoarseClock(time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	var counts [8]atomic.Int64
	top := func(opts ...observe.TopOption) *observe.TopKeys {
		denied, err := observe.TopDenied(100, opts...)
		if err != nil {
			b.Fatal(err)
		}
		return denied
	}
	for _, o := range []struct {
		name string
		of   ratelimit.Observer
	}{
		{"None", nil},
		{"Empty", func(context.Context, ratelimit.Observation) {}},
		{"Counter", func(_ context.Context, o ratelimit.Observation) { counts[o.Outcome].Add(1) }},
		{"TopDenied", top().Observe},
		{"TopDeniedCoarse", top(observe.WithTopClock(coarse)).Observe},
		{"SlogDisabled", observe.Slog(slog.New(slog.DiscardHandler), time.Second)},
		{"Slog", observe.Slog(slog.New(slog.NewTextHandler(io.Discard, nil)), time.Second)},
	} {
		var opts []ratelimit.Option
		if o.of != nil {
			opts = append(opts, ratelimit.WithObserver(o.of))
		}
		some := ratelimit.Must(ratelimit.New(algorithms(plenty, long)[0].alg, opts...))
		none := ratelimit.Must(ratelimit.New(algorithms(spent, long)[0].alg, opts...))
		useUp(none)
		b.Run(o.name+"/Allowed", func(b *testing.B) { loop(b, func() bool { return some.Allow(hotKey) }) })
		b.Run(o.name+"/Denied", func(b *testing.B) { loop(b, func() bool { return !none.Allow(hotKey) }) })
		b.Run(o.name+"/DeniedParallel", func(b *testing.B) { parallel(b, func() bool { return !none.Allow(hotKey) }) })
	}
}
