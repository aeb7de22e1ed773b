package memory

import (
	"iter"
	"sync"
	"sync/atomic"
)

// A directory divides a space into shards (extendible hashing, Fagin et al., ACM TODS
// 4(3), 1979). Its entries map the low bits of an identity to a table, which each shard
// publishes. A space starts with one shard and one entry. A shard that is split gives
// half of its entries, with their keys, to a new shard. If it has only one entry, the
// directory is doubled first.
//
//	directory    0   1   2   3
//	before       A   B   A   C     A has depth 1, B and C have depth 2
//	A is split   A   B   D   C     all have depth 2
//
//	directory    0   1   2   3   4   5   6   7
//	B is split   A   B   D   C   A   E   D   C     B and E have depth 3
//
// The entries of a shard change only under the shard's lock. So a caller that has
// acquired the lock looks in the directory again.
type directory struct {
	entries atomic.Pointer[[]atomic.Pointer[table]] // the length is a power of two

	fewest, most int    // shards: while there are fewer than fewest, they are split early
	splitAt      uint64 // most keys of a shard; the constant, except in tests

	mu sync.Mutex // protects entries against another change
}

const (
	// splitAt is a number of keys. Replacing their table takes about a millisecond, during
	// which callers of that shard wait. With half of it, a forced collection takes 0.1 ms
	// longer for five million keys (0.33 ms instead of 0.22 on one core), because each table
	// is a span to be swept, and replacing takes half the time.
	splitAt = 8192

	fewestShards = 64      // with fewer, concurrent callers would often wait for the same lock
	mostShards   = 1 << 16 // after that, shards grow instead
	splitEarlyAt = 8
)

// init prepares a directory with one shard, which publishes t, for a store with room for maxKeys
// keys.
func (d *directory) init(maxKeys int64, t *table) {
	entries := make([]atomic.Pointer[table], 1)
	d.entries.Store(&entries)
	d.fewest = shardCount(fewestShards, maxKeys)
	d.most = shardCount(mostShards, maxKeys)
	d.splitAt = splitAt
	d.publish(t)
}

// tableOf returns the table of the shard to which id belongs.
func (d *directory) tableOf(id identity) *table {
	entries := *d.entries.Load()
	return entries[id.entry()&uint64(len(entries)-1)].Load()
}

// current returns the table of a shard. The caller holds the lock of the shard.
func (d *directory) current(sh *shard) *table { return (*d.entries.Load())[sh.first].Load() }

// lock locks the shard to which id belongs, and returns it with its table.
func (d *directory) lock(id identity) (*shard, *table) {
	for {
		sh := d.tableOf(id).shard
		sh.mu.Lock()
		t := d.tableOf(id)
		if t.shard == sh { // guarantee 1
			return sh, t
		}
		sh.mu.Unlock()
	}
}

// publish points the entries of t's shard, which are first and every 1<<depth after it,
// to t. The caller holds the shard's lock.
func (d *directory) publish(t *table) {
	first, depth := t.shard.first, t.shard.depth
	d.mu.Lock()
	defer d.mu.Unlock()
	entries := *d.entries.Load()
	for len(entries) < 1<<depth {
		twice := make([]atomic.Pointer[table], 2*len(entries)) // the entries twice in a row
		for i := range twice {
			twice[i].Store(entries[i%len(entries)].Load())
		}
		entries = twice
	}
	for i := int(first); i < len(entries); i += 1 << depth {
		entries[i].Store(t)
	}
	d.entries.Store(&entries)
}

// shards iterates over the shards whose first entry is at least from, also over those that are
// split off meanwhile: they come after the shard that is split.
func (d *directory) shards(from int) iter.Seq[*shard] {
	return func(yield func(*shard) bool) {
		for i := from; ; i++ {
			entries := *d.entries.Load()
			if i >= len(entries) {
				return
			}
			if sh := entries[i].Load().shard; sh.first == uint32(i) && !yield(sh) {
				return
			}
		}
	}
}

// splits reports whether a shard of a depth is to be split if it has that many keys.
func (d *directory) splits(keys uint64, depth uint32) bool {
	switch shards := 1 << depth; {
	case shards >= d.most:
		return false
	case shards < d.fewest:
		return keys > min(splitEarlyAt, d.splitAt)
	}
	return keys > d.splitAt
}

// shardCount returns the number of shards that a space may have: n, a power of two, or fewer if
// maxKeys, the bound of the store, is so low that most shards would be empty. 0 is no bound.
func shardCount(n int, maxKeys int64) int {
	for maxKeys > 0 && n > 1 && int64(n)*32 > maxKeys {
		n /= 2
	}
	return n
}
