package ratelimit

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// What a key takes is documented at MemoryStore, in memory.go, and in docs/design.md, for
// each algorithm. These tests compare it with the heap.

// heapOf returns by how much f grows the heap.
func heapOf(f func()) float64 {
	read := func() float64 {
		runtime.GC()
		runtime.GC() // a sync.Pool keeps what it has for one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := read()
	f()
	return read() - before
}

// names returns n short keys.
func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint("key ", i)
	}
	return all
}

// TestBytesAreThoseOfTheHeap compares what Stats says with what is taken.
func TestBytesAreThoseOfTheHeap(t *testing.T) {
	budget.Alone(t)
	algs := append([]Algorithm{
		TokenBucket{Rate: PerSecond(7)},
		RollingWindow{Quota: 10, Window: 24 * time.Hour, Period: time.Hour},
		All{TokenBucket{Rate: PerSecond(10)}, FixedWindow{Limit: 100, Window: time.Hour}, FixedWindow{Limit: 1000, Window: 24 * time.Hour}},
	}, everyWidth...)
	for _, tt := range []struct{ limiters, keys int }{{2000, 0}, {2000, 1}, {200, 100}, {1, 100_000}} {
		all := names(max(tt.limiters, tt.keys))
		for _, alg := range algs {
			for _, own := range []bool{false, true} {
				var opts []Option
				if own {
					limits := &ownLimits{}
					opts = append(opts, WithLimits(limits.lookup))
				}
				s, clk := NewMemoryStore(), stepclock.New()
				opts = append(opts, WithStore(s), WithName("test"), WithClock(clk))
				limiters := make([]Limiter, tt.limiters)
				heap := heapOf(func() {
					for i := range limiters {
						limiters[i] = Must(New(alg, append(opts, WithName(all[i]))...))
						for _, key := range all[:tt.keys] {
							require.True(t, limiters[i].Allow(key))
						}
					}
				})
				assert.InEpsilon(t, heap, float64(s.Stats().Bytes), 0.2, "%d limiters with %d keys each, %T, own limits: %v", tt.limiters, tt.keys, alg, own)
				if tt.limiters == 1 {
					assert.LessOrEqual(t, float64(s.Stats().Bytes), 1.01*heap, "%T, own limits: %v", alg, own)
				}
				if tt.keys == 0 {
					assert.Less(t, heap/float64(tt.limiters), 1800.0, "for an empty limiter, %T, own limits: %v", alg, own)
				}
				runtime.KeepAlive(limiters)
			}
		}
	}
}

// TestLongKeysCostNoMore: keys are not kept.
func TestLongKeysCostNoMore(t *testing.T) {
	budget.Alone(t)
	for _, alg := range everyWidth {
		for _, opts := range [][]Option{nil, {WithLimits((&ownLimits{}).lookup)}} {
			s := NewMemoryStore()
			l := Must(New(alg, append(opts, WithStore(s), WithName("test"), WithClock(stepclock.New()))...))
			heap := heapOf(func() {
				for i := range 1000 {
					require.True(t, l.Allow(fmt.Sprint(strings.Repeat("long ", 1000), i)))
				}
			})
			assert.Less(t, heap, 500e3, "%T", alg)
			runtime.KeepAlive(l)
		}
	}
}

// TestLogsAreSmall: what a key takes beside its events, whether its log is new, full or a
// steady flow.
func TestLogsAreSmall(t *testing.T) {
	budget.Alone(t)
	const n = 20_000
	all := names(n)
	for _, tt := range []struct {
		name   string
		rounds int
		step   time.Duration
		events float64 // in the window, at the end
	}{
		{"one event", 1, 0, 1},
		{"a full log", 20, time.Second, 20},
		{"a flow", 80, 6 * time.Minute, 10},
	} {
		l, s, clk := newTestLimiter(t, SlidingLog{Limit: 20, Window: time.Hour})
		heap := heapOf(func() {
			for range tt.rounds {
				clk.Advance(tt.step)
				for _, key := range all {
					require.True(t, l.Allow(key))
				}
			}
		}) / n
		assert.Less(t, heap-8*tt.events, 150.0, tt.name)
		words := 3 + tt.events
		assert.InEpsilon(t, 1.5*(24+8*words), heap, 0.2, "%s: what the documentation says", tt.name)
		s.check(t)
		runtime.KeepAlive(l)
	}
}

// TestFloodsAreGivenBack lets a flood of keys pass, and then a trickle: by itself, the
// store gives back what the flood took.
func TestFloodsAreGivenBack(t *testing.T) {
	budget.Alone(t)
	const flood, trickle = 50_000, 30_000
	for _, opts := range [][]Option{{WithLimits((&ownLimits{}).lookup)}, nil} {
		s, clk := NewMemoryStore(), stepclock.New()
		l := Must(New(SlidingLog{Limit: 10, Window: time.Second}, append(opts, WithStore(s), WithName("test"), WithClock(clk))...))
		for i := range flood {
			require.True(t, l.Allow(fmt.Sprint("flood ", i)))
		}
		peak := s.Stats().Bytes
		for i := range trickle {
			clk.Advance(20 * time.Millisecond)
			require.True(t, l.Allow(fmt.Sprint("trickle ", i)))
		}
		assert.Less(t, s.Len(), 800, "550 were in use within the last 11 s, and a shard gets its next 4 keys within 5 s")
		assert.Less(t, s.Stats().Bytes, peak/50)
		s.check(t)
	}
}

// TestLimitersCostTheSame: a limiter allocates as much if there are ten thousand others
// in the store as if there are a thousand.
func TestLimitersCostTheSame(t *testing.T) {
	s := NewMemoryStore()
	all := names(10_000)
	var allocated []uint64 // by each thousand
	for i, name := range all {
		if i%1000 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			allocated = append(allocated, m.TotalAlloc)
		}
		Must(New(TokenBucket{Rate: PerSecond(10)}, WithStore(s), WithName(name)))
	}
	for i := 1; i < len(allocated); i++ {
		assert.Less(t, allocated[i]-allocated[i-1], uint64(1000*4096), "thousand %d", i)
	}
}

// TestBytesPerKey holds what the documentation says of a million keys: 32 bytes each, a little more
// while a table has just grown.
func TestBytesPerKey(t *testing.T) {
	budget.Alone(t)
	const n = 1_000_000
	all := names(n)
	for _, opts := range [][]Option{nil, {WithLimits((&ownLimits{}).lookup)}} {
		l := Must(New(TokenBucket{Rate: PerHour(100)}, append(opts, WithClock(stepclock.New()))...))
		heap := heapOf(func() {
			for _, key := range all {
				if !l.Allow(key) {
					t.Fatal("denied")
				}
			}
		})
		assert.LessOrEqual(t, heap/n, 36.0)
		runtime.KeepAlive(l)
	}
}
