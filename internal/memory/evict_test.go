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
)

// smallSizes make scans partial even in a store of two thousand keys.
var smallSizes = lookSizes{fewest: 4, most: 8, perShard: 2, remembered: 4, scan: 256, parts: 8, enough: 4, queue: 64}

const manyScans = 8 * 256

// TestScansAreShort: however many keys are exhausted, a new key waits for a look at
// no more than a partial scan of them, and on average at few.
func TestScansAreShort(t *testing.T) {
	budget.Alone(t)
	for _, alg := range everyWidth {
		for _, left := range []int{0, 1, 20} {
			l, s, _ := newTestLimiter(t, alg, withMaxKeys(manyScans))
			s.admission.lookSizes = smallSizes
			fill(t, l, manyScans, left)
			most, sum := 0, 0
			for i := range manyScans {
				s.admission.eviction.seen = 0
				require.True(t, l.AllowN(fmt.Sprint("new ", i), 10))
				sum += s.admission.eviction.seen
				most = max(most, s.admission.eviction.seen)
			}
			assert.LessOrEqual(t, most, smallSizes.scan, "%v, %d left", alg.Kind(), left)
			assert.LessOrEqual(t, sum/manyScans, 2*smallSizes.parts, "%v, %d left", alg.Kind(), left)
			assert.GreaterOrEqual(t, s.Len(), manyScans-smallSizes.scan/smallSizes.parts)
			s.check(t)
		}
	}
}

// TestScansSpareExhaustedKeys: while enough keys of a partial scan have events left, no
// exhausted key is evicted.
func TestScansSpareExhaustedKeys(t *testing.T) {
	budget.Alone(t)
	for i := range 5 * len(everyWidth) {
		alg := everyWidth[i%len(everyWidth)]
		l, s, _ := newTestLimiter(t, alg, withMaxKeys(manyScans))
		s.admission.lookSizes = smallSizes
		const left = manyScans / 10
		fill(t, l, manyScans, left)
		for i := range left / 2 {
			require.True(t, l.AllowN(fmt.Sprint("new ", i), 10))
		}
		for i := range manyScans - left {
			require.False(t, l.Allow(fmt.Sprint(i)), "%v: key %d was lost", alg.Kind(), i)
		}
		assert.EqualValues(t, left/2, s.Stats().Evictions)
		s.check(t)
	}
}

// TestScansFindIdleKeys: a store that may not evict looks at nearly all keys once a
// second, in partial scans, and remembers those that will be idle soonest.
func TestScansFindIdleKeys(t *testing.T) {
	budget.Alone(t)
	for _, alg := range []*kernel.Compiled{
		bucket(10, time.Minute),
		eventLog(10, time.Minute),
	} {
		l, s, clk := newTestLimiter(t, alg, withMaxKeys(manyScans), refusingNew(true))
		s.admission.lookSizes = smallSizes
		const busy = manyScans * 9 / 10
		fill(t, l, manyScans, 0)
		clk.Advance(time.Minute) // and so all are idle
		for i := range busy {
			require.True(t, l.AllowN(fmt.Sprint(i), 10))
		}
		served := 0
		for i := range manyScans * 5 / 4 { // a second and a quarter
			s.admission.eviction.seen = 0
			rejected := s.Stats().Rejected
			l.AllowN(fmt.Sprint("new ", i), 10)
			require.LessOrEqual(t, s.admission.eviction.seen, smallSizes.scan)
			if s.Stats().Rejected == rejected {
				served++
			}
			clk.Advance(time.Second / manyScans)
		}
		assert.GreaterOrEqual(t, served, (manyScans-busy)*8/10, "%v: most idle keys were found", alg.Kind())
		assert.LessOrEqual(t, len(s.admission.candidates), smallSizes.queue)
		assert.Zero(t, s.Stats().Evictions)

		d, err := l.Take(t.Context(), "newest", 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.Less(t, d.RetryAfter, time.Minute)
		clk.Advance(d.RetryAfter)
		rejected := s.Stats().Rejected
		l.Allow("newest")
		assert.Equal(t, rejected, s.Stats().Rejected, "it came when a key was idle")
		s.check(t)
	}
}

// TestSampleFindsIdleKey: if a sample has forgotten an idle key, no key in use is evicted.
func TestSampleFindsIdleKey(t *testing.T) {
	for _, alg := range []*kernel.Compiled{bucket(10, time.Minute), eventLog(10, time.Minute)} {
		for idle := range 16 {
			l, s, clk := newTestLimiter(t, alg, withMaxKeys(16))
			s.admission.lookSizes = smallSizes
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
	}
}

// TestEvictionCollectsTheBest compares the heap with a sorted list.
func TestEvictionCollectsTheBest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 50 {
		e := eviction{idle: true, keep: 8}
		var want []candidate
		for range n {
			v := candidate{fresh: 1 + random.Uint64N(20)}
			e.look(nil, nil, v)
			v.from = v.fresh
			want = append(want, v)
		}
		slices.SortFunc(want, prefer)
		slices.SortFunc(e.best, prefer)
		require.Equal(t, want[:min(n, 8)], e.best)
	}
}

// TestEvictionEnds: how many keys are looked at.
func TestEvictionEnds(t *testing.T) {
	for _, tt := range []struct {
		eviction
		want int
	}{
		{eviction{sample: true}, smallSizes.most},
		{eviction{sample: true, freed: 1}, smallSizes.fewest},
		{eviction{sample: true, remaining: 1}, smallSizes.fewest},
		{eviction{partial: true, freed: 1, remaining: 1}, smallSizes.scan},
		{eviction{freed: 1, remaining: 1}, 1000},
	} {
		e := tt.eviction
		e.lookSizes = smallSizes
		for range 1000 {
			if !e.done {
				e.count()
			}
		}
		assert.Equal(t, tt.want, e.seen, "%+v", tt.eviction)
	}
}

// A counter counts evictions.
type counter struct{ evicted int }

func (c *counter) offer(*eviction, int) {}

func (c *counter) evict(candidate, kernel.Instant, int) bool {
	c.evicted++
	return true
}

// TestFewEventsLeft: if few keys of a partial scan have events left, exhausted keys are
// evicted as well; otherwise each new key might cost a scan.
func TestFewEventsLeft(t *testing.T) {
	for _, tt := range []struct {
		partial bool
		left    int
		want    int
	}{
		{false, 0, 32}, {true, 0, 32},
		{false, 1, 1}, {true, 1, 32},
		{false, 3, 1}, {true, 3, 32},
		{false, 4, 1}, {true, 4, 1},
	} {
		c := &counter{}
		d := &admission{lookSizes: smallSizes}
		d.eviction = eviction{lookSizes: smallSizes, partial: tt.partial, left: tt.left, remaining: min(1, tt.left), seen: 256, part: 32, keep: 32}
		for i := range 32 {
			v := candidate{sh: c}
			if i < tt.left {
				v.remaining = 1
			}
			d.eviction.best = append(d.eviction.best, v)
		}
		require.True(t, d.choose())
		assert.Equal(t, tt.want, c.evicted, "%+v", tt)
		assert.Len(t, d.candidates, 32-tt.want, "%+v", tt)
	}
}

// TestIdleKeysGoFirst: in whatever order keys came, were used, and became idle, no key in use is
// evicted while another one has been idle for a second.
func TestIdleKeysGoFirst(t *testing.T) {
	budget.Alone(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 3 * len(everyWidth) {
		alg := everyWidth[i%len(everyWidth)]
		l, s, clk := newTestLimiter(t, alg, withMaxKeys(2000))
		keys := 0
		add := func(n int) {
			evicted := s.evicted.Load()
			for range n {
				require.True(t, l.AllowN(fmt.Sprint(keys), 1+rng.IntN(10)))
				if keys++; s.evicted.Load() > evicted {
					now, _ := l.timeline.Now()
					e := eviction{now: now, keep: 1}
					for _, sh := range l.evictees() {
						sh.offer(&e, math.MaxInt)
					}
					require.Zero(t, e.freed, "%v: some were idle", alg.Kind())
					return
				}
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

// A scan of all keys forgets every idle one, also where keys of a log take the places of
// those that are forgotten.
func TestScansMissNoIdleKeys(t *testing.T) {
	for _, alg := range []*kernel.Compiled{bucket(10, time.Second), sliding(10, time.Second, 5), eventLog(10, time.Second)} {
		for range 50 { // the places of keys are random
			l, s, clk := newTestLimiter(t, alg, withMaxKeys(400), refusingNew(true))
			fill(t, l, 200, 9)
			clk.Advance(2 * time.Second)
			for i := range 200 {
				require.True(t, l.AllowN(fmt.Sprint("in use ", i), 10))
			}
			for i := range 200 {
				require.True(t, l.AllowN(fmt.Sprint("new ", i), 10), "%v: after %d", alg.Kind(), i)
			}
			require.False(t, l.Allow("one more"))
			s.check(t)
		}
	}
}
