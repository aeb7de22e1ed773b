package memory

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
)

// A shard is one part of a space, with its own lock. On 64-bit machines it fills a
// cache line, so that the locks of neighbours do not share one.
type shard struct {
	space uint64 // the serial of its space
	first uint32 // index of its first directory entry

	depth uint32     // its directory entries are 1<<depth apart
	mu    sync.Mutex // protects depth and the fields below, and see guarantee 1 (table.go)
	used  uint32     // slots taken in the table, including those of forgotten keys
	keys  uint32     // keys held
	arena *arena     // of the states that are not words; nil if there are none
	next  uint32     // the slot where the next eviction starts

	inserts uint64 // keys inserted so far
	swept   uint64 // the instant of the last sweep
}

// owns reports whether the directory entry of id is one of the shard's.
func (sh *shard) owns(id identity) bool { return id.entry()&(1<<sh.depth-1) == uint64(sh.first) }

// states returns the arena, and makes one if there is none.
func (sh *shard) states() *arena {
	if sh.arena == nil {
		sh.arena = newArena(sh.newLoad(), 0, 0)
	}
	return sh.arena
}

// newLoad returns the load of a new table of the shard. It differs from shard to shard, so that
// they do not all grow at once.
func (sh *shard) newLoad() float64 {
	// Any sequence that spreads evenly between the bounds would do.
	return minLoad + (maxNewLoad-minLoad)*float64(bits.Reverse32(sh.first))/(1<<32)
}

// lockAll locks the shards, each once, and returns those that it has locked. The order is the same
// for all callers, so that they never wait for each other: by the serials of the spaces and, in a
// space, by the first entry in the directory. It reorders shards.
func lockAll(shards []*shard) []*shard {
	slices.SortFunc(shards, func(a, b *shard) int {
		return cmp.Or(cmp.Compare(a.space, b.space), cmp.Compare(a.first, b.first))
	})
	shards = slices.Compact(shards)
	for _, sh := range shards {
		sh.mu.Lock()
	}
	return shards
}

func unlockAll(shards []*shard) {
	for _, sh := range shards {
		sh.mu.Unlock()
	}
}
