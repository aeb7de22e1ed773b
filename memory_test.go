package ratelimit

import (
	"fmt"
	"strings"
	"sync"
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
	total := 0
	s.mu.Lock()
	defer s.mu.Unlock()
	listed := make(map[*shard]bool)
	if shards := s.shards.Load(); shards != nil {
		for _, sh := range *shards {
			listed[sh] = true
		}
	}
	for name, sp := range s.spaces {
		require.Equal(t, 1, popcount(len(sp.shards)), "a power of two of shards")
		for i := range sp.shards {
			sh := &sp.shards[i]
			require.True(t, listed[sh], "evictions see every shard of %q", name)
			sh.mu.Lock()
			require.Len(t, sh.index, len(sh.keys))
			if sh.width > 0 {
				require.Len(t, sh.words, len(sh.keys)*sh.width)
				require.Empty(t, sh.grown)
			} else {
				require.Len(t, sh.grown, len(sh.keys))
				require.Empty(t, sh.words)
			}
			for j, key := range sh.keys {
				require.Equal(t, j, sh.index[key])
				require.Same(t, sh, sp.shard(key), "each key in its own shard")
			}
			total += len(sh.keys)
			sh.mu.Unlock()
		}
	}
	require.Equal(t, total, s.Len())
	if s.maxKeys > 0 {
		require.LessOrEqual(t, int64(total), s.maxKeys)
	}
}

func popcount(n int) (ones int) {
	for ; n > 0; n &= n - 1 {
		ones++
	}
	return ones
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
			most = max(most, s.Len())
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
			for i := range 5 * bound {
				require.True(t, l.Allow(fmt.Sprint("flood ", i)))
				require.LessOrEqual(t, s.Len(), bound)
			}
			for _, key := range exhausted {
				require.False(t, l.Allow(key), "%T: the flood washed %q out", alg, key)
			}
			assert.Equal(t, bound, s.Len())
			assert.Equal(t, MemoryStats{
				Keys:      bound,
				Inserts:   uint64(5*bound + len(exhausted)),
				Evictions: uint64(4*bound + len(exhausted)),
			}, s.Stats(), "each loss is counted")
			s.check(t)
		}
	}
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
	require.Equal(t, 9, count(s.spaces["one"]), "but for the first, the flood pushes out its own")
}

func count(sp *space) (n int) {
	for i := range sp.shards {
		n += len(sp.shards[i].keys)
	}
	return n
}

// TestStoreUnderConcurrency races everything that can change a store.
func TestStoreUnderConcurrency(t *testing.T) {
	for _, bound := range []int{0, 1, 7, 300} {
		for _, alg := range everyWidth {
			l, s, clk := newTestLimiter(t, alg, WithMaxKeys(bound))
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

// TestKeyIsCopied checks that a store keeps no more than the key, even if it
// was cut out of something large.
func TestKeyIsCopied(t *testing.T) {
	l, s, _ := newTestLimiter(t, TokenBucket{Rate: PerSecond(10)})
	large := strings.Repeat("x", 1<<10)
	key := large[:10]
	l.Allow(key)
	for i := range s.spaces[""].shards {
		for _, held := range s.spaces[""].shards[i].keys {
			assert.NotSame(t, unsafe.StringData(key), unsafe.StringData(held))
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
