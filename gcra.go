package ratelimit

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// gcra is the arithmetic of the continuous [TokenBucket] and of the
// [LeakyBucket], which are each other's mirror image: the generic cell rate
// algorithm (ITU-T I.371, 1996), after which a bucket needs no more memory
// than the instant at which it would be full again (or empty; in the
// algorithm's terms, the theoretical arrival time). With T the time that one
// event takes, n events are granted at t if
//
//	max(tat, t) + n·T ≤ t + depth·T
//
// and move tat to the left side. A reservation does the same at a later t, so
// that tat lies more than depth·T ahead of the clock while one is pending.
//
// T need not be a whole number of nanoseconds: three a second take 333,333,333⅓
// each. Times are therefore counted in units of 1/unit of a nanosecond, the
// coarsest in which T is whole; 1 or 3 for most rates that people choose. A
// state is one word of such units where that is wide enough, two if not; if it is
// to be portable, the whole ticks and the units beyond them.
//
// If limits vary, tat may also lie ahead because a burst was lowered, and a
// reservation is not to be overtaken when it is raised. So a further word has the
// latest instant that events were spent at.
type gcra struct {
	plain
	depth int             // most events at once
	cost  uint64          // T, in units; cost/unit is in lowest terms
	unit  uint64          // units in a tick
	span  uint128.Uint128 // depth·T, in units
	wide  bool            // whether tat needs two words, low word first
	split bool            // whether tat is in two words, the first of whole ticks
	keeps bool            // whether the last word is the latest instant
}

func newGCRA(rate Rate, depth int, f form, field string) (gcra, error) {
	cost, unit, ok := uint128.Ratio(uint64(rate.Per), uint64(rate.Events), f.tick)
	if !ok || f.portable && unit > portableMost {
		return gcra{}, invalid(field+".Rate", rate, "has too many events for this store")
	}
	k := gcra{depth: depth, cost: cost, unit: unit, split: f.portable}
	k.span = uint128.Mul(uint64(depth), k.cost)
	// The greatest tat is that of a full bucket at maxInstant < 2⁶², in units.
	// Up to 3 units a nanosecond and a span below 2⁶² keep it below 2⁶⁴.
	k.wide = !k.split && (k.unit > 3 || k.span.Hi != 0 || bits.Len64(k.span.Lo) > 62)
	if k.split && k.span.Div(k.unit) > portableMost {
		return gcra{}, invalid(field, fmt.Sprintf("{%v, %d at once}", rate, depth), fmt.Sprintf("must fill up within %v in this store", time.Duration(portableMost*f.tick)))
	}
	return k, f.count(depth, field)
}

func (k *gcra) limit() int { return k.depth }

func (k *gcra) width() int {
	width := 1
	if k.wide || k.split {
		width++
	}
	if k.keeps {
		width++
	}
	return width
}

// frontier returns the latest instant that events were spent at, if it is kept.
func (k *gcra) frontier(st []uint64) instant {
	if k.keeps {
		return st[len(st)-1]
	}
	return 0
}

func (k *gcra) load(st []uint64) uint128.Uint128 {
	switch {
	case k.wide:
		return uint128.Uint128{Hi: st[1], Lo: st[0]}
	case k.split:
		return uint128.Mul(st[0], k.unit).Add(uint128.From(st[1]))
	}
	return uint128.From(st[0])
}

func (k *gcra) store(st []uint64, tat uint128.Uint128) []uint64 {
	switch {
	case k.split:
		st[0] = tat.Div(k.unit)
		st[1] = tat.Sub(uint128.Mul(st[0], k.unit)).Lo
		return st
	case k.wide:
		st[1] = tat.Hi
	}
	st[0] = tat.Lo
	return st
}

// arrival returns the tat after events that take so long, at the time t.
func arrival(tat, t, events uint128.Uint128) uint128.Uint128 {
	return uint128.Max(tat, t).Add(events)
}

// grants reports whether events that move tat to where it is are granted at t.
func (k *gcra) grants(tat, t uint128.Uint128) bool { return !k.span.Less(tat.Sub(t)) }

// next returns the time of an instant, and the tat after n events then.
func (k *gcra) next(st []uint64, at instant, n int) (t, tat uint128.Uint128) {
	t = uint128.Mul(at, k.unit)
	return t, arrival(k.load(st), t, uint128.Mul(uint64(n), k.cost))
}

func (k *gcra) ready(st []uint64, now instant, n int) instant {
	now = max(now, k.frontier(st))
	t, tat := k.next(st, now, n)
	if k.grants(tat, t) {
		return now
	}
	return tat.Sub(k.span).DivCeil(k.unit)
}

func (k *gcra) spend(st []uint64, at instant, n int) []uint64 {
	_, tat := k.next(st, at, n)
	if k.keeps {
		st[len(st)-1] = at
	}
	return k.store(st, tat)
}

func (k *gcra) reserve(st []uint64, _, at instant, n int, to []trace) ([]uint64, []trace) {
	st, t := chained(k, st, at, n, func(st []uint64) [2]uint64 {
		tat := k.load(st)
		return [2]uint64{tat.Hi, tat.Lo}
	})
	return st, append(to, t)
}

// decide implements wordKernel. It is not used if wide: what it multiplies fits
// into 64 bits, else tat would not.
func (k *gcra) decide(word uint64, now instant, n int) (next uint64, granted bool) {
	t := uint128.From(now * k.unit)
	tat := arrival(uint128.From(word), t, uint128.From(uint64(n)*k.cost))
	return tat.Lo, k.grants(tat, t)
}

func (k *gcra) room(st []uint64, now instant) int {
	if now < k.frontier(st) {
		return 0 // a reservation is ahead
	}
	t := uint128.Mul(now, k.unit)
	free := t.Add(k.span).Sub(uint128.Max(k.load(st), t))
	return int(free.Div(k.cost)) // at most span/cost = depth
}

func (k *gcra) fresh(st []uint64) instant {
	return max(k.frontier(st), k.load(st).DivCeil(k.unit))
}

// giveBack makes the bucket as full as if the events had not been taken, or as it
// would be after as long a time. A reservation that is ahead counts on them.
func (k *gcra) giveBack(st []uint64, _, now instant, n int) []uint64 {
	tat := k.load(st)
	if now < k.frontier(st) || !k.grants(tat, uint128.Mul(now, k.unit)) {
		return st
	}
	return k.store(st, tat.Sub(uint128.Mul(uint64(n), k.cost)))
}

// leaky is a gcra seen as a queue that drains.
type leaky struct{ gcra }

// hold returns the time that the level at an instant needs to leak out.
func (k *leaky) hold(st []uint64, at instant) uint64 {
	return k.load(st).Sub(uint128.Mul(at, k.unit)).DivCeil(k.unit)
}

func (k *leaky) giveBack(st []uint64, _, _ instant, _ int) []uint64 { return st }

func (k *leaky) full(st []uint64, now instant, n int) bool {
	return k.ready(st, now, n) > now
}

// valid: tat is at most that of a full bucket at the end of time.
func (k *gcra) valid(st []uint64) bool {
	return k.frontier(st) <= maxInstant && !uint128.Mul(maxInstant, k.unit).Add(k.span).Less(k.load(st))
}
