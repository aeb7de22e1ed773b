package memory

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// TestSplit grows a limiter until each directory entry has a shard of its own, and
// further, and checks that every key has kept its state.
func TestSplit(t *testing.T) {
	for _, alg := range []*step.Machine{
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
		require.Greater(t, len(l.fast.list()), l.fast.most*8/10)
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
	sh := sp.list()[0]
	sp.most = 1024
	sp.publish(sp.current(sh))
	entries := make([]atomic.Pointer[table], sp.most)
	for i := range entries {
		entries[i].Store(sp.current(sh))
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
			if directory[len(directory)-1].Load().shard == sh { // the other one may have been split as well
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
		l.fast.replaceTable(sh, l.fast.current(sh), 1)
		sh.mu.Unlock()
		wg.Wait()
		s.check(t)
	}
}
