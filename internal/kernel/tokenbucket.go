package kernel

import (
	"fmt"
	"time"
)

// NewTokenBucket returns the kernel of a TokenBucket whose tokens come evenly, so many
// events per span. Errors tell the rate, and name field.
func NewTokenBucket(events int, per time.Duration, rate fmt.Stringer, burst int, f Form, field string) (Kernel, error) {
	k, err := newGCRA(events, per, rate, burst, f, field)
	return &k, err
}

// lumps is the arithmetic of a TokenBucket with RefillInterval. Its state
// has two words: the instant from which the lumps are counted (that of the
// event which took the bucket from full, or of a lump since), and the tokens
// missing at that instant. If none are missing, the first word means nothing.
type lumps struct {
	unwound
	burst uint64 // the most tokens
	lump  uint64 // how many arrive at once
	per   uint64 // ticks between lumps
}

// NewIntervalBucket returns the kernel of a TokenBucket with RefillInterval: lumps of so
// many tokens come every so many ticks.
func NewIntervalBucket(burst, lump int, per uint64) Kernel {
	return &lumps{burst: uint64(burst), lump: uint64(lump), per: per}
}

func (k *lumps) Limit() int { return int(k.burst) }
func (k *lumps) Width() int { return 2 }

func (k *lumps) frontier(st []uint64) Instant { return st[0] }

// refilled returns the state at t, which is not before st's: its words, with
// the lumps that have come by then counted in.
func (k *lumps) refilled(st []uint64, t Instant) (anchor Instant, missing uint64) {
	anchor, missing = st[0], st[1]
	came := (t - anchor) / k.per
	if came >= ceilDiv(missing, k.lump) {
		return t, 0
	}
	return anchor + came*k.per, missing - came*k.lump
}

func ceilDiv(a, b uint64) uint64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}

func (k *lumps) Ready(st []uint64, now Instant, n int) Instant {
	now = max(now, k.frontier(st))
	anchor, missing := k.refilled(st, now)
	if missing+uint64(n) <= k.burst {
		return now
	}
	return k.lumpsAfter(anchor, ceilDiv(missing+uint64(n)-k.burst, k.lump))
}

// lumpsAfter returns the instant at which the count-th lump after anchor comes.
func (k *lumps) lumpsAfter(anchor Instant, count uint64) Instant {
	if count > (Forever-anchor)/k.per {
		return Forever
	}
	return anchor + count*k.per
}

func (k *lumps) Spend(st []uint64, at Instant, n int) []uint64 {
	anchor, missing := k.refilled(st, at)
	st[0], st[1] = anchor, missing+uint64(n)
	return st
}

func (k *lumps) reserve(st []uint64, _, at Instant, n int, to []trace) ([]uint64, []trace) {
	order := func(st []uint64) [2]uint64 { return [2]uint64{0, st[1]} }
	st, t := chained(st, order, func(st []uint64) []uint64 { return k.Spend(st, at, n) })
	return st, append(to, t)
}

func (k *lumps) Room(st []uint64, now Instant) int {
	_, missing := k.refilled(st, now)
	return int(k.burst - min(missing, k.burst))
}

func (k *lumps) Fresh(st []uint64) Instant {
	return k.lumpsAfter(st[0], ceilDiv(st[1], k.lump))
}

func (k *lumps) giveBack(st []uint64, _, now Instant, n int) []uint64 {
	if now < st[0] {
		return st // a reservation that is ahead counts on them
	}
	st[0], st[1] = k.refilled(st, now)
	st[1] -= min(st[1], uint64(n))
	return st
}

func (k *lumps) Valid(st []uint64) bool { return st[0] <= MaxInstant && st[1] <= mostCounted }

// Adopt counts the lumps from now on, if they come at another pace.
func (k *lumps) Adopt(from Kernel, st []uint64, now Instant) []uint64 {
	old := from.(*lumps)
	anchor, missing := st[0], st[1]
	if now > anchor {
		anchor, missing = old.refilled(st, now)
	}
	if old.per != k.per {
		anchor = max(anchor, now)
	}
	return []uint64{anchor, missing}
}
