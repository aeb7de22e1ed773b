package memory

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// TestSamples: how many keys are looked at.
func TestSamples(t *testing.T) {
	budget.Alone(t)
	for name, tt := range map[string]struct {
		bound, perLimiter, used int
		later                   time.Duration
		refuses                 bool
		want, then              int // in the first sample, and in later ones if that differs
	}{
		"few keys":                         {bound: 512, perLimiter: 512, used: 1, want: 512},
		"few keys, RefuseNew":              {bound: 512, perLimiter: 512, used: 1, refuses: true, want: 512},
		"events remain":                    {bound: 5000, perLimiter: 5000, used: 1, want: usualSizes.few},
		"used up":                          {bound: 5000, perLimiter: 5000, used: 10, want: usualSizes.most, then: usualSizes.few},
		"idle":                             {bound: 5000, perLimiter: 5000, used: 10, later: time.Minute, want: usualSizes.few},
		"RefuseNew":                        {bound: 5000, perLimiter: 5000, used: 1, refuses: true, want: usualSizes.most},
		"idle, RefuseNew":                  {bound: 5000, perLimiter: 5000, used: 1, later: time.Minute, refuses: true, want: usualSizes.few},
		"events remain, two keys each":     {bound: 5000, perLimiter: 2, used: 1, want: usualSizes.few},
		"used up, two keys each":           {bound: 5000, perLimiter: 2, used: 10, want: usualSizes.most, then: usualSizes.few},
		"few keys used up, four keys each": {bound: 512, perLimiter: 4, used: 10, want: 512},
	} {
		s, clk := &Store{MaxKeys: int64(tt.bound), RefuseNew: tt.refuses}, stepclock.New()
		for range tt.bound / tt.perLimiter {
			l := newLimiter(s, bucket(10, time.Minute), clk)
			for key := range tt.perLimiter {
				require.True(t, l.AllowN(fmt.Sprint(key), tt.used))
			}
		}
		clk.Advance(tt.later)
		for i := range 10 {
			want := tt.want
			if i > 0 && tt.then > 0 {
				want = tt.then
			}
			assert.Equal(t, want, s.sampleKeys(timeline.InstantOf(clk.Now())).seen, name)
		}
		s.check(t)
	}
}

// TestSamplesSpareExhaustedKeys: while a sample has a key with events left, no exhausted key is evicted.
func TestSamplesSpareExhaustedKeys(t *testing.T) {
	budget.Alone(t)
	const bound, left = 2000, 1000
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

// TestRefusingStoreFindsIdleKeys: a store that may not evict goes through all keys, sample by sample.
func TestRefusingStoreFindsIdleKeys(t *testing.T) {
	budget.Alone(t)
	const bound, busy = 4000, 3600
	for _, alg := range []*step.Machine{bucket(10, time.Minute), eventLog(10, time.Minute)} {
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
	for _, alg := range []*step.Machine{bucket(10, time.Minute), eventLog(10, time.Minute)} {
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
		if a := l.apply(step.OpPeek, fmt.Sprint(i), 1); a.Remaining == 5 {
			kept++
		}
	}
	assert.Equal(t, 99, kept)
}

// TestIdleKeysGoFirst: in whatever order keys came, were used, and became idle, a small store evicts no key in use
// while it has an idle one.
func TestIdleKeysGoFirst(t *testing.T) {
	budget.Alone(t)
	const bound = 200
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 3 * len(everyWidth) {
		alg := everyWidth[i%len(everyWidth)]
		l, s, clk := newTestLimiter(t, alg, withMaxKeys(bound))
		idle := func() (found bool) {
			for _, sh := range l.fast.list() {
				tbl := l.fast.current(sh)
				for at := range tbl.held() {
					ls := lockedSlot{l.fast, sh, tbl, at}
					k, st := ls.read(new([1]uint64))
					found = found || k.FreshIn(st) <= timeline.InstantOf(clk.Now())
				}
			}
			return found
		}
		keys := 0
		add := func(n int) {
			for range n {
				evicted, spares := s.evicted.Load(), s.Len() < bound || idle()
				require.True(t, l.AllowN(fmt.Sprint(keys), 1+rng.IntN(10)))
				keys++
				require.True(t, s.evicted.Load() == evicted || !spares, "%v", alg.Kind())
			}
		}
		add(bound)
		for range 20 {
			clk.Advance(time.Second) // after which most keys are idle
			for range rng.IntN(bound) {
				l.AllowN(fmt.Sprint(max(0, keys-1-rng.IntN(bound))), 1+rng.IntN(10))
			}
			add(rng.IntN(bound))
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
	require.Equal(t, 9, count(t, one.fast), "except for the first, the flood evicts its own keys")
}

func count(t testing.TB, sp *Space) (n int) {
	t.Helper()
	for _, sh := range sp.list() {
		n += sp.checkShard(t, sh)
	}
	return n
}

// TestRefusalsAreCheap: that a full store refuses a new key allocates nothing.
func TestRefusalsAreCheap(t *testing.T) {
	l, s, _ := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(1000), refusingNew(true))
	for i := range 1000 {
		require.True(t, l.AllowN(fmt.Sprint(i), 1+i%10))
	}
	s.admission.next.shard = math.MaxInt - 3
	most := 0.0
	if budget.UnderRace() { // a sync.Pool drops items then, on purpose
		most = 4
	}
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { assert.False(t, l.Allow("new")) }), most)
	s.check(t)
}

// TestEvictSparesKeysUsedSince: a key is evicted only if it has not been used since it was looked at.
func TestEvictSparesKeysUsedSince(t *testing.T) {
	for _, tt := range []struct {
		then, now int // events remaining
		evicted   bool
	}{{5, 5, true}, {5, 6, true}, {5, 4, false}, {1, 0, false}, {0, 0, true}, {0, 1, true}} {
		l, s, clk := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(31))
		now := func() kernel.Instant { return timeline.InstantOf(clk.Now()) }
		require.True(t, l.AllowN("key", 10-tt.then))
		e := s.sampleKeys(now())
		v := e.pool.removeBest()
		require.NoError(t, l.Reset(t.Context(), "key"))
		require.True(t, l.AllowN("key", 10-tt.now))
		v.evict(now())
		assert.Equal(t, tt.evicted, s.Len() == 0, "%+v", tt)
		clk.Advance(time.Hour)
		v.evict(now()) // it is idle, or gone
		assert.Zero(t, s.Len())
		assert.Equal(t, tt.evicted, s.evicted.Load() == 1, "%+v", tt)
	}
	l, s, clk := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(31))
	require.True(t, l.AllowN("key", 10))
	e := s.sampleKeys(timeline.InstantOf(clk.Now()))
	v := e.pool.removeBest()
	clk.Advance(time.Hour / 2)
	require.True(t, l.AllowN("key", 5))
	v.evict(timeline.InstantOf(clk.Now()))
	assert.Equal(t, 1, s.Len(), "it is used up again, for longer")
}

// TestPool: a pool keeps the best candidates, each once and as it was seen last, and returns the best first.
func TestPool(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var c pool
	last := map[uint64]candidate{}
	for range 1000 {
		v := candidate{id: identity{hi: 1 + rng.Uint64N(poolSize-1)}, flooded: rng.IntN(2) == 0, remaining: rng.IntN(3)}
		if v.remaining == 0 {
			v.ready = rng.Uint64N(3)
		}
		c.add(v) // there are no more keys than it has room for
		last[v.id.hi] = v
	}
	require.Len(t, c, len(last))
	for i, v := range c {
		require.Equal(t, last[v.id.hi], v)
		require.True(t, i == 0 || v.compare(c[i-1]) >= 0)
	}
	c = nil
	for i := range 100 {
		c.add(candidate{id: identity{hi: uint64(1 + i)}, remaining: i * 37 % 100})
	}
	require.Len(t, c, poolSize)
	for i := range poolSize {
		v := c.removeBest()
		require.Equal(t, 99-i, v.remaining)
	}

	order := []candidate{ // from the last to the first that is evicted
		{remaining: 0, ready: 9, fresh: 9}, {remaining: 0, ready: 9, fresh: 8}, {remaining: 0, ready: 8, fresh: 9},
		{remaining: 0, flooded: true, ready: 9}, {remaining: 1, fresh: 9}, {remaining: 1, flooded: true, fresh: 9}, {remaining: 2, fresh: 9},
	}
	require.True(t, slices.IsSortedFunc(order, candidate.compare))
}

// TestNewKeysPayForThemselves: while a joint owes places, a single key evicts one other, and not those that the joint owes.
func TestNewKeysPayForThemselves(t *testing.T) {
	l, s, clk := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(1000))
	for i := range 1000 {
		require.True(t, l.Allow(fmt.Sprint(i)))
	}
	const owed = 300
	s.held.Add(-owed)
	s.owed.Add(owed)
	for i := range owed {
		require.True(t, l.Allow(fmt.Sprint("a place is left ", i)))
	}
	require.Equal(t, 1000+owed, s.Len())
	require.Zero(t, s.Stats().Evictions)
	for i := range 10 {
		require.True(t, l.Allow(fmt.Sprint("new ", i)))
		require.EqualValues(t, i+1, s.Stats().Evictions)
	}
	for range owed {
		l.fast.payPlace(timeline.InstantOf(clk.Now()))
	}
	assert.EqualValues(t, 10+owed, s.Stats().Evictions)
	s.check(t)
}
