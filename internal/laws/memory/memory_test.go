package memory_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// TestIdleKeysMakeRoom uses many keys, each for a short time: a thousand in each period for which
// an idle key is kept. The store forgets the idle keys.
func TestIdleKeysMakeRoom(t *testing.T) {
	budget.Alone(t)
	const idleTime, perIdleTime = 5 * time.Second, 1000 // the documentation of MemoryStore names idleTime
	for _, alg := range fakes.EveryWidth {
		l, s, clk := fakes.Stepped(t, alg)
		most := 0
		for i := range 100 * perIdleTime {
			require.True(t, l.Allow(fmt.Sprint(i)))
			clk.Advance(idleTime / perIdleTime)
			if i%100 == 0 {
				most = max(most, s.Len())
			}
		}
		fakes.Check(t, s, 0)
		assert.LessOrEqual(t, most, perIdleTime*5/2+64, "%T", alg) // a key is in use for 2 s, and is then kept for at most twice idleTime
	}
}

// TestIdleKeysAreKept: the key of a client that comes back within a few seconds is not inserted
// again, however far the client is below its limit.
func TestIdleKeysAreKept(t *testing.T) {
	const clients = 1000
	for _, alg := range fakes.EveryWidth {
		l, s, clk := fakes.Stepped(t, alg)
		var after uint64 // the number of insertions once all clients had come
		for round := range 20 {
			for i := range clients {
				require.True(t, l.Allow(fmt.Sprint(i)))
				clk.Advance(4 * time.Second / clients) // each key is idle after at most 2 s
			}
			for range 10 { // other clients come as well
				require.True(t, l.Allow(fmt.Sprint("other ", round)))
			}
			if round == 0 {
				after = s.Stats().Inserts
			}
		}
		assert.Equal(t, after+19, s.Stats().Inserts, "%T", alg)
		fakes.Check(t, s, 0)
	}
}

func TestDenialsAndPeeksAddNoKeys(t *testing.T) {
	l, s, _ := fakes.Stepped(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)})
	l.AllowN("a", 11)
	l.AllowN("b", 0)
	_, err := l.Peek(t.Context(), "c")
	require.NoError(t, err)
	r, _, err := l.Reserve(t.Context(), "d", 11)
	require.NoError(t, err)
	require.Nil(t, r)
	require.NoError(t, l.Reset(t.Context(), "e"))
	assert.Zero(t, s.Len())
	l.Allow("f")
	assert.Equal(t, 1, s.Len())
	require.NoError(t, l.Reset(t.Context(), "f"))
	assert.Zero(t, s.Len())
	fakes.Check(t, s, 0)
}

// TestMaxKeysKeepsExhaustedKeys floods a bounded store with new keys.
func TestMaxKeysKeepsExhaustedKeys(t *testing.T) {
	budget.Alone(t)
	for _, bound := range []int{100, 1000, 10_000} {
		for _, alg := range fakes.EveryWidth {
			l, s, _ := fakes.Stepped(t, alg, &ratelimit.MemoryStore{MaxKeys: bound})
			exhausted := make([]string, bound/20)
			for i := range exhausted {
				exhausted[i] = fmt.Sprint("exhausted ", i)
				require.True(t, l.AllowN(exhausted[i], 10))
			}
			var full, most uint64 // bytes
			for i := range 5 * bound {
				require.True(t, l.Allow(fmt.Sprint("flood ", i)))
				require.LessOrEqual(t, s.Len(), bound)
				switch { // small tables, of which chance has some grow late, make several samples necessary
				case i < bound || i%(bound/2) != 0:
				case i <= 2*bound:
					full = max(full, s.Stats().Bytes)
				default:
					most = max(most, s.Stats().Bytes)
				}
			}
			assert.LessOrEqual(t, most, 2*full, "%T: memory stays flat", alg)
			for _, key := range exhausted {
				require.False(t, l.Allow(key), "%T: the flood washed %q out", alg, key)
			}
			assert.Equal(t, bound, s.Len())
			stats := s.Stats()
			assert.NotZero(t, stats.Bytes)
			stats.Bytes = 0
			assert.Equal(t, ratelimit.MemoryStats{
				Keys:      bound,
				Inserts:   uint64(5*bound + len(exhausted)),
				Evictions: uint64(4*bound + len(exhausted)),
			}, stats, "each loss is counted")
			fakes.Check(t, s, bound)
		}
	}
}

// TestExhaustedKeysGoLast fills a store with keys of which nearly all are exhausted, and floods it.
// As long as a key of a sample has events remaining, such a key is evicted.
func TestExhaustedKeysGoLast(t *testing.T) {
	budget.Alone(t)
	for _, alg := range fakes.EveryWidth {
		for left, bound := range map[int]int{1: 512, 3: 512, 50: 512, 2000: 5000} {
			l, s, _ := fakes.Stepped(t, alg, &ratelimit.MemoryStore{MaxKeys: bound})
			fill(t, l, bound, left)
			for i := range 500 {
				require.True(t, l.Allow(fmt.Sprint("flood ", i)))
			}
			assert.EqualValues(t, 500, s.Stats().Evictions)
			for i := range bound - left {
				require.False(t, l.Allow(fmt.Sprint(i)), "%T, %d keys with something left: key %d was lost", alg, left, i)
			}
			fakes.Check(t, s, bound)
		}
	}
}

// fill makes the given number of keys; all but the last are exhausted.
func fill(t testing.TB, l ratelimit.Limiter, keys, left int) {
	t.Helper()
	for i := range keys {
		require.True(t, l.AllowN(fmt.Sprint(i), 10-min(1, max(0, i-keys+left+1))))
	}
}

// TestAllExhausted floods a store with keys that use up their limit at once. The keys that reset
// soonest are evicted.
func TestAllExhausted(t *testing.T) {
	budget.Alone(t)
	const bound = 512
	for _, alg := range fakes.EveryWidth {
		l, s, clk := fakes.Stepped(t, alg, &ratelimit.MemoryStore{MaxKeys: bound})
		for i := range bound {
			require.True(t, l.AllowN(fmt.Sprint(i), 10))
			clk.Advance(time.Nanosecond)
		}
		for i := range bound / 2 {
			require.True(t, l.AllowN(fmt.Sprint("flood ", i), 10))
			clk.Advance(time.Nanosecond)
		}
		assert.EqualValues(t, bound/2, s.Stats().Evictions)
		fakes.Check(t, s, bound)
		for i := range bound {
			d, err := l.Peek(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			if _, ok := alg.(ratelimit.SlidingWindow); !ok { // there, all keys reset at once
				require.Equal(t, i < bound/2, d.Allowed, "%T: key %d", alg, i)
			}
		}
	}
}

// TestConcurrentNewKeys uses many new keys at once in a full store.
func TestConcurrentNewKeys(t *testing.T) {
	const bound, candidates = 512, 64
	together := func(f func(i int)) {
		var wg sync.WaitGroup
		for i := range candidates {
			wg.Go(func() { f(i) })
		}
		wg.Wait()
	}
	for _, alg := range fakes.EveryWidth {
		l, s, _ := fakes.Stepped(t, alg, &ratelimit.MemoryStore{MaxKeys: bound})
		fill(t, l, bound, 0)
		together(func(i int) { assert.True(t, l.AllowN(fmt.Sprint("new ", i), 10)) })
		assert.EqualValues(t, candidates, s.Stats().Evictions, "%T", alg)
		fakes.Check(t, s, bound)

		l, s, _ = fakes.Stepped(t, alg, &ratelimit.MemoryStore{MaxKeys: bound})
		fill(t, l, bound, 1)
		together(func(i int) { assert.True(t, l.Allow(fmt.Sprint("new ", i))) })
		assert.EqualValues(t, candidates, s.Stats().Evictions, "%T: they evict each other", alg)
		for i := range bound - 1 {
			require.False(t, l.Allow(fmt.Sprint(i)), "%T: key %d", alg, i)
		}
		fakes.Check(t, s, bound)

		l, s, clk := fakes.Stepped(t, alg, &ratelimit.MemoryStore{MaxKeys: bound, RefuseNew: true})
		fill(t, l, bound/2, 0)
		clk.Advance(time.Hour) // now the keys are idle
		for i := range bound / 2 {
			require.True(t, l.AllowN(fmt.Sprint("busy ", i), 10))
		}
		together(func(i int) { assert.True(t, l.AllowN(fmt.Sprint("new ", i), 10)) })
		assert.Zero(t, s.Stats().Rejected, "%T: there was room", alg)
		fakes.Check(t, s, bound)
	}
}

// TestIdleKeysOfOtherLimiterGoFirst floods one limiter while all keys of another in
// the store are idle.
func TestIdleKeysOfOtherLimiterGoFirst(t *testing.T) {
	budget.Alone(t)
	const bound = 20_000
	s, clk := &ratelimit.MemoryStore{MaxKeys: bound}, stepclock.New()
	one := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.WithStore(s),
		ratelimit.WithClock(clk), ratelimit.WithName("one")))
	two := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, ratelimit.WithStore(s),
		ratelimit.WithClock(clk), ratelimit.WithName("two")))
	for i := range bound {
		require.True(t, one.Allow(fmt.Sprint(i)))
	}
	clk.Advance(time.Hour)
	for i := range bound {
		require.True(t, two.Allow(fmt.Sprint(i)))
	}
	assert.Less(t, s.Stats().Evictions, uint64(bound/3), "of keys in use")
	fakes.Check(t, s, bound)
}

// TestFloodSparesOtherLimiters: among keys with the same number of events remaining, the keys of
// the flooded limiter are evicted first, once this limiter has more than its share of the store.
func TestFloodSparesOtherLimiters(t *testing.T) {
	budget.Alone(t)
	const bound, share = 20_000, 20_000 / 32
	for _, used := range []int{1, 10} { // each key has used one event, or all of its events
		for _, alg := range fakes.EveryWidth {
			store, clk := &ratelimit.MemoryStore{MaxKeys: bound}, stepclock.New()
			opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithClock(clk)}
			one := ratelimit.Must(ratelimit.New(alg, append(opts, ratelimit.WithName("one"))...))
			two := ratelimit.Must(ratelimit.New(alg, append(opts, ratelimit.WithName("two"))...))
			known := make([]string, bound-10)
			for i := range known {
				known[i] = fmt.Sprint(i)
				require.True(t, one.AllowN(known[i], used))
			}
			for i := range 2 * bound {
				clk.Advance(1) // so that the known keys become idle before the new ones
				require.True(t, two.AllowN(fmt.Sprint("flood ", i), used))
			}
			lost := 0
			for _, key := range known {
				d, err := one.Peek(t.Context(), key)
				require.NoError(t, err)
				if d.Remaining == 10 {
					lost++
				}
			}
			assert.LessOrEqual(t, lost, share, "%T, of which %d of 10 are used", alg, used)
			fakes.Check(t, store, bound)
			assert.True(t, one.Allow("new"), "the other limiter takes a place of the flood")
		}
	}
}

// BenchmarkManyLimiters floods one of many limiters in a full store.
func BenchmarkManyLimiters(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := &ratelimit.MemoryStore{MaxKeys: 100_000}
			var l ratelimit.Limiter
			for i := range n {
				l = ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)},
					ratelimit.WithStore(s), ratelimit.WithName(strconv.Itoa(i))))
			}
			for i := range 100_000 {
				l.Allow(strconv.Itoa(i))
			}
			for i := 0; b.Loop(); i++ {
				l.Allow("new " + strconv.Itoa(i))
			}
		})
	}
}

// TestMaxKeysEvictsLeastUsed fills a small store and checks which key is evicted.
func TestMaxKeysEvictsLeastUsed(t *testing.T) {
	l, s, clk := fakes.Stepped(t, ratelimit.FixedWindow{Limit: 10, Window: time.Minute, Start: ratelimit.StartOnFirstEvent},
		&ratelimit.MemoryStore{MaxKeys: 4})
	use := func(key string, n int) {
		require.True(t, l.AllowN(key, n))
		clk.Advance(time.Second)
	}
	gone := func(key string) {
		t.Helper()
		d, err := l.Peek(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, 10, d.Remaining, "%q should be gone", key)
	}
	use("five, early", 5)
	use("ten", 10)
	use("five, late", 5)
	use("three", 3)
	assert.Zero(t, s.Stats().Evictions, "there is room for four")
	use("nine", 9)
	gone("three")
	use("eight", 8)
	gone("five, early")
	use("seven", 7)
	gone("five, late")
	assert.EqualValues(t, 3, s.Stats().Evictions)
	clk.Advance(time.Minute)
	use("one", 1)
	assert.EqualValues(t, 3, s.Stats().Evictions, "idle keys go first, and are not counted")
	fakes.Check(t, s, 4)
}

// TestStoreUnderConcurrency: a store stays consistent whatever its limiter is called for at once.
func TestStoreUnderConcurrency(t *testing.T) {
	for _, bound := range []int{0, 1, 7, 300} {
		for _, alg := range fakes.EveryWidth {
			l, s, clk := fakes.Stepped(t, alg, &ratelimit.MemoryStore{MaxKeys: bound})
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := range 500 {
						key := fmt.Sprint((i * (g + 1)) % 400)
						switch i % 50 {
						default:
							l.AllowN(key, 1+i%10)
						case 10:
							_ = l.Reset(t.Context(), key)
						case 20:
							_, _ = l.Peek(t.Context(), key)
						case 30:
							if r, _, err := l.Reserve(t.Context(), key, 3); err == nil && r != nil {
								r.Cancel()
							}
						case 40:
							clk.Advance(20 * time.Millisecond)
						}
					}
				})
			}
			wg.Wait()
			fakes.Check(t, s, bound)
		}
	}
}

func TestOpenTwice(t *testing.T) {
	s := new(ratelimit.MemoryStore)
	ten := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}
	_, err := ratelimit.New(ten, ratelimit.WithStore(s), ratelimit.WithName("test"))
	require.NoError(t, err)
	_, err = ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(20)}, ratelimit.WithStore(s), ratelimit.WithName("test"))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "WithName")
	_, err = ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(20)}, ratelimit.WithStore(s), ratelimit.WithName("twenty"))
	assert.NoError(t, err)
	_, err = ratelimit.New(ratelimit.All{ten}, ratelimit.WithStore(s), ratelimit.WithName("all"))
	require.NoError(t, err)
	_, err = ratelimit.New(ratelimit.All{ten}, ratelimit.WithStore(s), ratelimit.WithName("all"))
	assert.NoError(t, err, "the same algorithm shares")
}

// The fields of a store that is in use cannot change.
func TestFieldsStay(t *testing.T) {
	s := &ratelimit.MemoryStore{MaxKeys: 2}
	limiter := func() error {
		_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.WithStore(s))
		return err
	}
	require.NoError(t, limiter())
	s.MaxKeys = 3
	require.EqualError(t, limiter(),
		"ratelimit: MemoryStore is {MaxKeys: 3, RefuseNew: false}: it must stay {MaxKeys: 2, RefuseNew: false} once a limiter uses the store")
	s.MaxKeys, s.RefuseNew = 2, true
	require.ErrorIs(t, limiter(), ratelimit.ErrInvalid)
	s.RefuseNew = false
	require.NoError(t, limiter())
}

func TestRefuseNew(t *testing.T) {
	for _, alg := range fakes.EveryWidth {
		l, s, clk := fakes.Stepped(t, alg, &ratelimit.MemoryStore{MaxKeys: 2, RefuseNew: true})
		require.True(t, l.Allow("a"))
		clk.Advance(10 * time.Millisecond)
		require.True(t, l.AllowN("b", 10))
		idle, err := l.Peek(t.Context(), "a")
		require.NoError(t, err)

		d, err := l.Take(t.Context(), "c", 1)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Limit: 10, RetryAfter: idle.ResetAfter}, d, "until a is idle")
		p, err := l.Peek(t.Context(), "c")
		require.NoError(t, err)
		assert.Equal(t, d, p, "Peek answers what Take would")
		assert.ErrorIs(t, l.Wait(t.Context(), "c"), ratelimit.ErrFull)
		assert.True(t, l.AllowN("c", 0))
		assert.True(t, l.Allow("a"), "a key that is held is served")
		assert.False(t, l.Allow("b"))
		assert.Zero(t, s.Stats().Evictions)
		assert.EqualValues(t, 2, s.Stats().Rejected)

		clk.Advance(10 * time.Second)
		assert.True(t, l.Allow("c"), "idle keys make room")
		fakes.Check(t, s, 2)
	}
}

// TestRefusalsRememberedInVain: a refusing store has seen which key becomes idle next, and then
// that key is used.
func TestRefusalsRememberedInVain(t *testing.T) {
	for _, alg := range fakes.EveryWidth {
		l, s, clk := fakes.Stepped(t, alg, &ratelimit.MemoryStore{MaxKeys: 2, RefuseNew: true})
		require.True(t, l.Allow("a"))
		require.True(t, l.AllowN("b", 5))
		d, err := l.Take(t.Context(), "c", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		clk.Advance(d.RetryAfter - 1)
		require.True(t, l.AllowN("a", 9))
		clk.Advance(1)
		before, err := l.Peek(t.Context(), "a")
		require.NoError(t, err)
		l.Allow("c")
		after, err := l.Peek(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, before, after, "%T", alg)
		assert.Zero(t, s.Stats().Evictions)
		fakes.Check(t, s, 2)
	}
}

// TestShrink checks that Shrink gives the memory of a flood back.
func TestShrink(t *testing.T) {
	budget.Alone(t)
	for _, alg := range fakes.EveryWidth {
		l, s, clk := fakes.Stepped(t, alg)
		s.Shrink()
		require.True(t, l.AllowN("in use", 10))
		empty := s.Stats().Bytes
		for i := range 100_000 {
			require.True(t, l.Allow(fmt.Sprint(i)))
		}
		require.Greater(t, s.Stats().Bytes, empty+100_000*8)
		s.Shrink()
		require.Equal(t, 100_001, s.Len(), "all are in use")
		clk.Advance(500 * time.Millisecond)
		require.True(t, l.AllowN("in use", 5) || alg != fakes.EveryWidth[0])
		clk.Advance(700 * time.Millisecond)
		held, err := l.Peek(t.Context(), "in use")
		require.NoError(t, err)
		s.Shrink()
		assert.Less(t, s.Len(), 2)
		assert.LessOrEqual(t, s.Stats().Bytes, empty+60_000, "except for the shards")
		still, err := l.Peek(t.Context(), "in use")
		require.NoError(t, err)
		assert.Equal(t, held, still)
		fakes.Check(t, s, 0)
	}
}

// TestLimitsThatChangeAgainAndAgain: a limit whose rate, window or timeout follows something costs no more memory with each change
// once as many limits are compiled as the limiter keeps. What stays is counted by Stats.
func TestLimitsThatChangeAgainAndAgain(t *testing.T) {
	budget.Alone(t)
	const kept = 1 << 14
	for name, limit := range map[string]func(i int) ratelimit.Algorithm{
		"rate": func(i int) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: ratelimit.PerSecond(i), Burst: 100}
		},
		"queue": func(i int) ratelimit.Algorithm {
			return ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(i), Capacity: 100}
		},
		"window": func(i int) ratelimit.Algorithm {
			return ratelimit.FixedWindow{Limit: 100, Window: time.Hour + time.Duration(i)}
		},
		"log": func(i int) ratelimit.Algorithm {
			return ratelimit.SlidingLog{Limit: 100, Window: time.Hour + time.Duration(i)}
		},
		"timeout": func(i int) ratelimit.Algorithm {
			return ratelimit.InFlight{Limit: 100, Timeout: time.Hour + time.Duration(i)}
		},
		"all": func(i int) ratelimit.Algorithm {
			return ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(i)}, ratelimit.FixedWindow{Limit: 100, Window: time.Hour}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, i := new(ratelimit.MemoryStore), 0
			l := ratelimit.Must(ratelimit.New(limit(1), ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithLimits(
				func(context.Context, string) (ratelimit.Algorithm, error) { return limit(i), nil })))
			change := func(times int) (uncounted int64) {
				for range times {
					i++
					l.Allow("k")
					if i%3 == 0 { // a key that does not come back, and leaves its state
						l.Allow(strconv.Itoa(i % 1000))
					}
				}
				s.Shrink()
				runtime.GC()
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc) - int64(s.Stats().Bytes)
			}
			before := change(kept)
			more := change(int(budget.Histories(kept, 20*kept)))
			assert.Less(t, more-before, int64(3<<20), "bytes that Stats does not count")
			runtime.KeepAlive(l)
		})
	}
}

// TestShrinkOfAWrappedStore: the clock of the limiter says which keys are idle. A wrapped store
// learns of this clock from the first key.
func TestShrinkOfAWrappedStore(t *testing.T) {
	for _, alg := range fakes.EveryWidth {
		s, clk := new(ratelimit.MemoryStore), stepclock.New()
		l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(struct{ ratelimit.Store }{s}), ratelimit.WithName("test"), ratelimit.WithClock(clk)))
		require.True(t, l.Allow("key"))
		s.Shrink()
		assert.Equal(t, 1, s.Len(), "%T", alg)
		clk.Advance(2 * time.Second)
		s.Shrink()
		assert.Zero(t, s.Len(), "%T", alg)
	}
}

// TestClockThatPanics: if a clock panics, no lock stays held.
func TestClockThatPanics(t *testing.T) {
	for _, alg := range fakes.EveryWidth {
		broken := &panickingClock{Clock: clock.New()}
		l, err := ratelimit.New(alg, ratelimit.WithClock(broken))
		require.NoError(t, err)
		broken.panics = true
		assert.Panics(t, func() { l.Allow("key") })
		broken.panics = false
		assert.True(t, l.Allow("key"))
	}
}

// TestClockThatPanicsAsLimitsChange: whichever reading of the clock panics, the events that the key
// has used stay used.
func TestClockThatPanicsAsLimitsChange(t *testing.T) {
	panicked := 0
	for reading := range 4 {
		clk := clock.NewMock()
		clk.Set(time.Unix(1_700_000_000, 0))
		broken := &panickingClock{Clock: clk}
		plan := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 10}
		l := ratelimit.Must(ratelimit.New(plan, ratelimit.WithClock(broken),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return plan, nil })))
		require.True(t, l.AllowN("key", 3))
		plan.Burst = 20
		broken.panics, broken.good = true, reading
		func() {
			defer func() {
				if recover() != nil {
					panicked++
				}
			}()
			_, _ = l.Peek(t.Context(), "key")
		}()
		broken.panics = false
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, 17, d.Remaining, "after %d good readings", reading)
	}
	assert.GreaterOrEqual(t, panicked, 2, "before and after the state is frozen")
}

type panickingClock struct {
	clock.Clock
	panics bool
	good   int // the number of readings before the one that panics
}

func (c *panickingClock) Since(t time.Time) time.Duration {
	if c.panics {
		if c.good == 0 {
			panic("no time")
		}
		c.good--
	}
	return c.Clock.Since(t)
}

// TestStatesWithoutALimiter calls the States of a store directly, without a limiter.
func TestStatesWithoutALimiter(t *testing.T) {
	for _, alg := range fakes.EveryWidth {
		tr, err := fakes.NewLimit(alg)
		require.NoError(t, err)
		s := new(ratelimit.MemoryStore)
		states, err := s.Open("", tr, 0)
		require.NoError(t, err)
		at := time.Now().Add(-time.Hour)
		_, err = states.Apply(t.Context(), "key", tr, step.Request{N: 1}.At(at))
		require.NoError(t, err)
		require.Equal(t, 1, s.Len())
		s.Shrink()
		assert.Zero(t, s.Len(), "it is idle by the system's clock")
	}
}

// TestBytesOfForgottenKeys: the memory of a table is counted until it is given back.
func TestBytesOfForgottenKeys(t *testing.T) {
	budget.Alone(t)
	l, s, clk := fakes.Stepped(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)})
	for i := range 1000 {
		require.True(t, l.Allow(fmt.Sprint(i)))
	}
	held := s.Stats().Bytes
	for i := range 1000 {
		require.NoError(t, l.Reset(t.Context(), fmt.Sprint(i)))
	}
	assert.Equal(t, held, s.Stats().Bytes)
	clk.Advance(time.Hour)
	s.Shrink()
	assert.Less(t, s.Stats().Bytes, held/2)
}

// A limiter without a name has states of its own. They leave the store together with the limiter,
// even if a thousand limiters are made and dropped in turn.
func TestMemoryStore_WithoutNames(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"word": ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)},
		"wide": ratelimit.WarmingUp{Rate: ratelimit.PerHour(10), Warmup: time.Hour},
		"log":  ratelimit.SlidingLog{Limit: 10, Window: time.Hour},
	} {
		for most, store := range map[int]*ratelimit.MemoryStore{0: new(ratelimit.MemoryStore), 5000: {MaxKeys: 5000}} {
			t.Run(fmt.Sprintf("%s/%d", name, most), func(t *testing.T) {
				other := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store)))
				require.True(t, other.Allow("key"))
				var first uint64
				for round := range 1000 {
					l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store)))
					require.True(t, l.Allow("key"), "it shares nothing")
					r, _, err := l.Hold(t.Context(), "held", 1)
					require.NoError(t, err)
					if first == 0 {
						first = store.Stats().Bytes
					}
					if round%2 == 0 {
						require.NoError(t, r.Release(t.Context()))
					}
				}
				for range 1000 {
					if runtime.GC(); store.Len() == 1 {
						break
					}
					runtime.Gosched()
				}
				assert.Equal(t, 1, store.Len())
				stats := store.Stats()
				assert.Equal(t, 1, stats.Keys)
				assert.EqualValues(t, 2001, stats.Inserts, "Stats still counts the insertions of limiters that are gone")
				assert.LessOrEqual(t, stats.Bytes, first)
				_, err := ratelimit.New(alg, ratelimit.WithStore(struct{ ratelimit.Store }{store}))
				require.ErrorIs(t, err, ratelimit.ErrInvalid, "another store may outlive the process")
				runtime.KeepAlive(other)
			})
		}
	}
}

// A collectingClock is a clock that lets the garbage collector run during its next reading.
type collectingClock struct {
	*stepclock.Clock
	collects bool
}

func (c *collectingClock) Since(t time.Time) time.Duration {
	if c.collects {
		seen := make(chan struct{})
		runtime.AddCleanup(new([64]byte), func(seen chan struct{}) { close(seen) }, seen)
		for collected, tries := false, 0; !collected && tries < 20; tries++ { // in vain if a cleanup waits for the caller's lock
			runtime.GC()
			select {
			case <-seen:
				collected = true
			default:
				runtime.Gosched()
			}
		}
		runtime.GC() // the cleanups before may have left more
	}
	return c.Clock.Since(t)
}

// A limiter keeps its states until its last call has returned.
func TestMemoryStore_CollectedDuringTheLastCall(t *testing.T) {
	ctx := context.Background()
	for name, last := range map[string]func(l ratelimit.Limiter) (granted bool){
		"Allow": func(l ratelimit.Limiter) bool { return l.Allow("key") },
		"Take": func(l ratelimit.Limiter) bool {
			d, err := l.Take(ctx, "key", 1)
			return d.Allowed || err != nil
		},
		"Peek": func(l ratelimit.Limiter) bool {
			d, err := l.Peek(ctx, "key")
			return d.Allowed || err != nil
		},
		"Hold": func(l ratelimit.Limiter) bool {
			_, d, err := l.Hold(ctx, "key", 1)
			return d.Allowed || err != nil
		},
		"Reserve": func(l ratelimit.Limiter) bool {
			_, d, err := l.Reserve(ctx, "key", 1)
			return d.Delay == 0 || err != nil
		},
		"Charge": func(l ratelimit.Limiter) bool {
			d, err := l.Charge(ctx, "key", 1)
			return d.Allowed || err != nil
		},
		"TakeEach": func(l ratelimit.Limiter) bool {
			out, err := l.TakeEach(ctx, []string{"key"}, 1, nil)
			return out[0].Allowed || err != nil
		},
		"TakeUpTo": func(l ratelimit.Limiter) bool {
			granted, _, err := l.TakeUpTo(ctx, "key", 2)
			return granted > 0 || err != nil
		},
		"TakeAll": func(l ratelimit.Limiter) bool {
			d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "key"))
			return d.Allowed || err != nil
		},
		"TakeAll of many": func(l ratelimit.Limiter) bool {
			d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "a"), ratelimit.For(l, "b"), ratelimit.For(l, "key"))
			return d.Allowed || err != nil
		},
	} {
		for _, alg := range fakes.EveryWidth {
			for _, own := range []bool{false, true} {
				clk := &collectingClock{Clock: stepclock.New()}
				store := &ratelimit.MemoryStore{MaxKeys: 100}
				opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithClock(clk)}
				if own {
					opts = append(opts, fakes.OwnLimit(alg))
				}
				l := ratelimit.Must(ratelimit.New(alg, opts...))
				require.True(t, l.AllowN("key", 10))
				clk.collects = true
				assert.False(t, last(l), "%s of %T, own limit %t: the key is used up", name, alg, own)
				clk.collects = false
			}
		}
	}
}
