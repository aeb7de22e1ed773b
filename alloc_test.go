package ratelimit_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// fixedSize are the algorithms whose state does not grow with use.
var fixedSize = []struct {
	name string
	alg  ratelimit.Algorithm
}{
	{"token", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)}},
	{"token-interval", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Refill: ratelimit.RefillInterval}},
	{"leaky", ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(100), Capacity: 100}},
	{"fixed", ratelimit.FixedWindow{Limit: 100, Window: time.Second}},
	{"sliding", ratelimit.SlidingWindow{Limit: 100, Window: time.Second}},
	{"sliding-10", ratelimit.SlidingWindow{Limit: 100, Window: time.Second, Segments: 10}},
	{"rolling", ratelimit.RollingWindow{Quota: 100, Window: 24 * time.Hour, Period: time.Hour}},
	{"warmingup", ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: time.Second}},
	{"lockout", ratelimit.Lockout{Limit: 100, Window: time.Second, First: time.Second}},
	{"all", ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)},
		ratelimit.FixedWindow{Limit: 1000, Window: time.Minute},
	}},
	{"all-interval", ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Refill: ratelimit.RefillInterval},
		ratelimit.FixedWindow{Limit: 1000, Window: time.Minute},
	}},
}

// TestNoAllocations holds the claim that a decision on a known key allocates nothing, whether it
// grants or denies.
func TestNoAllocations(t *testing.T) {
	for _, tt := range fixedSize {
		t.Run(tt.name, func(t *testing.T) {
			l, clk := fakes.At(t, tt.alg)
			granted := func(what string, f func() bool) {
				t.Helper()
				assert.Zero(t, testing.AllocsPerRun(100, func() {
					clk.Advance(2 * time.Second) // every algorithm grants one again by then, some not 100
					if !f() {
						clk.Advance(24 * time.Hour)
						require.True(t, f())
					}
				}), "%s, granted", what)
			}
			require.True(t, l.Allow("key"))
			granted("Allow", func() bool { return l.Allow("key") })
			granted("Take", func() bool { d, _ := l.Take(ctx, "key", 1); return d.Allowed })
			granted("Peek", func() bool { d, _ := l.Peek(ctx, "key"); return d.Allowed })

			assert.Zero(t, testing.AllocsPerRun(100, func() {
				clk.Advance(24 * time.Hour)
				_, err := l.Charge(ctx, "key", 1)
				require.NoError(t, err)
			}), "Charge")
			for l.Allow("key") {
			}
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				if l.Allow("key") {
					t.Error("not denied")
				}
			}), "Allow, denied")
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				if d, _ := l.Take(ctx, "key", 1); d.Allowed {
					t.Error("not denied")
				}
			}), "Take, denied")
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				if d, _ := l.Peek(ctx, "key"); d.Allowed {
					t.Error("not denied")
				}
			}), "Peek, denied")
		})
	}
}

// TestAllocationsOfHolds holds what the documentation says of the allocations of Hold, HoldAll and
// Settle in memory, with and without WithLimits.
func TestAllocationsOfHolds(t *testing.T) {
	budget.Alone(t)
	for _, tt := range fixedSize {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/limits=%v", tt.name, own), func(t *testing.T) {
				var opts []ratelimit.Option
				if own {
					opts = append(opts, fakes.OwnLimit(tt.alg))
				}
				l, clk := fakes.At(t, tt.alg, opts...)
				lookup := 0.0 // for each key: looking up an All
				if _, ok := tt.alg.(ratelimit.All); ok && own {
					lookup = 1
				}
				allocs := func(f func()) float64 {
					f() // the keys are new
					return testing.AllocsPerRun(100, f)
				}
				for _, n := range []int{0, 1, 200} { // 200 is a debt
					assert.Equal(t, 1+lookup, allocs(func() {
						clk.Advance(10 * 24 * time.Hour)
						r, _, err := l.Hold(ctx, "key", 1)
						require.NoError(t, err)
						_, err = r.Settle(ctx, n)
						require.NoError(t, err)
					}), "Hold, and Settle with %d", n)
				}
				assert.Equal(t, 1+lookup, allocs(func() {
					_, _, err := l.Hold(ctx, "key", 1)
					require.NoError(t, err)
					clk.Advance(10 * 24 * time.Hour)
				}), "Hold, when the one before has ended by itself")
				for _, keys := range []float64{2, 3, 5} {
					var bounds []ratelimit.Bound
					for i := range int(keys) {
						bounds = append(bounds, ratelimit.For(l, strconv.Itoa(i)))
					}
					for _, n := range []int{0, 1, 200} {
						assert.Equal(t, 3+keys*(1+lookup)+2, allocs(func() {
							clk.Advance(10 * 24 * time.Hour)
							r, _, err := ratelimit.HoldAll(ctx, 1, bounds...)
							require.NoError(t, err)
							_, err = r.Settle(ctx, n)
							require.NoError(t, err)
						}), "HoldAll of %v keys, and Settle with %d", keys, n)
					}
				}
				clk.Advance(10 * 24 * time.Hour)
				for l.Allow("key") {
				}
				assert.Equal(t, lookup, allocs(func() {
					if r, _, _ := l.Hold(ctx, "key", 1); r != nil {
						t.Error("not denied")
					}
				}), "Hold, denied")
			})
		}
	}
}

// TestNoAllocationsInAllow: Allow does not return when to retry. So it does not search the holds
// that give their events back for that time: the search would copy the key's state.
func TestNoAllocationsInAllow(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"FixedWindow": ratelimit.FixedWindow{Limit: 3, Window: time.Hour},
		"SlidingLog":  ratelimit.SlidingLog{Limit: 3, Window: time.Hour},
	} {
		for _, own := range []bool{false, true} {
			var opts []ratelimit.Option
			if own {
				opts = append(opts, fakes.OwnLimit(alg))
			}
			l, _ := fakes.At(t, alg, opts...)
			for range 3 {
				_, d, err := l.Hold(t.Context(), "key", 1, ratelimit.HoldFor(time.Minute), ratelimit.GiveBack())
				require.NoError(t, err)
				require.True(t, d.Allowed)
			}
			d, err := l.Take(t.Context(), "key", 1)
			require.NoError(t, err)
			require.Equal(t, time.Minute, d.RetryAfter, name)
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				require.False(t, l.Allow("key"))
			}), "%s, limits=%v", name, own)
		}
	}
}

// TestNoAllocationsInLogs: a SlidingLog allocates nothing once it has room for the events of a
// window.
func TestNoAllocationsInLogs(t *testing.T) {
	for _, step := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		l, clk := fakes.At(t, ratelimit.SlidingLog{Limit: 100, Window: time.Second})
		grant := func() {
			clk.Advance(step)
			require.True(t, l.Allow("key"))
		}
		for range 300 {
			grant()
		}
		assert.Zero(t, testing.AllocsPerRun(1000, grant), "Allow, granted, every %v", step)
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			clk.Advance(step)
			if d, _ := l.Take(ctx, "key", 1); !d.Allowed {
				t.Error("denied")
			}
		}), "Take, granted, every %v", step)
		for l.Allow("key") {
		}
		assert.Zero(t, testing.AllocsPerRun(100, func() { l.Allow("key") }), "Allow, denied")
		assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = l.Take(ctx, "key", 1) }), "Take, denied")
	}
}

// TestNoAllocationsWithOwnLimits: decisions on keys with limits of their own allocate nothing
// either, even after the limits have changed.
func TestNoAllocationsWithOwnLimits(t *testing.T) {
	for _, kind := range []func(n int) ratelimit.Algorithm{
		func(n int) ratelimit.Algorithm { return ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: n} },
		func(n int) ratelimit.Algorithm {
			return ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1), Capacity: n}
		},
		func(n int) ratelimit.Algorithm {
			return ratelimit.FixedWindow{Limit: n, Window: 1000 * time.Hour}
		},
		func(n int) ratelimit.Algorithm {
			return ratelimit.CalendarWindow{Limit: n, Every: ratelimit.Year, Zone: "Europe/London"}
		},
	} {
		own := kind(1000)
		l, clk := fakes.At(t, kind(10), ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return own, nil }))
		require.True(t, l.AllowN("key", 200))
		own = kind(500)
		require.True(t, l.Allow("key"))
		clk.Advance(time.Millisecond)
		for _, denied := range []bool{false, true} {
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				a := l.Allow("key")
				d, _ := l.Take(ctx, "key", 1)
				p, _ := l.Peek(ctx, "key")
				if a == denied || d.Allowed == denied || p.Allowed == denied {
					t.Errorf("%T: %v %v %v", own, a, d, p)
				}
			}), "%T, denied: %v", own, denied)
			for l.Allow("key") {
			}
		}
	}
}

// TestAllocationOfAnOwnAll: if the limit of a key is an All, a decision allocates a copy of its
// parts.
func TestAllocationOfAnOwnAll(t *testing.T) {
	own := ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)},
		ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour},
	}
	l, _ := fakes.At(t, own, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return own, nil }))
	require.True(t, l.Allow("key"))
	lookup := testing.AllocsPerRun(100, func() { boxed = own })
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { l.Allow("key") }), lookup+1)
}

var boxed ratelimit.Algorithm

// TestNoAllocationsForSeveralKeys: a decision on several keys allocates nothing.
func TestNoAllocationsForSeveralKeys(t *testing.T) {
	budget.Alone(t)
	for _, tt := range fixedSize {
		l, clk := fakes.At(t, tt.alg)
		take := func() bool {
			d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "a"), ratelimit.For(l, "b"), ratelimit.For(l, "c"))
			require.NoError(t, err)
			return d.Allowed
		}
		require.True(t, take())
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if clk.Advance(2 * time.Second); !take() {
				clk.Advance(24 * time.Hour)
				require.True(t, take())
			}
		}), "%s, granted", tt.name)
		for l.Allow("b") {
		}
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if take() {
				t.Error("not denied")
			}
		}), "%s, denied", tt.name)
	}
}

func TestWaitThatNeedNotWait(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)})
	n := testing.AllocsPerRun(100, func() {
		clk.Advance(time.Second)
		require.NoError(t, l.Wait(context.Background(), "key"))
	})
	assert.LessOrEqual(t, n, 4.0, "a reservation, what undoes it, and the states before and after")
}

// TestUnseenKeysAllocateOnlyTables holds the claim that a new key allocates nothing of its own.
// Only tables are allocated. They grow by two thirds at a time, so most new keys find room.
func TestUnseenKeysAllocateOnlyTables(t *testing.T) {
	budget.Alone(t)
	for _, tt := range fixedSize {
		l, _ := fakes.At(t, tt.alg)
		i := 0
		next := func() {
			i++
			if !l.Allow(strconv.Itoa(i)) {
				t.Error("denied")
			}
		}
		for range 20_000 {
			next()
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const more = 20_000
		for range more {
			next()
		}
		runtime.ReadMemStats(&after)
		names := testing.AllocsPerRun(1, func() {
			for i := range more {
				sink = strconv.Itoa(i + more)
			}
		})
		// Twice as many keys: at most two replacements of each of 64 tables, each of
		// two allocations.
		assert.LessOrEqual(t, float64(after.Mallocs-before.Mallocs)-names, 2*2*64+100.0, tt.name)
	}
}

// TestAllocationsOfHolds_LongLog holds that neither Hold nor Settle copies the log.
func TestAllocationsOfHolds_LongLog(t *testing.T) {
	budget.Alone(t)
	log := ratelimit.SlidingLog{Limit: 20_000, Window: time.Hour}
	for _, alg := range []ratelimit.Algorithm{
		log,
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 20_000}, log},
		ratelimit.InFlight{Limit: 20_000, Timeout: time.Hour},
	} {
		l, clk := fakes.At(t, alg)
		for range 10_000 {
			clk.Advance(time.Microsecond)
			require.True(t, l.Allow("key"))
		}
		for open := range 3 {
			assert.Equal(t, 1.0, testing.AllocsPerRun(100, func() {
				r, _, err := l.Hold(ctx, "key", 2)
				require.NoError(t, err)
				_, err = r.Settle(ctx, 0)
				require.NoError(t, err)
			}), "%+v, %d open holds", alg, open)
			_, _, err := l.Hold(ctx, "key", 1)
			require.NoError(t, err)
		}
	}
}

var sink string

// TestHoldBytes holds what Hold's documentation says of the memory that it allocates.
func TestHoldBytes(t *testing.T) {
	budget.Alone(t) // the race detector allocates
	if strconv.IntSize < 64 {
		t.Skip("pointers are smaller")
	}
	type sized struct {
		name string
		alg  ratelimit.Algorithm
	}
	algorithms := []sized{
		{"token-7", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)}},
		{"log", ratelimit.SlidingLog{Limit: 100, Window: time.Second}},
		{"inflight", ratelimit.InFlight{Limit: 100, Timeout: time.Second}},
	}
	for _, tt := range fixedSize {
		algorithms = append(algorithms, sized(tt))
	}
	for _, tt := range algorithms {
		measure := func(t *testing.T, want float64, opts ...ratelimit.Option) {
			l, clk := fakes.At(t, tt.alg, opts...)
			const holds = 1000
			var before, after runtime.MemStats
			require.True(t, l.Allow("key"))
			runtime.ReadMemStats(&before)
			for range holds {
				clk.Advance(24 * time.Hour)
				r, _, err := l.Hold(ctx, "key", 1)
				require.NoError(t, err)
				require.NoError(t, r.Release(ctx))
			}
			runtime.ReadMemStats(&after)
			assert.LessOrEqual(t, float64(after.TotalAlloc-before.TotalAlloc)/holds, want)
		}
		t.Run(tt.name, func(t *testing.T) {
			measure(t, 128)
		})
		if _, ok := tt.alg.(ratelimit.All); !ok {
			t.Run(tt.name+"/limits", func(t *testing.T) { measure(t, 128, fakes.OwnLimit(tt.alg)) })
		}
	}
}

// The memory of a key is documented at MemoryStore, in store.go, and in docs/design.md, for each
// algorithm. The tests below compare it with the heap.

// TestBytesAreThoseOfTheHeap compares the Bytes of Stats with the growth of the heap. It uses so
// many keys that the memory of the limiters does not matter.
func TestBytesAreThoseOfTheHeap(t *testing.T) {
	budget.Alone(t)
	algs := append([]ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)},
		ratelimit.RollingWindow{Quota: 10, Window: 24 * time.Hour, Period: time.Hour},
		ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
			ratelimit.FixedWindow{Limit: 100, Window: time.Hour},
			ratelimit.FixedWindow{Limit: 1000, Window: 24 * time.Hour},
		},
	}, fakes.EveryWidth...)
	for _, tt := range []struct{ limiters, keys int }{{2000, 0}, {200, 1000}, {1, 100_000}} {
		all := fakes.Names(max(tt.limiters, tt.keys))
		for _, alg := range algs {
			for _, own := range []bool{false, true} {
				var opts []ratelimit.Option
				if own {
					limits := &fakes.OwnLimits{}
					opts = append(opts, ratelimit.WithLimits(limits.Lookup))
				}
				s, clk := new(ratelimit.MemoryStore), stepclock.New()
				opts = append(opts, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithClock(clk))
				limiters := make([]ratelimit.Limiter, tt.limiters)
				heap := fakes.HeapOf(func() {
					for i := range limiters {
						limiters[i] = ratelimit.Must(ratelimit.New(alg, append(opts, ratelimit.WithName(all[i]))...))
						for _, key := range all[:tt.keys] {
							require.True(t, limiters[i].Allow(key))
						}
					}
				})
				if tt.keys > 0 {
					assert.InEpsilon(t, heap, float64(s.Stats().Bytes), 0.2,
						"%d limiters with %d keys each, %T, own limits: %v", tt.limiters, tt.keys, alg, own)
				}
				assert.LessOrEqual(t, float64(s.Stats().Bytes), 1.01*heap, "%d limiters with %d keys each, %T, own limits: %v", tt.limiters, tt.keys, alg, own)
				if tt.keys == 0 {
					assert.Less(t, heap/float64(tt.limiters), 2048.0, "for an empty limiter, %T, own limits: %v", alg, own)
				}
				runtime.KeepAlive(limiters)
			}
		}
	}
}

// TestLongKeysCostNoMore: a long key takes no more memory than a short one, because the text of
// keys is not kept.
func TestLongKeysCostNoMore(t *testing.T) {
	budget.Alone(t)
	for _, alg := range fakes.EveryWidth {
		for _, opts := range [][]ratelimit.Option{nil, {ratelimit.WithLimits((&fakes.OwnLimits{}).Lookup)}} {
			s := new(ratelimit.MemoryStore)
			l := ratelimit.Must(ratelimit.New(alg, append(opts, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithClock(stepclock.New()))...))
			heap := fakes.HeapOf(func() {
				for i := range 1000 {
					require.True(t, l.Allow(fmt.Sprint(strings.Repeat("long ", 1000), i)))
				}
			})
			assert.Less(t, heap, 500e3, "%T", alg)
			runtime.KeepAlive(l)
		}
	}
}

// TestLogsAreSmall measures the memory of a key, for a log that is new, full, or used by a steady
// flow. How full the tables are depends on the store's random hash, and moves it by some percent.
func TestLogsAreSmall(t *testing.T) {
	budget.Alone(t)
	const n = 20_000
	all := fakes.Names(n)
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
		l, s, clk := fakes.Stepped(t, ratelimit.SlidingLog{Limit: 20, Window: time.Hour})
		heap := fakes.HeapOf(func() {
			for range tt.rounds {
				clk.Advance(tt.step)
				for _, key := range all {
					require.True(t, l.Allow(key))
				}
			}
		}) / n
		words := 3 + tt.events
		assert.InEpsilon(t, 48+1.5*8*words, heap, 0.2, "%s: what the documentation says", tt.name)
		fakes.Check(t, s, 0)
		runtime.KeepAlive(l)
	}
}

// TestFloodsAreGivenBack lets a flood of keys pass, and then a trickle of keys. The store must give
// back the memory of the flood by itself.
func TestFloodsAreGivenBack(t *testing.T) {
	budget.Alone(t)
	const flood, trickle = 50_000, 30_000
	for _, opts := range [][]ratelimit.Option{{ratelimit.WithLimits((&fakes.OwnLimits{}).Lookup)}, nil} {
		s, clk := new(ratelimit.MemoryStore), stepclock.New()
		l := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 10, Window: time.Second},
			append(opts, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithClock(clk))...))
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
		fakes.Check(t, s, 0)
	}
}

// TestLimitersCostTheSame: a new limiter allocates as much in a store with ten thousand limiters as
// in a store with a thousand.
func TestLimitersCostTheSame(t *testing.T) {
	s := new(ratelimit.MemoryStore)
	all := fakes.Names(10_000)
	var allocated []uint64 // by each thousand
	for i, name := range all {
		if i%1000 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			allocated = append(allocated, m.TotalAlloc)
		}
		ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.WithStore(s), ratelimit.WithName(name)))
	}
	for i := 1; i < len(allocated); i++ {
		assert.Less(t, allocated[i]-allocated[i-1], uint64(1000*4096), "thousand %d", i)
	}
}

// TestBytesPerKey holds the documented memory of a million keys: 32 bytes for each key, and a
// little more just after a table has grown.
func TestBytesPerKey(t *testing.T) {
	budget.Alone(t)
	const n = 1_000_000
	all := fakes.Names(n)
	for _, opts := range [][]ratelimit.Option{nil, {ratelimit.WithLimits((&fakes.OwnLimits{}).Lookup)}} {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)}, append(opts, ratelimit.WithClock(stepclock.New()))...))
		heap := fakes.HeapOf(func() {
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
