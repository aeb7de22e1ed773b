package memory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
