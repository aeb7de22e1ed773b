package memory

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// TestLooksOfAFlood counts how many keys an eviction looks at on average, when few keys
// have events left.
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
				s.admission.eviction.seen = 0
				granted := flood(l, clk, fmt.Sprint("flood ", i))
				looks += s.admission.eviction.seen
				require.True(t, granted || refuses)
			}
			assert.LessOrEqual(t, looks/n, 2*usualSizes.parts+2*bound/n, "%s, RefuseNew: %t", name, refuses)
			s.check(t)
		}
	}
}

// TestRememberedForASecond: the result of a look is used for a second only.
func TestRememberedForASecond(t *testing.T) {
	budget.Alone(t)
	l, s, clk := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(5000))
	fill(t, l, 5000, 2500)
	looks := func(key string) int {
		s.admission.eviction.seen = 0
		require.True(t, l.Allow(key))
		return s.admission.eviction.seen
	}
	assert.NotZero(t, looks("first"))
	assert.Zero(t, looks("second"), "it uses the result of the first look")
	clk.Advance(time.Second)
	assert.NotZero(t, looks("third"))
}

// TestMixedLimitsStayCheap: two limiters share a store. The keys of one are the first
// to regain capacity, and those of the other are the first to be idle.
func TestMixedLimitsStayCheap(t *testing.T) {
	budget.Alone(t)
	const bound = 10_000
	s, clk := &Store{MaxKeys: 2 * bound}, stepclock.New()
	slow := newLimiter(s, bucket(3600, time.Hour), clk)
	short := newLimiter(s, onFirstEvent(1, time.Minute), clk)
	for i := range bound {
		require.True(t, slow.AllowN(fmt.Sprint(i), 3600))
		require.True(t, short.Allow(fmt.Sprint(i)))
		clk.Advance(100 * time.Microsecond)
	}
	looks := 0
	const n = 2000
	for i := range n {
		s.admission.eviction.seen = 0
		require.True(t, short.Allow(fmt.Sprint("new ", i)))
		looks += s.admission.eviction.seen
		clk.Advance(100 * time.Microsecond)
	}
	assert.LessOrEqual(t, looks/n, 3*usualSizes.parts)
	s.check(t)
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
	require.Equal(t, 9, count(t, one.evictees()), "except for the first, the flood evicts its own keys")
}

func count(t testing.TB, shards []evictee) (n int) {
	t.Helper()
	for _, sh := range shards {
		n += sh.(*shard).check(t)
	}
	return n
}

// TestRefusalsAreCheap makes a full store reject many new keys.
func TestRefusalsAreCheap(t *testing.T) {
	l, s, _ := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(1000), refusingNew(true))
	for i := range 1000 {
		require.True(t, l.AllowN(fmt.Sprint(i), 1+i%10))
	}
	s.admission.near.shard, s.admission.far.shard = math.MaxInt-3, math.MaxInt-3
	// None, except under the race detector, where a sync.Pool drops items on
	// purpose.
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { l.Allow("new") }), 4.0)
	s.check(t)
}

// A fickle shard has a key with some events remaining now, which is in use.
type fickle struct {
	counter
	remaining int
}

func (f *fickle) evict(_ candidate, _ kernel.Instant, least int) bool {
	if spares(f.remaining, least) {
		return false
	}
	f.evicted++
	return true
}

// TestRecallSparesKeysUsedSince: a remembered key is evicted only if it has as many events remaining
// as it had, or is to have by now.
func TestRecallSparesKeysUsedSince(t *testing.T) {
	for _, tt := range []struct {
		then, now int
		evicted   bool
	}{{5, 5, true}, {5, 6, true}, {5, 4, false}, {1, 0, false}, {0, 0, false}, {0, 1, true}} {
		f := &fickle{remaining: tt.now}
		a := &admission{candidates: []candidate{{sh: f, remaining: tt.then}}}
		assert.Equal(t, tt.evicted, a.recall(0, false), "%+v", tt)
	}
}

// TestNoKeyToLookAt: while all places are taken by keys that are being inserted, a store looks again,
// and refuses nobody.
func TestNoKeyToLookAt(t *testing.T) {
	a := &admission{lookSizes: smallSizes}
	for _, e := range []eviction{{lookSizes: smallSizes}, {lookSizes: smallSizes, idle: true}, {lookSizes: smallSizes, idle: true, seen: 5, freed: 1}} {
		a.eviction = e
		assert.True(t, a.choose(), "%+v", e)
	}
	a.eviction = eviction{lookSizes: smallSizes, idle: true, seen: 1, best: []candidate{{}}}
	assert.False(t, a.choose())
}

// TestFewKeysAreAllCompared: a small store evicts the key with the most events remaining each time.
func TestFewKeysAreAllCompared(t *testing.T) {
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
