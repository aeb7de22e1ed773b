package memory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// TestGrowthLosesNoUpdate lets goroutines spend from the same keys while new
// keys make their tables be replaced all the time, others are reset, and the
// store shrinks: each of the keys is granted exactly its limit.
func TestGrowthLosesNoUpdate(t *testing.T) {
	for _, alg := range []*step.Machine{
		bucket(1000, time.Hour),
		must(kernel.NewTokenBucket(1001, time.Hour, time.Hour, 1000, kernel.InMemory, "")),
		aligned(1000, time.Hour),
		sliding(1000, time.Hour, 1),
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
			assert.EqualValues(t, 1000, granted[key].Load(), "%v, key %d", alg.Kind(), key)
		}
		assert.Greater(t, len(l.fast.list()), 4*fewestShards, "shards were split")
		s.check(t)
	}
}

// TestFreezeSeesUpdates checks guarantee 3 where it is most delicate: a key that is
// granted something after it was seen idle, or chosen for an eviction, is kept.
func TestFreezeSeesUpdates(t *testing.T) {
	l, _, clk := newTestLimiter(t, bucket(10, time.Second), withMaxKeys(31)) // one shard
	sp := l.fast
	require.True(t, l.Allow("key"))
	clk.Advance(time.Minute) // and so it is idle
	sh, tbl := sp.lock(sp.store.identify("key"))
	at, ok := tbl.find(sp.store.identify("key"))
	ls := lockedSlot{sp, sh, tbl, at}
	require.True(t, ok)
	_, seen := ls.read(new([1]uint64))
	require.True(t, l.AllowN("key", 10), "it does not need the lock")
	require.False(t, ls.freeze(seen))
	_, now := ls.read(new([1]uint64))
	require.True(t, ls.freeze(now))
	*tbl.word(at) = seen.Words[0]
	sh.mu.Unlock()
	require.True(t, l.AllowN("key", 10))
	v := candidate{space: sp, id: sp.store.identify("key"), remaining: 1}
	v.evict(0)
	require.False(t, l.Allow("key"), "it had no events remaining, and is still there")
	v.evict(timeline.InstantOf(clk.Now().Add(time.Second)))
	require.Zero(t, sp.store.Len())
	require.Zero(t, sp.store.evicted.Load(), "it is idle by now")
}

// A freshCounter is a kernel that counts the questions whether a key is idle.
type freshCounter struct {
	kernel.Kernel
	looks *int
}

func (k freshCounter) Fresh(st []uint64) kernel.Instant {
	*k.looks++
	return k.Kernel.Fresh(st)
}

// TestSweepsAreRare: while new keys pour in, no key is looked at twice within idleTime,
// and each is forgotten before two of them have passed since it became idle.
func TestSweepsAreRare(t *testing.T) {
	budget.Alone(t)
	const keys, pause = 40_000, time.Millisecond
	perIdleTime := int(idleTime / uint64(pause))
	for name, k := range map[string]*step.Machine{
		"tables": bucket(1000, time.Second), // a key is idle after a millisecond
		"logs":   eventLog(1, time.Millisecond),
	} {
		looks := 0
		l, s, clk := newTestLimiter(t, step.NewMachine(freshCounter{k.Kernel, &looks}, kernel.InMemory))
		for i := range keys {
			require.True(t, l.Allow(fmt.Sprint(i)))
			clk.Advance(pause)
			if i%100 == 0 {
				require.LessOrEqual(t, s.Len(), perIdleTime*5/2, name)
			}
		}
		// A key is looked at when it is about to be forgotten, and at most twice before.
		assert.LessOrEqual(t, looks, 3*keys, name)
		assert.Positive(t, looks, name)
	}
}

// TestTablesShrinkSlowly: a table from which most keys have gone still has room for a
// quarter of them.
func TestTablesShrinkSlowly(t *testing.T) {
	budget.Alone(t)
	for name, k := range map[string]*step.Machine{"tables": bucket(1000, time.Second), "logs": eventLog(1, time.Millisecond)} {
		l, s, clk := newTestLimiter(t, k)
		bytes := func() uint64 { return s.Stats().Bytes }
		for i := range 100_000 {
			require.True(t, l.Allow(fmt.Sprint("flood ", i)))
		}
		was, rounds := bytes(), 0
		for ; bytes() > 200_000; rounds++ {
			clk.Advance(2 * idleTime)
			for i := range 1000 {
				require.True(t, l.Allow(fmt.Sprint("round ", rounds, " ", i)))
			}
			require.GreaterOrEqual(t, bytes(), was/8, "%s, round %d", name, rounds)
			was = bytes()
			require.Less(t, rounds, 8, "%s: %d bytes", name, was)
		}
	}
}
