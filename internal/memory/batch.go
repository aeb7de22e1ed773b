package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file decides on many keys of one space faster than in a loop.

// BatchKeys is the number of keys in a Batch. A core loads ten to twenty cache lines at once, so
// more keys would gain little.
const BatchKeys = 64

// A Batch has keys whose states are being loaded. The state of a key that was not used lately is
// not in a cache: waiting for it takes longer than deciding on it, but a core can wait for many at
// once.
type Batch [BatchKeys]identity

// Touch begins to load the states of the first keys, and returns of how many: all, or BatchKeys.
// TakeOf then decides on each of them. The loads do not depend on each other, and no branch depends
// on them, so they overlap.
func (sp *Space) Touch(keys []string, b *Batch) (n int) {
	n = min(len(keys), BatchKeys)
	for i, key := range keys[:n] {
		b[i] = sp.store.identify(key)
	}
	for _, id := range b[:n] {
		t := sp.tableOf(id)
		// The compiler keeps the load, because it is atomic.
		_ = atomic.LoadUint64(&t.words[t.searchStart(id)])
	}
	return n
}

// TakeOf applies req to the i-th key of b, and fills in the answer.
func (sp *Space) TakeOf(b *Batch, i int, req *step.Request, a *step.Answer) {
	sp.apply(b[i], sp.base, req, a)
}
