package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// An epoch of a shard ends when one of its keys is evicted while in use, or reset. A grant
// remembers the epoch in which it was made. If another one has begun, its key may have been
// forgotten, and what is known of it now may be the events of others. Then nothing is given
// back. (Keys that are forgotten because they are idle do not matter: their grants do not
// count any more, and there is nothing to give back.)
//
// An epoch ends before the key can be inserted again. A shard that is split off continues the
// epoch. So if a key was forgotten between two requests, the second one finds another epoch
// than the first, wherever the key is. A caller without a lock reads the epoch after the state:
// if the key is forgotten after that, its state is Gone, and the caller starts over.
type epoch struct{ number atomic.Uint32 }

func (e *epoch) now() uint32 { return e.number.Load() }

// end ends the epoch. The caller holds the shard's lock, and has not forgotten the key yet.
func (e *epoch) end() { e.number.Add(1) }

// continues makes e, which is not used yet, the same as other.
func (e *epoch) continues(other *epoch) { e.number.Store(other.now()) }

// epoch returns the epoch of the shard of id.
func (sp *Tables) epoch(id identity) uint32 {
	for {
		sh := sp.at(id).shard
		if epoch := sh.epoch.now(); sp.at(id).shard == sh { // else the shard was split
			return epoch
		}
	}
}

// stepTraced applies a request that Traces to the state of id.
func (sp *Tables) stepTraced(id identity, st []uint64, req *kernel.Request, a *kernel.Answer) (changed bool) {
	epoch, returns := sp.epoch(id), sp.returns(id)
	req.Enter(epoch)
	_, changed = sp.k.Step(st, req, a)
	a.Stamp(epoch, returns)
	return changed
}

// epochOf returns the epoch of id, a key of the shard or one that is not stored. In a Varied, the
// key may be forgotten in the tables, too. The caller holds the lock.
func (sh *logShard) epochOf(id identity) uint32 {
	epoch := sh.epoch.now()
	if tables := sh.space.tables; tables != nil {
		epoch += tables.epoch(id)
	}
	return epoch
}
