package memory

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// TestGrowthLosesNoUpdate lets goroutines spend from the same keys while new
// keys make their tables be replaced all the time, others are reset, and the
// store shrinks: each of the keys is granted exactly its limit.
func TestGrowthLosesNoUpdate(t *testing.T) {
	for _, alg := range []*kernel.Compiled{
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
		assert.Greater(t, len(l.fast.evictees()), 4*fewestShards, "shards were split")
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
	p, ok := tbl.find(sp.store.identify("key"))
	require.True(t, ok)
	seen := sh.read(tbl, p, make([]uint64, 1))
	require.True(t, l.AllowN("key", 10), "it does not need the lock")
	require.False(t, sh.freeze(tbl, p, seen))
	require.True(t, sh.freeze(tbl, p, sh.read(tbl, p, make([]uint64, 1))))
	*tbl.word(p) = seen[0]
	sh.mu.Unlock()
	require.True(t, l.AllowN("key", 10))
	require.False(t, sh.evict(candidate{id: sp.store.identify("key"), remaining: 1}, 0, 1), "it has no events remaining")
	require.False(t, l.Allow("key"))
}

// TestSplit grows a limiter until each directory entry has a shard of its own, and
// further, and checks that every key has kept its state.
func TestSplit(t *testing.T) {
	for _, alg := range []*kernel.Compiled{
		bucket(10, time.Hour),
		sliding(10, time.Hour, 1),
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
			require.Equal(t, 9-i%10, d.Remaining, "%v, key %d", alg.Kind(), i)
		}
		clk.Advance(24 * time.Hour)
		s.Shrink()
		assert.Zero(t, s.Len())
		assert.Less(t, s.Stats().Bytes, uint64(300_000))
		s.check(t)
	}
}

// newSplitting returns a limiter with one shard, which is split when its table is next
// replaced, and that shard.
func newSplitting(t *testing.T) (*limiter, *Store, *shard) {
	l, s, _ := newTestLimiter(t, bucket(10, time.Hour), withMaxKeys(31))
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

// TestSplitLocksBoth observes a split from another goroutine: once that has the new
// shard's lock, all of the shard's entries must lead to it.
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

// TestSplitWhileWaiting makes new keys wait for the lock of a shard while it is split:
// half of them then belong to the other shard.
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
		now, _ := l.timeline.Now()
		sh.replaceLocked(sh.current(), now, 1)
		sh.mu.Unlock()
		wg.Wait()
		s.check(t)
	}
}

// TestGroupsFillCacheLines checks that a table of one-word states begins where a
// cache line does, whatever its size, so that each of its groups is one.
func TestGroupsFillCacheLines(t *testing.T) {
	l, _, _ := newTestLimiter(t, bucket(10, time.Second))
	sh := l.fast.evictees()[0].(*shard)
	for keys := uint64(1); keys < 3*splitAt; keys += 1 + keys/50 {
		tbl := sh.newTable(keys)
		require.EqualValues(t, 8, tbl.size)
		require.Zero(t, uintptr(unsafe.Pointer(&tbl.words[0]))%64, "%d groups", tbl.groups)
	}
}

// TestShardFillsACacheLine: the locks of two shards must not share a cache line.
func TestShardFillsACacheLine(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 {
		assert.EqualValues(t, 64, unsafe.Sizeof(shard{}))
		assert.EqualValues(t, candidateSize, unsafe.Sizeof(candidate{}), "what Stats says")
	}
}
