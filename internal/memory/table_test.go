package memory

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGroupsFillCacheLines checks that a table begins where a
// cache line does, whatever its size, so that each of its groups is one.
func TestGroupsFillCacheLines(t *testing.T) {
	l, _, _ := newTestLimiter(t, bucket(10, time.Second))
	sh := l.fast.list()[0]
	for keys := uint32(1); keys < 3*splitAt; keys += 1 + keys/50 {
		tbl := newTable(sh, 1, keys)
		require.Zero(t, uintptr(unsafe.Pointer(&tbl.words[0]))%64, "%d groups", tbl.groups)
	}
}

// TestShardFillsACacheLine: the locks of two shards must not share a cache line.
func TestShardFillsACacheLine(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 {
		assert.EqualValues(t, 64, unsafe.Sizeof(shard{}))
	}
}
