package ratelimit_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// The benchmarks compare the algorithms, through Allow and with the default
// clock and store:
//
//	go test -run '^$' -bench . -benchmem
//
// In each the answers are checked: a limit that lets through what it should
// not, or the other way round, fails the benchmark.

// A named algorithm is one row of a benchmark.
type named struct {
	name string
	alg  ratelimit.Algorithm
}

// plenty is a limit that no benchmark uses up.
const plenty = 400_000_000

// algorithms returns every algorithm with a limit of n that is slow to come
// back, so that a denied key stays denied, and no key that was used becomes
// idle and is forgotten while the benchmark runs. Only the log forgets after
// window: it remembers each event, and must not fill the memory.
func algorithms(n int, window time.Duration) []named {
	rate := ratelimit.Every(10 * time.Second)
	const long = 1000 * time.Hour
	if n < plenty {
		rate = ratelimit.Every(long)
	}
	return []named{
		{"token", ratelimit.TokenBucket{Rate: rate, Burst: n}},
		{"token-interval", ratelimit.TokenBucket{Rate: rate, Burst: n, Refill: ratelimit.RefillInterval}},
		{"leaky", ratelimit.LeakyBucket{Rate: rate, Capacity: n}},
		{"fixed", ratelimit.FixedWindow{Limit: n, Window: long}},
		{"fixed-first", ratelimit.FixedWindow{Limit: n, Window: long, Start: ratelimit.StartOnFirstEvent}},
		{"sliding", ratelimit.SlidingWindow{Limit: n, Window: 100 * 365 * 24 * time.Hour}}, // in one word
		{"sliding-10", ratelimit.SlidingWindow{Limit: n, Window: long, Segments: 10}},
		{"log", ratelimit.SlidingLog{Limit: n, Window: window}},
		{"log-denied", ratelimit.SlidingLog{Limit: n, Window: window, CountDenied: true}},
		{"rolling", ratelimit.RollingWindow{Quota: n, Window: 24 * long, Period: long}},
		{"all", ratelimit.All{
			ratelimit.TokenBucket{Rate: rate, Burst: n},
			ratelimit.FixedWindow{Limit: n, Window: long},
		}},
		warmingUp(n),
	}
}

// warmingUp grants one request after the other, however many there may be at
// once: so fast that none is too early, or so slowly that all but one are.
func warmingUp(n int) named {
	rate := ratelimit.PerSecond(1e9)
	if n < plenty {
		rate = ratelimit.Every(1000 * time.Hour)
	}
	return named{"warmingup", ratelimit.WarmingUp{Rate: rate, Warmup: 10 * time.Second, ColdFactor: 1}}
}

// each runs f for every algorithm.
func each(b *testing.B, axes string, algs []named, f func(b *testing.B, l ratelimit.Limiter)) {
	for _, a := range algs {
		b.Run(axes+"alg="+a.name, func(b *testing.B) {
			b.ReportAllocs()
			f(b, ratelimit.Must(ratelimit.New(a.alg)))
		})
	}
}

func BenchmarkHotKeyAllowed(b *testing.B) {
	each(b, "", algorithms(plenty, time.Millisecond), func(b *testing.B, l ratelimit.Limiter) {
		for b.Loop() {
			if !l.Allow("hot key 12345678") {
				b.Fatal("denied")
			}
		}
	})
}

// BenchmarkKeyLengths decides on one hot key: the time that longer keys add is that of
// hashing them.
func BenchmarkHoldRelease(b *testing.B) {
	l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 100, Timeout: time.Minute}))
	ctx := context.Background()
	for range 50 { // in flight meanwhile
		l.Allow("key")
	}
	b.ReportAllocs()
	for b.Loop() {
		r, _, err := l.Hold(ctx, "key", 1)
		if r == nil || err != nil {
			b.Fatal("denied")
		}
		if err := r.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkKeyLengths(b *testing.B) {
	for _, n := range []int{16, 36, 39, 64, 65, 200} {
		key := strings.Repeat("k", n)
		each(b, fmt.Sprintf("bytes=%d/", n), algorithms(plenty, time.Millisecond)[:1], func(b *testing.B, l ratelimit.Limiter) {
			for b.Loop() {
				if !l.Allow(key) {
					b.Fatal("denied")
				}
			}
		})
	}
}

func BenchmarkHotKeyDenied(b *testing.B) {
	each(b, "", algorithms(1, 1000*time.Hour), func(b *testing.B, l ratelimit.Limiter) {
		l.Allow("hot key 12345678")
		for b.Loop() {
			if l.Allow("hot key 12345678") {
				b.Fatal("allowed")
			}
		}
	})
}

func BenchmarkHotKeyAllowedParallel(b *testing.B) {
	each(b, "", algorithms(plenty, time.Millisecond), func(b *testing.B, l ratelimit.Limiter) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if !l.Allow("hot key 12345678") {
					b.Error("denied")
					return
				}
			}
		})
	})
}

func BenchmarkHotKeyDeniedParallel(b *testing.B) {
	each(b, "", algorithms(1, 1000*time.Hour), func(b *testing.B, l ratelimit.Limiter) {
		l.Allow("hot key 12345678")
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if l.Allow("hot key 12345678") {
					b.Error("allowed")
					return
				}
			}
		})
	})
}

// keys returns n keys of 16 bytes. Index them with shuffled.
func keys(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("key-%012d", i)
	}
	return all
}

// shuffled returns a different index below n for each i below n, in an order
// that no prefetcher follows.
func shuffled(i, n int) int {
	const prime = 2_147_483_647
	return int(uint64(i) * prime % uint64(n))
}

func BenchmarkManyKeys(b *testing.B) {
	for _, n := range []int{1_000, 1_000_000} {
		all := keys(n)
		each(b, "keys="+map[int]string{1e3: "1e3", 1e6: "1e6"}[n]+"/", algorithms(plenty, 10*time.Second), func(b *testing.B, l ratelimit.Limiter) {
			heap := heapOf(func() {
				for i := range n {
					l.Allow(all[i])
				}
			})
			allowShuffled(b, l, all)
			b.ReportMetric(float64(heap)/float64(n), "B/key")
			runtime.KeepAlive(l)
		})
	}
}

// allowShuffled times Allow of the keys, in a shuffled order.
func allowShuffled(b *testing.B, l ratelimit.Limiter, all []string) {
	i := 0
	for b.Loop() {
		if !l.Allow(all[shuffled(i%len(all), len(all))]) {
			b.Fatal("denied")
		}
		i++
	}
}

func BenchmarkManyKeysParallel(b *testing.B) {
	for _, n := range []int{1_000, 1_000_000} {
		all := keys(n)
		each(b, "keys="+map[int]string{1e3: "1e3", 1e6: "1e6"}[n]+"/", algorithms(plenty, 10*time.Second), func(b *testing.B, l ratelimit.Limiter) {
			for i := range n {
				l.Allow(all[i])
			}
			allowShuffledParallel(b, l, all)
		})
	}
}

// allowShuffledParallel is allowShuffled by several callers, each of which begins elsewhere.
func allowShuffledParallel(b *testing.B, l ratelimit.Limiter, all []string) {
	var callers atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		i := int(callers.Add(1)) * 7919
		for pb.Next() {
			if !l.Allow(all[shuffled(i%len(all), len(all))]) {
				b.Error("denied")
				return
			}
			i++
		}
	})
}

// BenchmarkUnseenKeys meets only keys that the limiter has never seen. It
// starts over with an empty one, out of the timing, after each million.
func BenchmarkUnseenKeys(b *testing.B) {
	const n = 1_000_000
	all := keys(n)
	for _, a := range algorithms(plenty, 10*time.Second) {
		b.Run("alg="+a.name, func(b *testing.B) {
			b.ReportAllocs()
			l := ratelimit.Must(ratelimit.New(a.alg))
			i := 0
			for b.Loop() {
				if i == n {
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

// heapOf returns by how much f grows the heap.
func heapOf(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return after.HeapAlloc - min(after.HeapAlloc, before.HeapAlloc)
}

// BenchmarkFloodOfUsedUpKeys is the worst case of a bounded store: all keys are
// used up, and so is each new one at once.
func BenchmarkFloodOfUsedUpKeys(b *testing.B) {
	for _, bound := range []int{10_000, 100_000, 1_000_000} {
		b.Run(strconv.Itoa(bound), func(b *testing.B) {
			l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
				ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(bound))), ratelimit.WithName("test")))
			for i := range bound {
				l.Allow("old " + strconv.Itoa(i))
			}
			i := 0
			for b.Loop() {
				l.Allow("new " + strconv.Itoa(i))
				i++
			}
		})
	}
}

// BenchmarkEach compares a loop with TakeEach, on 64 keys at a time of a million. The
// keys' bytes are touched before, as if they had just been received; their states are in no
// cache.
func BenchmarkEach(b *testing.B) {
	const n, together = 1_000_000, 64
	all := keys(n)
	algs := []named{algorithms(plenty, 10*time.Second)[0], algorithms(plenty, 10*time.Second)[3], algorithms(plenty, 10*time.Second)[5]}
	for _, a := range algs {
		l := ratelimit.Must(ratelimit.New(a.alg))
		for _, key := range all {
			l.Allow(key)
		}
		out := make([]ratelimit.Decision, 0, together)
		for _, call := range []struct {
			name string
			f    func(keys []string) (allowed int)
		}{
			{"Allow", func(keys []string) (allowed int) {
				for _, key := range keys {
					if l.Allow(key) {
						allowed++
					}
				}
				return allowed
			}},
			{"Take", func(keys []string) (allowed int) {
				for _, key := range keys {
					if d, _ := l.Take(context.Background(), key, 1); d.Allowed {
						allowed++
					}
				}
				return allowed
			}},
			{"TakeEach", func(keys []string) (allowed int) {
				out, _ = ratelimit.TakeEach(context.Background(), l, keys, 1, out[:0])
				for i := range out {
					if out[i].Allowed {
						allowed++
					}
				}
				return allowed
			}},
		} {
			b.Run("alg="+a.name+"/"+call.name, func(b *testing.B) {
				b.ReportAllocs()
				batch, i, bytes := make([]string, together), 0, 0
				var spent time.Duration
				for b.Loop() {
					for j := range batch {
						batch[j] = all[shuffled(i%n, n)]
						bytes += int(batch[j][8])
						i++
					}
					begin := time.Now()
					allowed := call.f(batch)
					spent += time.Since(begin)
					if allowed != together {
						b.Fatal("denied")
					}
				}
				b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N*together), "ns/key")
				b.ReportMetric(0, "ns/op") // it would include finding the keys
				runtime.KeepAlive(bytes)
			})
		}
	}
}

// BenchmarkAccounting compares Take with the calls that account for events, on one hot key.
func BenchmarkAccounting(b *testing.B) {
	ctx := context.Background()
	for _, call := range []struct {
		name string
		f    func(l ratelimit.Limiter) error
	}{
		{"Take", func(l ratelimit.Limiter) error { _, err := l.Take(ctx, "hot key 12345678", 1); return err }},
		{"Hold+Settle", func(l ratelimit.Limiter) error {
			r, _, err := l.Hold(ctx, "hot key 12345678", 2)
			if err == nil {
				_, err = r.Settle(ctx, 1)
			}
			return err
		}},
		{"Charge", func(l ratelimit.Limiter) error { _, err := l.Charge(ctx, "hot key 12345678", 1); return err }},
		{"TakeUpTo", func(l ratelimit.Limiter) error { _, _, err := l.TakeUpTo(ctx, "hot key 12345678", 1); return err }},
	} {
		each(b, "call="+call.name+"/", algorithms(plenty, time.Millisecond), func(b *testing.B, l ratelimit.Limiter) {
			for b.Loop() {
				if err := call.f(l); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTakeAll decides on hot keys of as many limiters together; keys=1 is Take.
func BenchmarkTakeAll(b *testing.B) {
	ctx := context.Background()
	severalKeys(b, func(bounds []ratelimit.Bound) (d ratelimit.Decision, err error) {
		if len(bounds) == 1 {
			return bounds[0].Take(ctx, 1)
		}
		return ratelimit.TakeAll(ctx, 1, bounds...)
	})
}

// BenchmarkHoldAll is BenchmarkTakeAll with HoldAll and Settle; keys=1 is Hold and Settle.
func BenchmarkHoldAll(b *testing.B) {
	ctx := context.Background()
	severalKeys(b, func(bounds []ratelimit.Bound) (d ratelimit.Decision, err error) {
		var r *ratelimit.Reservation
		if len(bounds) == 1 {
			r, d, err = bounds[0].Hold(ctx, 2)
		} else {
			r, d, err = ratelimit.HoldAll(ctx, 2, bounds...)
		}
		if err != nil || !d.Allowed {
			return d, err
		}
		return r.Settle(ctx, 1)
	})
}

// severalKeys calls f with hot keys of as many limiters on one store.
func severalKeys(b *testing.B, f func(bounds []ratelimit.Bound) (ratelimit.Decision, error)) {
	for _, keys := range []int{1, 2, 3, 5} {
		each(b, fmt.Sprintf("keys=%d/", keys), algorithms(plenty, time.Millisecond), func(b *testing.B, l ratelimit.Limiter) {
			var bounds []ratelimit.Bound
			store := ratelimit.NewMemoryStore()
			for i := range keys {
				l := ratelimit.Must(ratelimit.New(ratelimit.AlgorithmOf(l), ratelimit.WithStore(store), ratelimit.WithName(strconv.Itoa(i))))
				bounds = append(bounds, ratelimit.For(l, "hot key 1234567"+strconv.Itoa(i)))
			}
			for b.Loop() {
				if d, err := f(bounds); err != nil || !d.Allowed {
					b.Fatal("denied", err)
				}
			}
		})
	}
}
