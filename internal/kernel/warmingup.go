package kernel

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/warmup"
)

// warmingUp is the arithmetic of a WarmingUp, after Guava's SmoothWarmingUp. Its state is
// the warmth, as the bits of a float64, and the next free time, in nanoseconds (in a
// portable state, in whole ticks and nanoseconds). The warmth is the maximum of stored
// permits less those stored, at the next free time; it is 0 when cold.
type warmingUp struct {
	Defaults
	encoding Encoding
	warmup.Constants
}

// NewWarmingUp returns the kernel of a WarmingUp.
func NewWarmingUp(events int, per, warm time.Duration, coldFactor float64, enc Encoding) Kernel {
	return &warmingUp{encoding: enc, Constants: warmup.New(events, per, warm, coldFactor)}
}

func (*warmingUp) Kind() string { return "warming" }

func (k *warmingUp) Limit() int { return k.Constants.Limit }

func (k *warmingUp) Width() int {
	if k.encoding.Portable {
		return 3
	}
	return 2
}

// free returns the next free time, in nanoseconds.
func (k *warmingUp) free(st []uint64) uint64 {
	if k.encoding.Portable {
		return st[1]*k.encoding.Tick + st[2]
	}
	return st[1]
}

func (k *warmingUp) store(st []uint64, warmth float64, free uint64) []uint64 {
	st[0], st[1] = math.Float64bits(warmth), free
	if k.encoding.Portable {
		st[1], st[2] = free/k.encoding.Tick, free%k.encoding.Tick
	}
	return st
}

// ticks returns the first tick at or after an instant in nanoseconds.
func (k *warmingUp) ticks(ns uint64) Instant {
	if k.encoding.Tick == 1 { // avoids a division
		return ns
	}
	return CeilDiv(ns, k.encoding.Tick)
}

// Frontier returns the next free time, which does not depend on the number of events.
func (k *warmingUp) Frontier(st []uint64) Instant { return k.ticks(k.free(st)) }

func (k *warmingUp) Ready(st []uint64, now Instant, _ int) Instant {
	return max(now, k.Frontier(st))
}

func (k *warmingUp) Spend(st []uint64, at Instant, n int) []uint64 {
	at = max(at, k.Frontier(st))
	warmth := k.warmth(st, at)
	stored := k.Stored - warmth
	taken := lesser(float64(n), stored)
	// The conversions keep compilers from fusing products and sums, so that Redis
	// computes the same result bit by bit.
	cost := k.cost(stored, taken) + float64((float64(n)-taken)*k.Stable)
	return k.store(st, warmth+taken, After(at*k.encoding.Tick, saturated(math.Round(cost))))
}

func (k *warmingUp) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if now < k.Frontier(st) {
		return st, false
	}
	k.Spend(st, now, n)
	return st, true
}

// cost returns how long it takes to hand out taken of the stored permits: the integral
// of the time per permit, which is k.Stable below the threshold and rises by k.Slope
// above it.
func (k *warmingUp) cost(stored, taken float64) float64 {
	cost := float64(taken * k.Stable)
	if above := stored - k.Threshold; above > 0 {
		part := lesser(taken, above)
		cost += float64(k.Slope * part * (above - float64(part/2)))
	}
	return cost
}

// lesser is min for numbers that are not NaN. It is a branch, which need not wait for the
// numbers: with min, a decision takes 6 ns longer.
func lesser(x, y float64) float64 {
	if y < x {
		return y
	}
	return x
}

func (k *warmingUp) warmth(st []uint64, t Instant) float64 {
	if t >= k.Fresh(st) {
		return 0
	}
	warmth := math.Float64frombits(st[0])
	if ns, free := t*k.encoding.Tick, k.free(st); ns > free {
		warmth -= float64(ns-free) / k.Cooldown
	}
	return max(0, warmth)
}

func (k *warmingUp) Remaining([]uint64, Instant) int { return k.Limit() }

func (k *warmingUp) Fresh(st []uint64) Instant {
	return k.ticks(After(k.free(st), saturated(math.Ceil(math.Float64frombits(st[0])*k.Cooldown))))
}

// saturated converts ns, a whole number, to an integer, at most Forever.
func saturated(ns float64) uint64 {
	if ns >= float64(Forever) {
		return Forever
	}
	return uint64(ns)
}

func (k *warmingUp) Valid(st []uint64, enc Encoding) bool {
	if enc.Portable && (st[1] > enc.mostAdded() || st[2] >= enc.Tick) {
		return false
	}
	warmth := math.Float64frombits(st[0])
	return warmth >= 0 && warmth <= k.Stored*(1+1e-9) // false for NaN, too
}

func (k *warmingUp) Adopt(from Kernel, st []uint64, now, _ Instant) (_ []uint64, lasting bool) {
	if k.SharesStates(from) {
		return slices.Clone(st), true
	}
	old := from.(*warmingUp)
	at := old.Ready(st, now, 1)
	share := old.warmth(st, at) / old.Stored
	return k.store(
		make([]uint64, k.Width()),
		min(share, 1)*k.Stored,
		max(old.free(st), now*k.encoding.Tick),
	), false
}

func (k *warmingUp) SharesStates(from Kernel) bool {
	return k.Constants == from.(*warmingUp).Constants
}

func (k *warmingUp) Chargeable(st []uint64, now Instant, enc Encoding) uint64 {
	tick := float64(enc.Tick)
	at := max(now, k.Frontier(st))
	// What all stored permits cost at most.
	cold := k.ticks(saturated(math.Ceil(k.cost(k.Stored, k.Stored))))
	if After(at, cold) >= enc.LastInstant() {
		return 0
	}
	left := float64(float64(enc.LastInstant()-at-cold) * tick) // Redis computes the same
	return min(saturated(math.Floor(left/k.Stable)), enc.MostCount())
}

// Credit compares the next free time with that of twice as many events, requested when idle.
func (k *warmingUp) Credit(st []uint64, at Instant) uint64 {
	free := func(st []uint64, at Instant, n int) uint64 {
		var next [3]uint64
		copy(next[:], st)
		return k.free(k.Spend(next[:k.Width()], at, n))
	}
	twice := 2 * min(k.Limit(), math.MaxInt/2)
	most := After(at*k.encoding.Tick, free(nil, 0, twice))
	return uint64(sort.Search(twice, func(n int) bool { return free(st, at, n+1) > most }))
}

func (k *warmingUp) MissesLess(st, other []uint64, now Instant) bool {
	return k.Credit(st, now) > k.Credit(other, now)
}

func (k *warmingUp) Drifts() bool { return true }

// Marks are the instant of the hold, plus 1, and the state before it.
func (k *warmingUp) Marks() int { return 1 + k.Width() }

func (k *warmingUp) Mark(st []uint64, at Instant, _ int, mark []uint64) {
	mark[0] = at + 1
	copy(mark[1:], st)
}

// Settle takes the unused events back if nothing was granted since: the state is the one that the
// hold left. Otherwise, others have waited for them already.
func (k *warmingUp) Settle(st []uint64, _ Instant, r Refund, m Marks) []uint64 {
	at, before := m.Of(r.Index)[0], m.Of(r.Index)[1:]
	if at == 0 || r.Unused == 0 {
		return st
	}
	var w [3]uint64
	after := w[:len(st)]
	copy(after, before)
	if slices.Equal(k.Spend(after, at-1, r.N), st) {
		copy(st, before)
		if left := r.N - r.Unused; left > 0 {
			k.Spend(st, at-1, left)
		}
	}
	return st
}

func (k *warmingUp) Carry(from Kernel, _, _ []uint64, _ Instant, old, mark []uint64) {
	if k.SharesStates(from) {
		copy(mark, old)
	}
}

func (k *warmingUp) ValidMark(mark []uint64) bool {
	return mark[0] <= k.encoding.LastInstant()+1 && k.Valid(mark[1:], k.encoding)
}
