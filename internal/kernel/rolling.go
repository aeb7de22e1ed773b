package kernel

import "math"

// rolling is the arithmetic of a RollingWindow: a ring with a slot for each period of
// the window. All slots together never have more than the quota.
type rolling struct {
	ring
	quota   uint64
	perSlot uint64 // the most events in one period
}

// NewRollingWindow returns the kernel of a RollingWindow with periods of length ticks
// and, unless perPeriod is 0, at most perPeriod events in each.
func NewRollingWindow(quota, perPeriod int, periods, length uint64) Kernel {
	k := &rolling{newRing(periods, length, quota), uint64(quota), math.MaxUint64}
	if perPeriod > 0 {
		k.perSlot = uint64(perPeriod)
	}
	return k
}

func (k *rolling) Limit() int { return int(min(k.quota, k.perSlot)) }

// counts returns the events in the periods before slot that still count at slot, and
// those in slot itself.
func (k *rolling) counts(st []uint64, slot uint64) (before, in uint64) {
	in = k.back(st, slot, 0)
	return k.sum(st, slot-min(slot, k.slots-1), slot) - in, in
}

// bucket returns what is left of a period's bucket.
func (k *rolling) bucket(before, in uint64) uint64 {
	left := min(k.quota-min(before, k.quota), k.perSlot)
	return left - min(in, left)
}

func (k *rolling) Ready(st []uint64, now Instant, n int) Instant {
	now = max(now, k.frontier(st))
	slot := now / k.length
	before, in := k.counts(st, slot)
	for k.bucket(before, in) < uint64(n) {
		slot++
		before += in - k.back(st, slot, k.slots)
		in = 0
		now = slot * k.length
	}
	return now
}

func (k *rolling) Remaining(st []uint64, now Instant) int {
	return int(k.bucket(k.counts(st, now/k.length)))
}

func (k *rolling) Adopt(from Kernel, st []uint64, now Instant) []uint64 {
	old := from.(*rolling)
	before, in := old.counts(st, max(old.frontier(st), now)/old.length)
	return k.adoptRing(&old.ring, st, before+in, now)
}
