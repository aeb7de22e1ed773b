package memory

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// TestLooksOfAFlood counts how many keys an eviction looks at: never more than a sample, and on average few.
func TestLooksOfAFlood(t *testing.T) {
	budget.Alone(t)
	const bound = 20_000
	floods := map[string]func(l *limiter, clk *stepclock.Clock, key string) bool{
		"used up at once": func(l *limiter, _ *stepclock.Clock, key string) bool { return l.AllowN(key, 10) },
		"something left":  func(l *limiter, _ *stepclock.Clock, key string) bool { return l.Allow(key) },
		"used up in two":  func(l *limiter, _ *stepclock.Clock, key string) bool { return l.Allow(key) && l.AllowN(key, 9) },
		"slow": func(l *limiter, clk *stepclock.Clock, key string) bool {
			clk.Advance(time.Minute / bound / 10) // about one key regains capacity
			return l.AllowN(key, 10)
		},
	}
	for name, flood := range floods {
		for _, refuses := range []bool{false, true} {
			l, s, clk := newTestLimiter(t, bucket(10, time.Minute), withMaxKeys(bound), refusingNew(refuses))
			for i := range bound {
				require.True(t, l.AllowN(fmt.Sprint(i), 10))
				clk.Advance(time.Minute / bound / 10)
			}
			looks := 0
			const n = 2000
			for i := range n {
				s.admission.sample.seen = 0
				granted := flood(l, clk, fmt.Sprint("flood ", i))
				require.LessOrEqual(t, s.admission.sample.seen, usualSizes.most)
				looks += s.admission.sample.seen
				require.True(t, granted || refuses)
			}
			assert.LessOrEqual(t, looks/n, 2*usualSizes.fewest, "%s, RefuseNew: %t", name, refuses)
			s.check(t)
		}
	}
}

// TestRememberedForASecond: a sample is used for a second only.
func TestRememberedForASecond(t *testing.T) {
	budget.Alone(t)
	l, s, clk := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(5000))
	fill(t, l, 5000, 2500)
	looks := func(key string) int {
		s.admission.sample.seen = 0
		require.True(t, l.Allow(key))
		return s.admission.sample.seen
	}
	assert.NotZero(t, looks("first"))
	assert.Zero(t, looks("second"), "it uses the sample of the first")
	clk.Advance(time.Second)
	assert.NotZero(t, looks("third"))
}

// TestSamplesSpareExhaustedKeys: while a sample has a key with events left, no exhausted key is evicted.
func TestSamplesSpareExhaustedKeys(t *testing.T) {
	budget.Alone(t)
	const bound, left = 2000, 400
	for _, alg := range everyWidth {
		l, s, _ := newTestLimiter(t, alg, withMaxKeys(bound))
		fill(t, l, bound, left)
		for i := range left / 2 {
			require.True(t, l.AllowN(fmt.Sprint("new ", i), 10))
		}
		for i := range bound - left {
			require.False(t, l.Allow(fmt.Sprint(i)), "%v: key %d was lost", alg.Kind(), i)
		}
		assert.EqualValues(t, left/2, s.Stats().Evictions)
		s.check(t)
	}
}

// TestRefusingStoreFindsIdleKeys: a store that may not evict looks at nearly all keys once a second.
func TestRefusingStoreFindsIdleKeys(t *testing.T) {
	budget.Alone(t)
	const bound, busy = 4000, 3600
	for _, alg := range []*kernel.Compiled{bucket(10, time.Minute), eventLog(10, time.Minute)} {
		l, s, clk := newTestLimiter(t, alg, withMaxKeys(bound), refusingNew(true))
		fill(t, l, bound, 0)
		clk.Advance(time.Minute) // and so all are idle
		for i := range busy {
			require.True(t, l.AllowN(fmt.Sprint(i), 10))
		}
		served := 0
		for i := range bound * 5 / 4 { // a second and a quarter
			rejected := s.Stats().Rejected
			l.AllowN(fmt.Sprint("new ", i), 10)
			if s.Stats().Rejected == rejected {
				served++
			}
			clk.Advance(time.Second / bound)
		}
		assert.GreaterOrEqual(t, served, (bound-busy)*8/10, "%v: most idle keys were found", alg.Kind())
		assert.Zero(t, s.Stats().Evictions)

		d, err := l.Take(t.Context(), "newest", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.LessOrEqual(t, d.RetryAfter, time.Minute)
		clk.Advance(d.RetryAfter)
		rejected := s.Stats().Rejected
		l.Allow("newest")
		assert.Equal(t, rejected, s.Stats().Rejected, "it came when a key was idle")
		s.check(t)
	}
}

// TestFewKeysAreAllCompared: a small store forgets an idle key, wherever it is, or else evicts the key with the
// most events remaining.
func TestFewKeysAreAllCompared(t *testing.T) {
	for _, alg := range []*kernel.Compiled{bucket(10, time.Minute), eventLog(10, time.Minute)} {
		for idle := range 16 {
			l, s, clk := newTestLimiter(t, alg, withMaxKeys(16))
			require.True(t, l.Allow(fmt.Sprint(idle)))
			clk.Advance(30 * time.Second)
			for i := range 16 {
				require.True(t, i == idle || l.AllowN(fmt.Sprint(i), 10))
			}
			clk.Advance(30 * time.Second)
			require.True(t, l.Allow("new"))
			assert.Equal(t, 16, s.Len())
			assert.Zero(t, s.Stats().Evictions, "%v, key %d", alg.Kind(), idle)
		}
		l, s, clk := newTestLimiter(t, alg, withMaxKeys(400), refusingNew(true))
		fill(t, l, 200, 9)
		clk.Advance(time.Minute)
		for i := range 400 {
			require.True(t, l.AllowN(fmt.Sprint("new ", i), 10), "%v: after %d", alg.Kind(), i)
		}
		l.Allow("one more")
		assert.EqualValues(t, 1, s.Stats().Rejected)
		s.check(t)
	}
	l, s, _ := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(100))
	for i := range 100 {
		require.True(t, l.AllowN(fmt.Sprint(i), 5))
	}
	for i := range 50 {
		require.True(t, l.Allow(fmt.Sprint("new ", i))) // has more than the others
	}
	assert.EqualValues(t, 50, s.Stats().Evictions)
	kept := 0
	for i := range 100 {
		if a := l.apply(kernel.OpPeek, fmt.Sprint(i), 1); a.Remaining == 5 {
			kept++
		}
	}
	assert.Equal(t, 99, kept)
}

// TestSampleEnds: how many keys are looked at.
func TestSampleEnds(t *testing.T) {
	for _, e := range []sample{{}, {freed: 1}, {remaining: 1}} {
		e.fewest, e.most = 64, 512
		want := 64
		if e.freed+e.remaining == 0 {
			want = 512
		}
		for !e.done {
			e.count()
		}
		assert.Equal(t, want, e.seen, "%+v", e)
	}
}

// TestIdleKeysGoFirst: in whatever order keys came, were used, and became idle, no key in use is evicted if
// a sample has an idle one.
func TestIdleKeysGoFirst(t *testing.T) {
	budget.Alone(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 3 * len(everyWidth) {
		alg := everyWidth[i%len(everyWidth)]
		l, s, clk := newTestLimiter(t, alg, withMaxKeys(2000))
		keys := 0
		add := func(n int) {
			for range n {
				evicted := s.evicted.Load()
				s.admission.sample.freed, s.admission.sample.seen = 0, 0
				require.True(t, l.AllowN(fmt.Sprint(keys), 1+rng.IntN(10)))
				keys++
				require.True(t, s.evicted.Load() == evicted || s.admission.sample.freed == 0, "%v", alg.Kind())
			}
		}
		add(2000)
		for range 20 {
			clk.Advance(time.Second) // after which most keys are idle
			for range rng.IntN(2000) {
				l.AllowN(fmt.Sprint(max(0, keys-1-rng.IntN(2000))), 1+rng.IntN(10))
			}
			add(rng.IntN(2000))
		}
		require.NotZero(t, s.evicted.Load())
	}
}

// TestMaxKeysOverLimiters checks that the bound applies to all limiters on the store.
func TestMaxKeysOverLimiters(t *testing.T) {
	s, clk := &Store{MaxKeys: 10}, stepclock.New()
	one := newLimiter(s, bucket(10, time.Second), clk)
	two := newLimiter(s, eventLog(5, time.Second), clk)
	for i := range 10 {
		require.True(t, one.AllowN(fmt.Sprint(i), 10))
	}
	for i := range 100 {
		require.True(t, two.Allow(fmt.Sprint(i)))
		require.Equal(t, 10, s.Len())
	}
	s.check(t)
	require.Equal(t, 9, count(t, one.fast.list()), "except for the first, the flood evicts its own keys")
}

func count(t testing.TB, shards []*shard) (n int) {
	t.Helper()
	for _, sh := range shards {
		n += sh.check(t)
	}
	return n
}

// TestRefusalsAreCheap makes a full store reject many new keys.
func TestRefusalsAreCheap(t *testing.T) {
	l, s, _ := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(1000), refusingNew(true))
	for i := range 1000 {
		require.True(t, l.AllowN(fmt.Sprint(i), 1+i%10))
	}
	s.admission.next.shard = math.MaxInt - 3
	// None, except under the race detector, where a sync.Pool drops items on
	// purpose.
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { l.Allow("new") }), 4.0)
	s.check(t)
}

// TestRecallSparesKeysUsedSince: a remembered key is evicted only if it has as many events remaining as it
// had.
func TestRecallSparesKeysUsedSince(t *testing.T) {
	remembered := func(left int) (s *Store, now kernel.Instant, v candidate) {
		l, s, clk := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(31)) // one shard
		require.True(t, l.AllowN("key", 10-left))
		return s, kernel.InstantOf(clk.Now()), candidate{sh: l.fast.list()[0], id: s.identify("key")}
	}
	for _, tt := range []struct {
		then, now int
		evicted   bool
	}{{5, 5, true}, {5, 6, true}, {5, 4, false}, {1, 0, false}, {0, 0, true}, {0, 1, true}} {
		s, now, v := remembered(tt.now)
		v.remaining = tt.then
		a := &admission{candidates: []candidate{v}}
		assert.Equal(t, tt.evicted, a.recall(now), "%+v", tt)
		assert.Equal(t, tt.evicted, s.Len() == 0, "%+v", tt)
	}
	_, now, v := remembered(5)
	v.from, v.remaining = now+1, unlessIdle
	idle := &admission{candidates: []candidate{v}}
	assert.False(t, idle.recall(now))
	assert.Len(t, idle.candidates, 1)
}
