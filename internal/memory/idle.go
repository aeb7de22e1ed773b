package memory

import (
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// # Idle keys
//
// Most clients are far below their limit, so their keys are idle when they come back.
// Inserting a key takes several times as long as a decision. So an idle key is kept for
// idleTime after it became idle, unless the store is full: then it goes first. Shrink
// also forgets all idle keys.
//
// There is no sweeper. A caller that inserts a key sweeps its shard first if the last
// sweep was at least idleTime ago (every fourth caller looks). So no key is looked at
// more often than that, and a key that nobody uses is forgotten between one and two
// idleTimes after it became idle, if its shard gets new keys. If a sweep leaves a table
// sparse, a smaller one replaces it, but not one of less than a quarter: the keys may come
// back.

// idleTime is how long an idle key is kept, in nanoseconds.
const idleTime = 5e9

// sweep forgets the keys of a shard, whose lock the caller holds, that have been idle since an
// instant.
func (sp *Space) sweep(sh *shard, t *table, since kernel.Instant) {
	room := new([1]uint64)
	for at := range t.held() {
		ls := lockedSlot{sp, sh, t, at}
		ls.forgetIdle(since, room)
	}
}

// forgetIdle forgets the key if it has been idle since the given instant, so that its holds have
// ended by themselves. It also returns what read does.
func (ls *lockedSlot) forgetIdle(
	since kernel.Instant,
	room *[1]uint64,
) (k *step.Machine, st step.State, idle bool) {
	k, st = ls.read(room)
	if k.FreshIn(st) > since || !ls.freeze(st) {
		return k, st, false
	}
	ls.space.store.ended.Add(uint64(k.OpenHolds(st)))
	ls.forget()
	return k, st, true
}
