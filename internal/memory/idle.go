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

func (sh *shard) sweepLocked(t *table, since kernel.Instant) {
	room := new([1]uint64)
	for p := range t.held() {
		sh.forgetIdle(t, p, since, room)
	}
}

// forgetIdle forgets the key at p if it has been idle since the given instant, so that its holds
// have ended by themselves. It returns what read does.
func (sh *shard) forgetIdle(
	t *table,
	p place,
	since kernel.Instant,
	room *[1]uint64,
) (k *step.Machine, st []uint64, idle bool) {
	k, st = sh.read(t, p, room)
	if k.Fresh(st) > since || !sh.freeze(t, p, st) {
		return k, st, false
	}
	sh.space.store.ended.Add(uint64(k.OpenHolds(st)))
	sh.forgetLocked(t, p)
	return k, st, true
}
