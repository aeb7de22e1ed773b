package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// Random histories of these tests are the seeds of fuzz targets, which always run. At night
// (RATELIMIT_NIGHTLY=1), that of growing logs has 60,000 calls and not 20,000.

// TestRemovedKeysHideNoOthers forgets every third key of shards whose slots lie close
// together: the others are still found.
func TestRemovedKeysHideNoOthers(t *testing.T) {
	l, s, _ := newTestLimiter(t, eventLog(10, time.Hour))
	const n = 5000
	for i := range n {
		require.True(t, l.AllowN(fmt.Sprint(i), 1+i%10))
	}
	for i := 0; i < n; i += 3 {
		require.NoError(t, l.Reset(t.Context(), fmt.Sprint(i)))
	}
	s.check(t)
	for i := range n {
		d, err := l.Peek(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
		want := 10
		if i%3 > 0 {
			want = 9 - i%10
		}
		require.Equal(t, want, d.Remaining, "key %d", i)
	}
	require.Equal(t, n-(n+2)/3, s.Len())
}

// TestStatesGrowAndMove compares logs that grow, up to beyond mostBlock, and empty, with
// states in slices of their own.
func TestStatesGrowAndMove(t *testing.T) {
	budget.Alone(t)
	for _, k := range []*step.Machine{
		eventLog(2000, time.Second),
		must(kernel.NewSlidingLog(700, uint64(time.Second), true), nil),
		all(eventLog(1000, time.Second), bucket(5000, time.Second), eventLog(1500, 2*time.Second)),
	} {
		rng := budget.Rand(t)
		l, s, clk := newTestLimiter(t, k)
		m := &mirror{t: t, l: l, s: s, clk: clk, states: make(map[string][]uint64)}
		most := uint64(0)
		for i := range budget.Histories(20_000, 60_000) {
			key := fmt.Sprint(rng.IntN(1 + rng.IntN(60))) // some far more often than others
			switch r := rng.IntN(10_000); {
			case r == 0:
				clk.Advance(time.Duration(rng.IntN(3)) * time.Second)
			case r == 1:
				s.Shrink()
			case r < 10:
				require.NoError(t, l.Reset(t.Context(), key))
				delete(m.states, key)
			default:
				clk.Advance(time.Duration(rng.IntN(20)) * time.Microsecond)
				m.take(key, 1+rng.IntN(1+rng.IntN(8)), true)
			}
			if i%500 == 0 {
				s.check(t)
			}
			for _, sh := range l.fast.list() {
				if sh.arena != nil {
					most = max(most, sh.arena.outside)
				}
			}
		}
		require.Greater(t, most, uint64(mostBlock), "a state was a slice of its own")
	}
}

// TestKernelsAreForgotten changes the limits of keys all the time: a shard lists only the
// kernels that its states need.
func TestKernelsAreForgotten(t *testing.T) {
	l := newVariedLimiter()
	for i := range 5000 {
		l.clk.Advance(time.Millisecond)
		k := eventLog(100+i, time.Second)
		for range 2 {
			require.True(t, l.AllowBy(l.timeline, fmt.Sprint(i%7), l.Limit(i, k, k), 1))
		}
		if i%3 == 0 {
			l.Reset(fmt.Sprint(i % 5))
		}
	}
	l.check(t)
	for _, sh := range l.list() {
		assert.LessOrEqual(t, len(sh.arena.kernels), 8, "7, and one before another was dropped")
	}
}

// TestWordsAreGivenBack: when keys with long logs have gone, keys with short ones do not
// keep their memory, even if they fill their slots.
func TestWordsAreGivenBack(t *testing.T) {
	l := newVariedLimiter()
	allow := func(key string, k *step.Machine) {
		require.True(t, l.AllowBy(l.timeline, key, l.Limit(nil, k, k), 1))
	}
	short, long := eventLog(100, time.Hour), eventLog(100, time.Second)
	for range 100 {
		l.clk.Advance(time.Millisecond)
		for i := range 1000 {
			allow(fmt.Sprint("long ", i), long)
		}
	}
	for i := range 2000 {
		allow(fmt.Sprint("short ", i), short)
	}
	before := l.s.Stats().Bytes
	for round := range 2 {
		l.clk.Advance(2 * idleTime)
		for i := range 500 {
			allow(fmt.Sprint("new ", round, i), short)
		}
	}
	l.check(t)
	require.GreaterOrEqual(t, l.s.Len(), 3000)
	assert.Less(t, l.s.Stats().Bytes, before/2)
}

// TestGarbageIsBounded: states that grow, and keys that come and go, leave few words
// unused.
func TestGarbageIsBounded(t *testing.T) {
	l, s, clk := newTestLimiter(t, eventLog(40, time.Second))
	for i := range 60_000 {
		clk.Advance(10 * time.Microsecond)
		l.AllowN(fmt.Sprint(i*7919%3000), 1)
		if i%5 == 0 {
			require.NoError(t, l.Reset(t.Context(), fmt.Sprint(i*31%3000)))
		}
		if i%1000 > 0 || i < 30_000 {
			continue
		}
		var used, held uint64
		for _, sh := range l.fast.list() {
			used += sh.arena.used
			held += uint64(cap(sh.arena.words))
		}
		require.LessOrEqual(t, float64(held), 1.5*float64(used))
	}
	s.check(t)
}

// TestWideNewStates: a key whose first state is larger than a block has one of its own at once.
func TestWideNewStates(t *testing.T) {
	l, s, _ := newTestLimiter(t, all(eventLog(10, time.Second), rolling(20, 2*mostBlock*time.Second, time.Second)))
	for i := range 3 {
		require.True(t, l.Allow(fmt.Sprint(i)))
		require.False(t, l.AllowN(fmt.Sprint(i), 10))
	}
	s.check(t)
}

// TestLargestBlock: a state that just fits into a block has one after the next copy, too.
func TestLargestBlock(t *testing.T) {
	k := eventLog(1000, time.Hour)
	for _, size := range []int{mostBlock, mostBlock + 1} {
		a := newArena(minLoad, 1, 2*mostBlock)
		a.add(k, step.PlainState(a.draft(size, size)))
		require.Equal(t, size > mostBlock, a.outside > 0)
		a.pack(0)
		require.Equal(t, size > mostBlock, a.outside > 0)
	}
}

// TestLargeStatesCountWhole: a state that is too large for a block stays in its slice, all of which counts.
func TestLargeStatesCountWhole(t *testing.T) {
	k := eventLog(5000, time.Second)
	a := newArena(minLoad, 1, 2*mostBlock)
	a.add(k, step.PlainState(make([]uint64, 2*mostBlock, 8*mostBlock)))
	require.EqualValues(t, 8*mostBlock, a.outside)
	a.pack(0)
	require.EqualValues(t, 8*mostBlock, a.outside)
}

// TestGrowingStatesSplitAShard: a shard whose states grow is split without new keys, and loses nothing.
func TestGrowingStatesSplitAShard(t *testing.T) {
	for _, together := range []bool{false, true} {
		l := newVariedLimiter()
		l.fewest = 1
		log := eventLog(500, time.Hour)
		lim := l.Limit(nil, log, log)
		allow := func(key string) bool {
			if !together {
				return l.AllowBy(l.timeline, key, lim, 1)
			}
			j := newJoint()
			defer j.close()
			j.add(l.Space, lim, &limit.Call{Key: key, Request: step.Request{Clock: l.timeline, N: 1}})
			return j.decide() && j.granted
		}
		const keys = 100
		for range 500 {
			l.clk.Advance(time.Millisecond)
			for i := range keys {
				require.True(t, allow(fmt.Sprint(i)))
			}
		}
		require.Greater(t, len(l.list()), 1)
		l.check(t)
		for i := range keys {
			require.False(t, allow(fmt.Sprint(i)))
		}
	}
}
