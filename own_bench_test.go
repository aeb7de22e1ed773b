package ratelimit_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"

	"github.com/ratelimit-go/ratelimit"
)

// plans are n limits, of which key i has the i-th modulo n.
func plans(n int) []ratelimit.Algorithm {
	all := make([]ratelimit.Algorithm, n)
	for i := range all {
		all[i] = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1_000_000 >> (i % 7)), Burst: plenty + i}
	}
	return all
}

// ofPlans returns a limiter whose keys, as keys returns them, have one of n limits, or
// all the same for 0.
func ofPlans(n int) ratelimit.Limiter {
	base := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1_000_000), Burst: plenty}
	if n == 0 {
		return ratelimit.Must(ratelimit.New(base))
	}
	of := plans(n)
	return ratelimit.Must(ratelimit.New(base, ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
		return of[int(key[len(key)-1])%len(of)], nil
	})))
}

// BenchmarkOwnLimits compares limits of keys' own with one limit for all.
func BenchmarkOwnLimits(b *testing.B) {
	for _, n := range []int{1_000, 1_000_000} {
		all := keys(n)
		for _, limits := range []int{0, 10} {
			name := "keys=" + strconv.Itoa(n) + "/limits=" + strconv.Itoa(limits)
			b.Run(name, func(b *testing.B) {
				l := ofPlans(limits)
				heap := heapOf(func() {
					for i := range n {
						l.AllowN(all[i], 10_000)
					}
				})
				b.ReportAllocs()
				allowShuffled(b, l, all)
				b.ReportMetric(float64(heap)/float64(n), "B/key")
				runtime.KeepAlive(l)
			})
			b.Run(name+"/take", func(b *testing.B) {
				l := ofPlans(limits)
				for i := range n {
					l.AllowN(all[i], 10_000)
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if d, _ := l.Take(context.Background(), all[shuffled(i%n, n)], 1); !d.Allowed {
						b.Fatal("denied")
					}
					i++
				}
			})
			b.Run(name+"/parallel", func(b *testing.B) {
				l := ofPlans(limits)
				for i := range n {
					l.AllowN(all[i], 10_000)
				}
				allowShuffledParallel(b, l, all)
			})
		}
	}
}
