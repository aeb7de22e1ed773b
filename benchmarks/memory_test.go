// Package benchmarks compares this library with others. Each sub-benchmark is named peer=… after its
// limiter, which the package peers makes. A benchmark fails if a limiter gives a wrong answer.
package benchmarks

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/peers"
)

// keys are keys of 16 bytes in a random order, in one text, so that the garbage collector need not scan
// them. They follow one another, so that their bytes are in the cache when a loop comes to them, as in a
// server that has just read them: what is cold is the limiter's state.
type keys string

func newKeys(n int) keys {
	var text strings.Builder
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(n) {
		fmt.Fprintf(&text, "key-%012d", i)
	}
	return keys(text.String())
}

func (k keys) len() int        { return len(k) / 16 }
func (k keys) at(i int) string { return string(k[16*i : 16*i+16]) }

// meet uses each key once, in another order than that in which a loop comes to them: what a limiter
// allocates one after the other is not used one after the other.
func (k keys) meet(b *testing.B, allow peers.Allow) {
	for i := range k.len() {
		must(b, allow, k.at(i*7919%k.len()), true) // 7919 is a prime
	}
}

// must fails the benchmark if the answer is wrong.
func must(b *testing.B, allow peers.Allow, key string, want bool) {
	if got, err := allow(key); got != want || err != nil {
		b.Error("wrong answer:", got, err)
		runtime.Goexit()
	}
}

// inMemory runs f for a new limiter of each peer.
func inMemory(b *testing.B, l peers.Limit, f func(b *testing.B, allow peers.Allow)) {
	for _, p := range peers.All() {
		if p.Memory == nil || l == peers.Idle && p.NotIdle {
			continue
		}
		b.Run("peer="+p.Name, func(b *testing.B) {
			allow, err := p.Memory(l)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			f(b, allow)
		})
	}
}

// loop visits the keys in turn.
func loop(b *testing.B, allow peers.Allow, k keys, want bool) {
	i := 0
	for b.Loop() {
		must(b, allow, k.at(i), want)
		if i++; i == k.len() {
			i = 0
		}
	}
}

// parallel is loop from all cores at once, each of which begins elsewhere. Its time is the inverse of the
// throughput.
func parallel(b *testing.B, allow peers.Allow, k keys, want bool) {
	var callers atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		i := int(callers.Add(1)) * 7919 % k.len()
		for pb.Next() {
			must(b, allow, k.at(i), want)
			if i++; i == k.len() {
				i = 0
			}
		}
	})
}

func BenchmarkHotKey(b *testing.B) {
	inMemory(b, peers.Plenty, func(b *testing.B, allow peers.Allow) { loop(b, allow, newKeys(1), true) })
}

func BenchmarkHotKeyParallel(b *testing.B) {
	inMemory(b, peers.Plenty, func(b *testing.B, allow peers.Allow) { parallel(b, allow, newKeys(1), true) })
}

func BenchmarkDenied(b *testing.B) {
	one := newKeys(1)
	inMemory(b, peers.Once, func(b *testing.B, allow peers.Allow) {
		one.meet(b, allow)
		loop(b, allow, one, false)
	})
}

func BenchmarkDeniedParallel(b *testing.B) {
	one := newKeys(1)
	inMemory(b, peers.Once, func(b *testing.B, allow peers.Allow) {
		_, _ = allow(one.at(0)) // spent now, or in an earlier try with fewer iterations
		parallel(b, allow, one, false)
	})
}

// BenchmarkManyKeys uses keys that are in use.
func BenchmarkManyKeys(b *testing.B) {
	sized(b, "1k", 1_000, peers.Plenty)
	sized(b, "1M", 1_000_000, peers.Plenty)
}

// BenchmarkIdleKeys uses keys whose events have come back.
func BenchmarkIdleKeys(b *testing.B) {
	sized(b, "1k", 1_000, peers.Idle)
	sized(b, "100k", 100_000, peers.Idle)
}

func sized(b *testing.B, name string, n int, l peers.Limit) {
	k := newKeys(n)
	b.Run("keys="+name, func(b *testing.B) {
		inMemory(b, l, func(b *testing.B, allow peers.Allow) {
			k.meet(b, allow)
			runtime.GC()
			loop(b, allow, k, true)
		})
	})
}

// BenchmarkManyKeysParallel has a million keys.
func BenchmarkManyKeysParallel(b *testing.B) {
	k := newKeys(1_000_000)
	for _, p := range peers.All() {
		if p.Memory == nil {
			continue
		}
		var allow peers.Allow // made by the first try, and used by those with more iterations
		b.Run("peer="+p.Name, func(b *testing.B) {
			if allow == nil {
				var err error
				if allow, err = p.Memory(peers.Plenty); err != nil {
					b.Fatal(err)
				}
				k.meet(b, allow)
				runtime.GC()
			}
			parallel(b, allow, k, true)
		})
	}
}

// BenchmarkUnseenKeys gives a new limiter a million keys. It reports the time of each, and then the
// memory of each and the time of a forced collection.
func BenchmarkUnseenKeys(b *testing.B) {
	k := newKeys(1_000_000)
	for _, p := range peers.All() {
		if p.Memory == nil {
			continue
		}
		b.Run("peer="+p.Name, func(b *testing.B) {
			var took, pause time.Duration
			var heap float64
			for b.Loop() {
				empty := liveHeap()
				allow, err := p.Memory(peers.Plenty)
				if err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				for i := range k.len() {
					must(b, allow, k.at(i), true)
				}
				took += time.Since(start)
				heap = liveHeap() - empty
				start = time.Now()
				runtime.GC()
				pause = time.Since(start)
				runtime.KeepAlive(allow)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*k.len()), "ns/key")
			b.ReportMetric(heap/float64(k.len()), "B/key")
			b.ReportMetric(float64(pause.Microseconds())/1000, "gc-ms")
			b.ReportMetric(0, "ns/op") // it would include the collections
		})
	}
}

// liveHeap returns the bytes of live objects.
func liveHeap() float64 {
	runtime.GC()
	runtime.GC() // a sync.Pool keeps what it has for one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
