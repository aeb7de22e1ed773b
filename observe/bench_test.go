package observe_test

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// BenchmarkTopDenied tells a list of 100 of denials of one key, and of so many that almost each takes
// the place of another one.
func BenchmarkTopDenied(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		keys, top := fakes.Names(n), top(b, 100)
		var next atomic.Uint64
		tell := func() { deny(top, keys[next.Add(1)%uint64(n)], 1) }
		b.Run("keys="+strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tell()
			}
		})
		b.Run("keys="+strconv.Itoa(n)+"/Parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					tell()
				}
			})
		})
	}
}
