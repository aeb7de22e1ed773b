package ratelimit

import (
	"fmt"
	"go/token"
	"math"
	"math/bits"
	"reflect"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// check fails the test unless every invariant of the store holds. Nobody else
// may use the store meanwhile.
func (s *MemoryStore) check(t testing.TB) {
	t.Helper()
	held := s.Stats().Keys
	require.Equal(t, held, s.Len())
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.open(), len(s.spaces))
	total := 0
	for _, sp := range s.spaces {
		require.Contains(t, s.open(), sp)
		switch sp := sp.(type) {
		case *tables:
			sp.check(t)
		case *logs:
			sp.check(t)
		}
		for _, sh := range sp.evictees() {
			switch sh := sh.(type) {
			case *shard:
				total += sh.check(t)
			case *logShard:
				total += sh.check(t)
			}
		}
	}
	require.Equal(t, total, held)
	if s.maxKeys > 0 {
		require.LessOrEqual(t, int64(total), s.maxKeys)
		require.EqualValues(t, total, s.seats.Load())
	}
}

// checkDirectory checks that a directory leads to each shard as often as it should.
func checkDirectory[T any](t testing.TB, d *directory[T], of func(*T) (sh evictee, first, depth uint32)) {
	t.Helper()
	entries := *d.entries.Load()
	require.Equal(t, 1, bits.OnesCount(uint(len(entries))), "a power of two of entries")
	require.LessOrEqual(t, len(entries), d.most)
	led := make(map[evictee]int)
	for i := range entries {
		at := entries[i].Load()
		sh, first, depth := of(at)
		require.Same(t, entries[first].Load(), at, "all entries of a shard lead to the same")
		require.Equal(t, first, uint32(i)&(1<<depth-1))
		led[sh]++
	}
	require.Len(t, d.list(), len(led), "evictions see every shard, once")
	for _, sh := range d.list() {
		require.NotZero(t, led[sh])
	}
}

func (sp *tables) check(t testing.TB) {
	t.Helper()
	checkDirectory(t, &sp.directory, func(tbl *table) (evictee, uint32, uint32) {
		return tbl.shard, tbl.shard.first, tbl.shard.depth
	})
	for i, word := range noKeys {
		require.Zero(t, word, "word %d", i)
	}
}

func (sp *logs) check(t testing.TB) {
	t.Helper()
	checkDirectory(t, &sp.directory, func(sh *logShard) (evictee, uint32, uint32) {
		return sh, sh.first, sh.depth
	})
}

// check checks one shard and returns how many keys it holds.
func (sh *shard) check(t testing.TB) (keys int) {
	t.Helper()
	sp, tbl := sh.space, sh.current()
	if tbl.most > 0 {
		require.Len(t, tbl.words, int(tbl.groups*tbl.size))
	}
	require.LessOrEqual(t, sh.used, tbl.most)
	require.Less(t, tbl.most, tbl.groups*groupSlots, "some slots are free, or looking would not end")
	used := uint64(0)
	for group := uint64(0); group < uint64(len(tbl.words)); group += tbl.size {
		for slot := range uint64(groupSlots) {
			p := place{group, slot}
			id := tbl.id(p)
			if tbl.most == 0 {
				require.Zero(t, id, "all shards without keys share these")
				continue
			}
			if id.hi == 0 {
				require.Zero(t, id.lo, "nobody was ever here")
				for _, word := range tbl.state(p) {
					require.Zero(t, word, "nobody was ever here")
				}
				continue
			}
			used++
			if id.lo == 0 { // forgotten
				if sp.word != nil {
					require.Equal(t, uint64(gone), *tbl.word(p), "guarantee 3")
				}
				continue
			}
			keys++
			require.Same(t, sh, sp.at(id).shard, "each key in its own shard")
			found, ok := tbl.find(id)
			require.True(t, ok && found == p, "each key is found, once")
			if sp.word != nil {
				require.NotEqual(t, uint64(gone), *tbl.word(p), "nothing is gone in a current table")
			}
		}
	}
	require.Equal(t, used, sh.used)
	require.EqualValues(t, keys, sh.keys)
	return keys
}

func (sh *logShard) check(t testing.TB) (keys int) {
	t.Helper()
	words := 0
	for i := range sh.slots {
		e := &sh.slots[i]
		if e.free() {
			require.Zero(t, *e)
			continue
		}
		keys++
		words += cap(e.state)
		require.Same(t, sh, sh.space.at(e.id), "each key in its own shard")
		found, ok := sh.find(e.id)
		require.True(t, ok && found == i, "each key is found, once")
	}
	require.EqualValues(t, words, sh.words)
	require.EqualValues(t, keys, sh.keys)
	require.LessOrEqual(t, sh.keys, mostOf(len(sh.slots)))
	require.True(t, keys == 0 || keys < len(sh.slots), "some slots are free, or looking would not end")
	return keys
}

// A stepClock is set by hand.
type stepClock struct {
	clock.Clock
	mu  sync.Mutex // protects now
	now time.Time
}

func newStepClock() *stepClock {
	return &stepClock{Clock: clock.NewMock(), now: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
}

func (c *stepClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stepClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *stepClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newTestLimiter(t testing.TB, alg Algorithm, opts ...MemoryOption) (*limiter, *MemoryStore, *stepClock) {
	t.Helper()
	s, clk := NewMemoryStore(opts...), newStepClock()
	l, err := New(alg, WithStore(s), WithClock(clk))
	require.NoError(t, err)
	return l.(*limiter), s, clk
}

// splitSoon makes the limiter's shards split at so many keys.
func splitSoon(l *limiter, keys uint64) {
	switch sp := l.states.(type) {
	case *tables:
		sp.splitAt = keys
	case *logs:
		sp.splitAt = keys
	}
}

var everyWidth = []Algorithm{
	TokenBucket{Rate: PerSecond(10)},
	SlidingWindow{Limit: 10, Window: time.Second, Segments: 5},
	SlidingLog{Limit: 10, Window: time.Second},
	All{SlidingLog{Limit: 10, Window: time.Second}, TokenBucket{Rate: PerSecond(10)}},
}

// TestIdleKeysMakeRoom lets a million keys come and go, a thousand of them in
// use at any time.
func TestIdleKeysMakeRoom(t *testing.T) {
	for _, alg := range everyWidth {
		l, s, clk := newTestLimiter(t, alg)
		const inUse = 1000
		most := 0
		for i := range 100 * inUse {
			require.True(t, l.Allow(fmt.Sprint(i)))
			clk.advance(2 * time.Second / inUse) // at most 2 s until a key is fresh
			if i%100 == 0 {
				most = max(most, s.Len())
			}
		}
		s.check(t)
		assert.LessOrEqual(t, most, inUse*3/2+64, "%T", alg)
	}
}

func TestDenialsAndLooksAddNoKeys(t *testing.T) {
	l, s, _ := newTestLimiter(t, TokenBucket{Rate: PerSecond(10)})
	l.AllowN("a", 11)
	l.AllowN("b", 0)
	_, err := l.Peek(t.Context(), "c")
	require.NoError(t, err)
	_, err = l.Reserve(t.Context(), "d", 11)
	require.ErrorIs(t, err, ErrNever)
	require.NoError(t, l.Reset(t.Context(), "e"))
	assert.Zero(t, s.Len())
	l.Allow("f")
	assert.Equal(t, 1, s.Len())
	require.NoError(t, l.Reset(t.Context(), "f"))
	assert.Zero(t, s.Len())
	s.check(t)
}

// TestMaxKeysKeepsWhoIsExhausted floods a bounded store with new keys.
func TestMaxKeysKeepsWhoIsExhausted(t *testing.T) {
	for _, bound := range []int{100, 1000, 10_000} {
		for _, alg := range everyWidth {
			l, s, _ := newTestLimiter(t, alg, WithMaxKeys(bound))
			exhausted := make([]string, bound/20)
			for i := range exhausted {
				exhausted[i] = fmt.Sprint("exhausted ", i)
				require.True(t, l.AllowN(exhausted[i], 10))
			}
			var full, most uint64 // bytes
			for i := range 5 * bound {
				require.True(t, l.Allow(fmt.Sprint("flood ", i)))
				require.LessOrEqual(t, s.Len(), bound)
				switch {
				case i == bound:
					full = s.Stats().Bytes
				case i > bound && i%(bound/2) == 0:
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
			assert.Equal(t, MemoryStats{
				Keys:      bound,
				Inserts:   uint64(5*bound + len(exhausted)),
				Evictions: uint64(4*bound + len(exhausted)),
			}, stats, "each loss is counted")
			s.check(t)
		}
	}
}

// TestExhaustedKeysGoLast fills a store with exhausted keys but for a few, and
// floods it: as long as there is one key that has something left, that goes.
func TestExhaustedKeysGoLast(t *testing.T) {
	const bound = 5000
	for _, alg := range everyWidth {
		for _, left := range []int{1, 3, 50} {
			l, s, _ := newTestLimiter(t, alg, WithMaxKeys(bound))
			fill(t, l, bound, left)
			for i := range 500 {
				require.True(t, l.Allow(fmt.Sprint("flood ", i)))
			}
			assert.EqualValues(t, 500, s.Stats().Evictions)
			for i := range bound - left {
				require.False(t, l.Allow(fmt.Sprint(i)), "%T, %d keys with something left: key %d was lost", alg, left, i)
			}
			s.check(t)
		}
	}
}

// fill makes so many keys, all but the last of which are exhausted.
func fill(t testing.TB, l Limiter, keys, left int) {
	t.Helper()
	for i := range keys {
		require.True(t, l.AllowN(fmt.Sprint(i), 10-min(1, max(0, i-keys+left+1))))
	}
}

// TestAllExhausted floods a store with keys that use up their limit at once:
// then those that reset soonest go.
func TestAllExhausted(t *testing.T) {
	const bound = 6400
	for _, alg := range everyWidth {
		l, s, clk := newTestLimiter(t, alg, WithMaxKeys(bound))
		for i := range bound {
			require.True(t, l.AllowN(fmt.Sprint(i), 10))
			clk.advance(time.Nanosecond)
		}
		for i := range bound / 2 {
			require.True(t, l.AllowN(fmt.Sprint("flood ", i), 10))
			clk.advance(time.Nanosecond)
		}
		assert.EqualValues(t, bound/2, s.Stats().Evictions)
		s.check(t)
		for i := range bound {
			d, err := l.Peek(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			if _, ok := alg.(SlidingWindow); !ok { // in it, they all reset at once
				require.Equal(t, i < bound/2, d.Allowed, "%T: key %d", alg, i)
			}
		}
	}
}

// TestLooksOfAFlood counts at how many keys an eviction looks on average, when there
// is little to choose from.
func TestLooksOfAFlood(t *testing.T) {
	const bound = 20_000
	floods := map[string]func(l Limiter, clk *stepClock, key string) bool{
		"used up at once": func(l Limiter, _ *stepClock, key string) bool { return l.AllowN(key, 10) },
		"something left":  func(l Limiter, _ *stepClock, key string) bool { return l.Allow(key) },
		"used up in two":  func(l Limiter, _ *stepClock, key string) bool { return l.Allow(key) && l.AllowN(key, 9) },
		"slow": func(l Limiter, clk *stepClock, key string) bool {
			clk.advance(time.Minute / bound / 10) // about one key comes to have something left
			return l.AllowN(key, 10)
		},
	}
	for name, flood := range floods {
		for _, policy := range []FullPolicy{EvictLeast, RefuseUnseen, ShareUnseen} {
			l, s, clk := newTestLimiter(t, TokenBucket{Rate: PerMinute(10)}, WithMaxKeys(bound), WithFullPolicy(policy))
			for i := range bound {
				require.True(t, l.AllowN(fmt.Sprint(i), 10))
				clk.advance(time.Minute / bound / 10)
			}
			looks := 0
			const n = 2000
			for i := range n {
				s.door.eviction.seen = 0
				granted := flood(l, clk, fmt.Sprint("flood ", i))
				looks += s.door.eviction.seen
				require.True(t, granted || policy != EvictLeast)
			}
			assert.LessOrEqual(t, looks/n, 2*usualSizes.parts+2*bound/n, "%s, policy %d", name, policy)
			s.check(t)
		}
	}
}

// TestNewcomersTogether lets many new keys come at once to a store without room.
func TestNewcomersTogether(t *testing.T) {
	const bound, newcomers = 16_000, 64
	together := func(f func(i int)) {
		var wg sync.WaitGroup
		for i := range newcomers {
			wg.Go(func() { f(i) })
		}
		wg.Wait()
	}
	for _, alg := range everyWidth {
		l, s, _ := newTestLimiter(t, alg, WithMaxKeys(bound))
		fill(t, l, bound, 0)
		together(func(i int) { assert.True(t, l.AllowN(fmt.Sprint("new ", i), 10)) })
		assert.EqualValues(t, bound/usualSizes.parts, s.Stats().Evictions, "%T: one look is for all", alg)
		s.check(t)

		l, s, _ = newTestLimiter(t, alg, WithMaxKeys(bound))
		fill(t, l, bound, 1)
		together(func(i int) { assert.True(t, l.Allow(fmt.Sprint("new ", i))) })
		assert.EqualValues(t, newcomers, s.Stats().Evictions, "%T: they push out each other", alg)
		for i := range bound - 1 {
			require.False(t, l.Allow(fmt.Sprint(i)), "%T: key %d", alg, i)
		}
		s.check(t)

		for _, policy := range []FullPolicy{RefuseUnseen, ShareUnseen} {
			l, s, clk := newTestLimiter(t, alg, WithMaxKeys(bound), WithFullPolicy(policy))
			fill(t, l, bound/2, 0)
			clk.advance(time.Hour) // and so they are idle
			for i := range bound / 2 {
				require.True(t, l.AllowN(fmt.Sprint("busy ", i), 10))
			}
			together(func(i int) { assert.True(t, l.AllowN(fmt.Sprint("new ", i), 10)) })
			assert.Zero(t, s.Stats().Turned, "%T: there was room", alg)
			s.check(t)
		}
	}
}

// TestOthersIdleKeysGoFirst floods one limiter while another in the store has
// nothing but idle keys.
func TestOthersIdleKeysGoFirst(t *testing.T) {
	const bound = 20_000
	s, clk := NewMemoryStore(WithMaxKeys(bound)), newStepClock()
	one := Must(New(TokenBucket{Rate: PerSecond(10)}, WithStore(s), WithClock(clk), WithName("one")))
	two := Must(New(TokenBucket{Rate: PerHour(10)}, WithStore(s), WithClock(clk), WithName("two")))
	for i := range bound {
		require.True(t, one.Allow(fmt.Sprint(i)))
	}
	clk.advance(time.Hour)
	for i := range bound {
		require.True(t, two.Allow(fmt.Sprint(i)))
	}
	assert.Less(t, s.Stats().Evictions, uint64(bound/10), "of keys in use")
	s.check(t)
}

// TestRememberedForASecond: what a look has seen is of no use for longer.
func TestRememberedForASecond(t *testing.T) {
	l, s, clk := newTestLimiter(t, TokenBucket{Rate: PerHour(10)}, WithMaxKeys(5000))
	fill(t, l, 5000, 2500)
	looks := func(key string) int {
		s.door.eviction.seen = 0
		require.True(t, l.Allow(key))
		return s.door.eviction.seen
	}
	assert.NotZero(t, looks("first"))
	assert.Zero(t, looks("second"), "it takes what the first has seen")
	clk.advance(time.Second)
	assert.NotZero(t, looks("third"))
}

// BenchmarkManyLimiters floods one of many limiters in a full store.
func BenchmarkManyLimiters(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := NewMemoryStore(WithMaxKeys(100_000))
			var l Limiter
			for i := range n {
				l = Must(New(TokenBucket{Rate: PerHour(10)}, WithStore(s), WithName(strconv.Itoa(i))))
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

// TestMixedLimitsStayCheap: of two limiters in a store, the keys of one are the
// first to have something left, and those of the other the first to be idle.
func TestMixedLimitsStayCheap(t *testing.T) {
	const bound = 10_000
	s, clk := NewMemoryStore(WithMaxKeys(2*bound)), newStepClock()
	slow := Must(New(TokenBucket{Rate: PerHour(3600)}, WithStore(s), WithClock(clk), WithName("slow")))
	short := Must(New(FixedWindow{Limit: 1, Window: time.Minute, Start: StartOnFirstEvent}, WithStore(s), WithClock(clk), WithName("short")))
	for i := range bound {
		require.True(t, slow.AllowN(fmt.Sprint(i), 3600))
		require.True(t, short.Allow(fmt.Sprint(i)))
		clk.advance(100 * time.Microsecond)
	}
	looks := 0
	const n = 2000
	for i := range n {
		s.door.eviction.seen = 0
		require.True(t, short.Allow(fmt.Sprint("new ", i)))
		looks += s.door.eviction.seen
		clk.advance(100 * time.Microsecond)
	}
	assert.LessOrEqual(t, looks/n, 3*usualSizes.parts)
	s.check(t)
}

// TestMaxKeysForgivesLeast fills a small store and looks which key goes.
func TestMaxKeysForgivesLeast(t *testing.T) {
	l, s, clk := newTestLimiter(t, FixedWindow{Limit: 10, Window: time.Minute, Start: StartOnFirstEvent}, WithMaxKeys(4))
	use := func(key string, n int) {
		require.True(t, l.AllowN(key, n))
		clk.advance(time.Second)
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
	clk.advance(time.Minute)
	use("one", 1)
	assert.EqualValues(t, 3, s.Stats().Evictions, "idle keys go first, and are not counted")
	s.check(t)
}

// TestMaxKeysOverLimiters checks that the bound is the store's, whoever fills it.
func TestMaxKeysOverLimiters(t *testing.T) {
	s, clk := NewMemoryStore(WithMaxKeys(10)), newStepClock()
	one := Must(New(TokenBucket{Rate: PerSecond(10)}, WithStore(s), WithClock(clk), WithName("one")))
	two := Must(New(SlidingLog{Limit: 5, Window: time.Second}, WithStore(s), WithClock(clk), WithName("two")))
	for i := range 10 {
		require.True(t, one.AllowN(fmt.Sprint(i), 10))
	}
	for i := range 100 {
		require.True(t, two.Allow(fmt.Sprint(i)))
		require.Equal(t, 10, s.Len())
	}
	s.check(t)
	require.Equal(t, 9, count(t, s.spaces["one"]), "but for the first, the flood pushes out its own")
}

func count(t testing.TB, sp space) (n int) {
	t.Helper()
	for _, sh := range sp.evictees() {
		n += sh.(*shard).check(t)
	}
	return n
}

// TestStoreUnderConcurrency races everything that can change a store.
func TestStoreUnderConcurrency(t *testing.T) {
	for _, bound := range []int{0, 1, 7, 300} {
		for _, alg := range everyWidth {
			l, s, clk := newTestLimiter(t, alg, WithMaxKeys(bound))
			splitSoon(l, 4)
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
							if r, err := l.Reserve(t.Context(), key, 3); err == nil {
								r.Cancel()
							}
						case 40:
							clk.advance(20 * time.Millisecond)
						}
					}
				})
			}
			wg.Wait()
			s.check(t)
		}
	}
}

func TestOpenTwice(t *testing.T) {
	s := NewMemoryStore()
	ten := TokenBucket{Rate: PerSecond(10)}
	_, err := New(ten, WithStore(s))
	require.NoError(t, err)
	_, err = New(TokenBucket{Rate: PerSecond(20)}, WithStore(s))
	assert.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "WithName")
	_, err = New(TokenBucket{Rate: PerSecond(20)}, WithStore(s), WithName("twenty"))
	assert.NoError(t, err)
	_, err = New(All{ten}, WithStore(s), WithName("all"))
	require.NoError(t, err)
	_, err = New(All{ten}, WithStore(s), WithName("all"))
	assert.NoError(t, err, "the same algorithm shares")
}

// TestOptionsReachNoStore: an option has nothing to do with a store that is in use.
func TestOptionsReachNoStore(t *testing.T) {
	arg := reflect.TypeFor[MemoryOption]().In(0).Elem()
	assert.Equal(t, reflect.TypeFor[memoryConfig](), arg)
	assert.False(t, token.IsExported(arg.Name()), "users cannot make one, or get at a store's")
}

func TestRefuseUnseen(t *testing.T) {
	for _, alg := range everyWidth {
		l, s, clk := newTestLimiter(t, alg, WithMaxKeys(2), WithFullPolicy(RefuseUnseen))
		require.True(t, l.Allow("a"))
		clk.advance(10 * time.Millisecond)
		require.True(t, l.AllowN("b", 10))
		idle, err := l.Peek(t.Context(), "a")
		require.NoError(t, err)

		d, err := l.Take(t.Context(), "c", 1)
		require.NoError(t, err)
		assert.Equal(t, Decision{Limit: 10, RetryAfter: idle.ResetAfter}, d, "until a is idle")
		p, err := l.Peek(t.Context(), "c")
		require.NoError(t, err)
		assert.Equal(t, d, p, "Peek answers what Take would")
		assert.ErrorIs(t, l.Wait(t.Context(), "c"), ErrFull)
		assert.True(t, l.AllowN("c", 0))
		assert.True(t, l.Allow("a"), "who is known is served")
		assert.False(t, l.Allow("b"))
		assert.Zero(t, s.Stats().Evictions)
		assert.EqualValues(t, 2, s.Stats().Turned)

		clk.advance(10 * time.Second)
		assert.True(t, l.Allow("c"), "idle keys make room")
		s.check(t)
	}
}

// TestRefusalsRememberedInVain lets a key be used after it was seen to be the next
// idle one.
func TestRefusalsRememberedInVain(t *testing.T) {
	for _, alg := range everyWidth {
		l, s, clk := newTestLimiter(t, alg, WithMaxKeys(2), WithFullPolicy(RefuseUnseen))
		require.True(t, l.Allow("a"))
		require.True(t, l.AllowN("b", 5))
		d, err := l.Take(t.Context(), "c", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		clk.advance(d.RetryAfter - 1)
		require.True(t, l.AllowN("a", 9))
		clk.advance(1)
		before, err := l.Peek(t.Context(), "a")
		require.NoError(t, err)
		l.Allow("c")
		after, err := l.Peek(t.Context(), "a")
		require.NoError(t, err)
		assert.Equal(t, before, after, "%T", alg)
		assert.Zero(t, s.Stats().Evictions)
		s.check(t)
	}
}

func TestShareUnseen(t *testing.T) {
	for _, alg := range everyWidth {
		l, s, clk := newTestLimiter(t, alg, WithMaxKeys(2), WithFullPolicy(ShareUnseen))
		require.True(t, l.AllowN("a", 10))
		require.True(t, l.AllowN("b", 10))
		for i := range 10 {
			require.True(t, l.Allow(fmt.Sprint("new ", i)))
		}
		assert.False(t, l.Allow("new"), "together they have one limit")
		d, err := l.Peek(t.Context(), "newer")
		require.NoError(t, err)
		assert.False(t, d.Allowed)

		r, err := l.Reserve(t.Context(), "newest", 1)
		require.NoError(t, err)
		require.Positive(t, r.Delay())
		before, err := l.Peek(t.Context(), "newer")
		require.NoError(t, err)
		r.Cancel()
		after, err := l.Peek(t.Context(), "newer")
		require.NoError(t, err)
		assert.Less(t, after.RetryAfter, before.RetryAfter+1, "given back where it was taken")
		assert.Equal(t, d.RetryAfter, after.RetryAfter)

		assert.Equal(t, 2, s.Len())
		assert.Zero(t, s.Stats().Evictions)
		clk.advance(10 * time.Second)
		assert.True(t, l.AllowN("new", 10), "idle keys make room")
		s.check(t)
	}
	_, err := New(everyWidth[0], WithStore(NewMemoryStore(WithFullPolicy(3))))
	assert.ErrorIs(t, err, ErrInvalid)
}

// TestShrink checks that the memory of a flood is given back on demand.
func TestShrink(t *testing.T) {
	for _, alg := range everyWidth {
		l, s, clk := newTestLimiter(t, alg)
		s.Shrink()
		require.True(t, l.AllowN("in use", 10))
		empty := s.Stats().Bytes
		for i := range 100_000 {
			require.True(t, l.Allow(fmt.Sprint(i)))
		}
		require.Greater(t, s.Stats().Bytes, empty+100_000*8)
		s.Shrink()
		require.Equal(t, 100_001, s.Len(), "all are in use")
		clk.advance(500 * time.Millisecond)
		require.True(t, l.AllowN("in use", 5) || alg != everyWidth[0])
		clk.advance(700 * time.Millisecond)
		held, err := l.Peek(t.Context(), "in use")
		require.NoError(t, err)
		s.Shrink()
		assert.Less(t, s.Len(), 2)
		assert.LessOrEqual(t, s.Stats().Bytes, empty+uint64(200*len(s.spaces[""].evictees())), "but for the shards")
		still, err := l.Peek(t.Context(), "in use")
		require.NoError(t, err)
		assert.Equal(t, held, still)
		s.check(t)
	}
}

// TestGrowthLosesNoUpdate lets goroutines spend from the same keys while new
// keys make their tables be replaced all the time, others are reset, and the
// store shrinks: each of the keys is granted exactly its limit.
func TestGrowthLosesNoUpdate(t *testing.T) {
	for _, alg := range []Algorithm{
		TokenBucket{Rate: PerHour(1000)},
		TokenBucket{Rate: Rate{1001, time.Hour}, Burst: 1000},
		FixedWindow{Limit: 1000, Window: time.Hour},
		SlidingWindow{Limit: 1000, Window: time.Hour},
	} {
		l, s, _ := newTestLimiter(t, alg)
		l.fast.splitAt = 8 // and so shards are split, too
		const hot = 8
		var granted [hot]atomic.Int64
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range 3000 {
					key := (i + g) % hot
					if l.Allow(fmt.Sprint("hot ", key)) {
						granted[key].Add(1)
					}
					l.Allow(fmt.Sprint("new ", g, i))
					l.Allow(fmt.Sprint("reset ", i%100))
					if i%7 == 0 {
						_ = l.Reset(t.Context(), fmt.Sprint("reset ", i%100))
					}
					if i%500 == 0 {
						s.Shrink()
					}
				}
			})
		}
		wg.Wait()
		for key := range granted {
			assert.EqualValues(t, 1000, granted[key].Load(), "%T, key %d", alg, key)
		}
		assert.Greater(t, len(l.fast.evictees()), 4*fewestShards, "shards were split")
		s.check(t)
	}
}

// TestFreezeSeesUpdates checks guarantee 3 where it is most delicate: a key that is
// granted something after it was seen idle, or chosen for an eviction, is kept.
func TestFreezeSeesUpdates(t *testing.T) {
	l, _, clk := newTestLimiter(t, TokenBucket{Rate: PerSecond(10)}, WithMaxKeys(31)) // one shard
	sp := l.fast
	require.True(t, l.Allow("key"))
	clk.advance(time.Minute) // and so it is idle
	sh, tbl := sp.lock(sp.store.identify("key"))
	p, ok := tbl.find(sp.store.identify("key"))
	require.True(t, ok)
	seen := sh.read(tbl, p, make([]uint64, 1))
	require.True(t, l.AllowN("key", 10), "it does not need the lock")
	require.False(t, sh.freeze(tbl, p, seen))
	require.True(t, sh.freeze(tbl, p, sh.read(tbl, p, make([]uint64, 1))))
	*tbl.word(p) = seen[0]
	sh.mu.Unlock()
	require.True(t, l.AllowN("key", 10))
	require.False(t, sh.evict(victim{id: sp.store.identify("key"), room: 1}, 0, 1), "it has no room any more")
	require.False(t, l.Allow("key"))
}

// TestClockThatPanics checks that no lock is left behind.
func TestClockThatPanics(t *testing.T) {
	for _, alg := range everyWidth {
		broken := &panickingClock{Clock: clock.New()}
		l, err := New(alg, WithClock(broken))
		require.NoError(t, err)
		broken.panics = true
		assert.Panics(t, func() { l.Allow("key") })
		broken.panics = false
		assert.True(t, l.Allow("key"))
	}
}

type panickingClock struct {
	clock.Clock
	panics bool
}

func (c *panickingClock) Since(t time.Time) time.Duration {
	if c.panics {
		panic("no time")
	}
	return c.Clock.Since(t)
}

// TestStatesRefuseNonsense asks a store without a limiter.
func TestStatesRefuseNonsense(t *testing.T) {
	for _, alg := range everyWidth {
		tr, err := NewTransition(alg)
		require.NoError(t, err)
		s := NewMemoryStore()
		states, err := s.Open("", tr)
		require.NoError(t, err)
		at := time.Now().Add(-time.Hour)
		for _, req := range []Request{{N: 1}, Request{N: -1}.At(at), Request{Op: OpReturn + 1, N: 1}.At(at)} {
			_, err := states.Apply(t.Context(), "key", tr, req)
			assert.ErrorIs(t, err, ErrInvalid)
		}
		_, err = states.Apply(t.Context(), "key", tr, Request{N: 1}.At(at))
		require.NoError(t, err)
		require.Equal(t, 1, s.Len())
		s.Shrink()
		assert.Zero(t, s.Len(), "it is idle by the system's clock")
	}
}

// TestRefusalsAreCheap lets a full store turn many new keys away.
func TestRefusalsAreCheap(t *testing.T) {
	for _, policy := range []FullPolicy{RefuseUnseen, ShareUnseen} {
		l, s, _ := newTestLimiter(t, TokenBucket{Rate: PerHour(10)}, WithMaxKeys(1000), WithFullPolicy(policy))
		for i := range 1000 {
			require.True(t, l.AllowN(fmt.Sprint(i), 1+i%10))
		}
		s.door.near.shard, s.door.far.shard = math.MaxInt-3, math.MaxInt-3
		// None, but that under the race detector a sync.Pool forgets on purpose.
		assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { l.Allow("new") }), 4.0)
		s.check(t)
	}
}

// TestBytesOfForgottenKeys: the memory of a table is counted until it is given back.
func TestBytesOfForgottenKeys(t *testing.T) {
	l, s, _ := newTestLimiter(t, TokenBucket{Rate: PerHour(10)})
	for i := range 1000 {
		require.True(t, l.Allow(fmt.Sprint(i)))
	}
	held := s.Stats().Bytes
	for i := range 1000 {
		require.NoError(t, l.Reset(t.Context(), fmt.Sprint(i)))
	}
	assert.Equal(t, held, s.Stats().Bytes)
	s.Shrink()
	assert.Less(t, s.Stats().Bytes, held/2)
}

// TestSplit grows a limiter until each entry of the directory has a shard of its
// own, and beyond, and looks whether every key is still what it was.
func TestSplit(t *testing.T) {
	for _, alg := range []Algorithm{
		TokenBucket{Rate: PerHour(10)},
		SlidingWindow{Limit: 10, Window: time.Hour},
	} {
		l, s, clk := newTestLimiter(t, alg)
		l.fast.splitAt, l.fast.most = 4, 2048
		const n = 20_000
		for i := range n {
			require.True(t, l.AllowN(fmt.Sprint(i), 1+i%10))
		}
		s.check(t)
		require.Equal(t, n, s.Len())
		require.Greater(t, len(l.fast.evictees()), l.fast.most*8/10)
		for i := range n {
			d, err := l.Peek(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			require.Equal(t, 9-i%10, d.Remaining, "%T, key %d", alg, i)
		}
		clk.advance(24 * time.Hour)
		s.Shrink()
		assert.Zero(t, s.Len())
		assert.Less(t, s.Stats().Bytes, uint64(300_000))
		s.check(t)
	}
}

// newSplitting returns a limiter with one shard, which is split when its table is
// replaced next, and that.
func newSplitting(t *testing.T) (*limiter, *MemoryStore, *shard) {
	l, s, _ := newTestLimiter(t, TokenBucket{Rate: PerHour(10)}, WithMaxKeys(31))
	sp := l.fast
	sh := sp.evictees()[0].(*shard)
	sp.most = 1024
	sh.publishLocked(sh.current())
	entries := make([]atomic.Pointer[table], sp.most)
	for i := range entries {
		entries[i].Store(sh.current())
	}
	sp.entries.Store(&entries)
	for i := range 20 {
		require.True(t, l.Allow(fmt.Sprint(i)))
	}
	sp.splitAt = 16
	return l, s, sh
}

// TestSplitLocksBoth looks at a split from another goroutine: whoever gets the lock
// of the new shard must find that all its entries lead to it.
func TestSplitLocksBoth(t *testing.T) {
	for range 50 {
		l, s, sh := newSplitting(t)
		directory := *l.fast.entries.Load()
		var wg sync.WaitGroup
		var arrived atomic.Bool
		wg.Go(func() {
			arrived.Store(true)
			for directory[1].Load().shard == sh { // at full speed, to be there in time
			}
			other := directory[1].Load().shard
			other.mu.Lock()
			defer other.mu.Unlock()
			if other != directory[len(directory)-1].Load().shard {
				t.Error("some entries still lead to the old shard")
			}
		})
		for !arrived.Load() {
			runtime.Gosched()
		}
		s.Shrink()
		wg.Wait()
		s.check(t)
	}
}

// TestSplitWhileWaiting lets new keys wait for the lock of a shard that is split:
// half of them belong in the other one then.
func TestSplitWhileWaiting(t *testing.T) {
	for range 50 {
		l, s, sh := newSplitting(t)
		sh.mu.Lock()
		var wg sync.WaitGroup
		var arrived atomic.Int32
		for i := range 8 {
			wg.Go(func() {
				arrived.Add(1)
				assert.True(t, l.Allow(fmt.Sprint("new ", i)))
			})
		}
		for arrived.Load() < 8 {
			runtime.Gosched()
		}
		now, _ := l.timeline.now()
		sh.replaceLocked(sh.current(), now, 1)
		sh.mu.Unlock()
		wg.Wait()
		s.check(t)
	}
}

// TestGroupsFillCacheLines checks that a table of one-word states begins where a
// cache line does, whatever its size, so that each of its groups is one.
func TestGroupsFillCacheLines(t *testing.T) {
	l, _, _ := newTestLimiter(t, TokenBucket{Rate: PerSecond(10)})
	sh := l.fast.evictees()[0].(*shard)
	for keys := uint64(1); keys < 3*splitAt; keys += 1 + keys/50 {
		tbl := sh.newTable(keys)
		require.EqualValues(t, 8, tbl.size)
		require.Zero(t, uintptr(unsafe.Pointer(&tbl.words[0]))%64, "%d groups", tbl.groups)
	}
}

// TestShardFillsACacheLine keeps neighbours' locks apart.
func TestShardFillsACacheLine(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 {
		assert.EqualValues(t, 64, unsafe.Sizeof(shard{}))
		assert.EqualValues(t, victimSize, unsafe.Sizeof(victim{}), "what Stats says")
	}
}
