package kernel

import "math"

// rollingWindow is the arithmetic of a RollingWindow: a ring with a slot for each period of
// the window. All slots together never have more than the quota.
type rollingWindow struct {
	ring
	quota   uint64
	perSlot uint64 // the most events in one period
}

// NewRollingWindow returns the kernel of a RollingWindow with periods of length ticks
// and, unless perPeriod is 0, at most perPeriod events in each.
func NewRollingWindow(quota, perPeriod int, periods, length uint64) Kernel {
	k := &rollingWindow{newRing(periods, length, quota), uint64(quota), math.MaxUint64}
	if perPeriod > 0 {
		k.perSlot = uint64(perPeriod)
	}
	return k
}

func (*rollingWindow) Kind() string { return "rolling" }

func (k *rollingWindow) Limit() int { return int(min(k.quota, k.perSlot)) }

func (k *rollingWindow) bucket(before, in uint64) uint64 {
	left := min(k.quota-min(before, k.quota), k.perSlot)
	return left - min(in, left)
}

func (k *rollingWindow) room(st []uint64, t *ringPosition) uint64 {
	used := k.used(st, t)
	return k.bucket(t.sum-used, used)
}

func (k *rollingWindow) Ready(st []uint64, now Instant, n int) Instant {
	now = max(now, k.Frontier(st))
	t := k.at(st, now)
	if k.room(st, &t) >= uint64(n) {
		return now
	}
	for {
		k.next(st, &t)
		if k.bucket(t.sum, 0) >= uint64(n) {
			return t.slot * k.length
		}
	}
}

func (k *rollingWindow) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if now < k.Frontier(st) {
		return st, false
	}
	t := k.at(st, now)
	if k.room(st, &t) < uint64(n) {
		return st, false
	}
	k.spend(st, &t, now, n)
	return st, true
}

func (k *rollingWindow) Remaining(st []uint64, now Instant) int {
	t := k.at(st, now)
	return int(k.room(st, &t))
}

func (k *rollingWindow) SharesStates(from Kernel) bool {
	old := from.(*rollingWindow)
	return k.sameSlots(&old.ring) && k.perSlot == old.perSlot
}
