package ratelimit

import (
	"fmt"
	"math"
	"time"
)

// A RollingWindow recalculates at the start of each Period what a key may do
// in it: Quota less what it was granted in the last Window − Period, and at
// most PeriodLimit. A key that was never seen has the whole of that.
//
// So 10,000 per 24 hours, recalculated hourly with at most 1,000 an hour, lets
// a key run for ten hours, then makes it wait until the first of those falls
// out of the window. It bounds every 24 hours that begin on the hour, and
// changes only on the hour, which people can be told. A span as long as
// Window that begins elsewhere may see as much more as one period may hold.
// Its state is a word, and half a word for each period in the window (a word
// if Quota is above 2³²−1); the time of a decision grows with their number.
//
// It is the limit that the .uk registry, Nominet, describes for its domain
// availability checker.
type RollingWindow struct {
	Quota       int           // the most events in Window, counted in whole periods
	Window      time.Duration // the length of the window
	Period      time.Duration // how often the quota is recalculated; must divide Window
	PeriodLimit int           // the most events in one period; 0 means no such limit
}

func (a RollingWindow) compile(f form) (kernel, error) {
	switch {
	case a.Quota < 1:
		return nil, invalid("RollingWindow.Quota", a.Quota, "must be at least 1")
	case a.Window < 1:
		return nil, invalid("RollingWindow.Window", a.Window, "must be at least 1ns")
	case a.Period < 1 || a.Window%a.Period != 0:
		return nil, invalid("RollingWindow.Period", a.Period, fmt.Sprintf("must be at least 1ns and divide Window, %v", a.Window))
	case a.Window/a.Period > maxSlots:
		return nil, invalid("RollingWindow.Period", a.Period, fmt.Sprintf("must be at least a %dth of Window, %v, for each period takes memory", maxSlots, a.Window))
	case a.PeriodLimit < 0:
		return nil, invalid("RollingWindow.PeriodLimit", a.PeriodLimit, "must be at least 1, or 0 for no such limit")
	}
	length, err := f.ticks(a.Period, "RollingWindow.Period")
	if err == nil {
		_, err = f.ticks(a.Window, "RollingWindow.Window") // not too long
	}
	if err == nil {
		err = f.count(a.Quota, "RollingWindow.Quota")
	}
	if err == nil {
		err = f.slots(uint64(a.Window/a.Period), "RollingWindow.Window / Period")
	}
	k := &rolling{newRing(uint64(a.Window/a.Period), length, a.Quota), uint64(a.Quota), math.MaxUint64}
	if a.PeriodLimit > 0 {
		k.perSlot = uint64(a.PeriodLimit)
	}
	return k, err
}

// rolling is the arithmetic of a [RollingWindow]: a ring with a slot for each
// period of the window. All of them together never hold more than the quota.
type rolling struct {
	ring
	quota   uint64
	perSlot uint64 // the most events in one period
}

func (k *rolling) limit() int { return int(min(k.quota, k.perSlot)) }

// counts returns the events in the periods before slot that still count there,
// and in its own.
func (k *rolling) counts(st []uint64, slot uint64) (before, in uint64) {
	in = k.back(st, slot, 0)
	return k.sum(st, slot-min(slot, k.slots-1), slot) - in, in
}

// bucket returns what is left of a period's bucket.
func (k *rolling) bucket(before, in uint64) uint64 {
	left := min(k.quota-min(before, k.quota), k.perSlot)
	return left - min(in, left)
}

func (k *rolling) ready(st []uint64, now instant, n int) instant {
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

func (k *rolling) room(st []uint64, now instant) int {
	if now < k.frontier(st) {
		return 0 // a reservation is ahead
	}
	return int(k.bucket(k.counts(st, now/k.length)))
}

func (k *rolling) valid(st []uint64) bool {
	return k.holds(st, k.slots, k.quota) && k.back(st, k.latest(st), 0) <= k.perSlot
}
