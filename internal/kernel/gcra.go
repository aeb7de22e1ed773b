package kernel

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// gcra is the arithmetic of the continuous TokenBucket and of the LeakyBucket, which
// are mirror images of each other: the generic cell rate algorithm (ITU-T I.371, 1996).
// A bucket needs no more memory than the instant at which it is full again (or empty),
// called the theoretical arrival time, tat. If T is the time per event, n events are
// granted at t if
//
//	max(tat, t) + n·T ≤ t + depth·T
//
// and tat becomes the left side. A reservation does the same at a later t, so while one
// is pending, tat may lie more than depth·T ahead of the clock.
//
// T need not be a whole number of nanoseconds: at three events a second, it is
// 333,333,333⅓ ns. So times are counted in units of 1/unit of a nanosecond, where unit
// is the least number for which T is whole: 1 or 3 for most rates. A state is one word
// of such units if that is wide enough, and two if not. A portable state is the whole
// ticks, and the units beyond them.
//
// If limits vary, tat may also lie ahead because a burst was lowered, and a higher limit must not
// let a caller overtake a reservation. So a further word has the latest instant at which events
// were spent. A hold that is settled while a reservation is ahead must not let a caller overtake it
// either, so a TokenBucket has that word in all states that need more than one anyway.
type gcra struct {
	Defaults
	depth int             // most events at once
	cost  uint64          // T, in units; cost/unit is in lowest terms
	unit  uint64          // units in a tick
	span  uint128.Uint128 // depth·T, in units
	form  tatForm
	last  lastWord
}

// A tatForm says which words of a state are tat.
type tatForm uint8

const (
	oneWord       tatForm = iota // the first one, in units
	twoWords                     // the first two, in units, the low word first
	ticksAndUnits                // whole ticks, and the units beyond them
)

// A lastWord says what a state has in a further word, if it has one.
type lastWord uint8

const (
	noInstant    lastWord = iota // there is none
	latestSpent                  // the latest instant at which events were spent
	turnsAreOver                 // of a queue, when the turns of all reservations are over
)

// newGCRA returns the arithmetic of a bucket that holds depth events and gains or loses
// events per span. Errors name rate as the Rate of field.
func newGCRA(
	events int,
	per time.Duration,
	rate fmt.Stringer,
	depth int,
	enc Encoding,
	field string,
) (gcra, error) {
	cost, unit, ok := uint128.Ratio(uint64(per), uint64(events), enc.Tick)
	if !ok || enc.Portable && unit > portableMost {
		return gcra{}, param.Invalid(field+".Rate", rate, "has too many events for this store")
	}
	if enc.Portable && cost > portableMost {
		most := time.Duration(portableMost)
		return gcra{}, param.Invalid(
			field+".Rate",
			rate,
			fmt.Sprintf(
				"must have a Per of at most %v, or a multiple of %v up to %v, in this store",
				most,
				time.Duration(enc.Tick),
				most*time.Duration(enc.Tick),
			),
		)
	}
	k := gcra{depth: depth, cost: cost, unit: unit}
	if enc.Varies {
		k.last = latestSpent
	}
	k.span = uint128.Mul(uint64(depth), k.cost)
	// The greatest tat is that of a full bucket at MaxInstant < 2⁶², in units.
	// Up to 3 units a nanosecond and such a span keep it below NoWord.
	switch {
	case enc.Portable:
		k.form = ticksAndUnits
	case k.unit > 3 || !k.span.Less(uint128.From(1<<62-1<<32)):
		k.form = twoWords
	}
	if enc.Portable && k.span.Div(k.unit) > portableMost {
		return gcra{}, param.Invalid(
			field,
			fmt.Sprintf("{%v, %d at once}", rate, depth),
			fmt.Sprintf(
				"must fill up within %v in this store",
				time.Duration(portableMost*enc.Tick),
			),
		)
	}
	return k, nil
}

func (*gcra) Kind() string { return "gcra" }

func (k *gcra) Limit() int { return k.depth }

// cells returns the arithmetic that two kinds of bucket share.
func (k *gcra) cells() *gcra { return k }

func (k *gcra) Width() int {
	if k.last != noInstant {
		return k.Marks() + 1
	}
	return k.Marks()
}

// latest returns the latest instant at which events were spent or, in a queue, the
// instant at which the turns of all reservations are over. It is 0 if that is not kept.
func (k *gcra) latest(st []uint64) Instant {
	if k.last != noInstant {
		return st[len(st)-1]
	}
	return 0
}

func (k *gcra) Frontier(st []uint64) Instant {
	if k.last == latestSpent {
		return k.latest(st)
	}
	return 0
}

func (k *gcra) load(st []uint64) uint128.Uint128 {
	switch k.form {
	case twoWords:
		return uint128.Uint128{Hi: st[1], Lo: st[0]}
	case ticksAndUnits:
		return uint128.Mul(st[0], k.unit).Add(uint128.From(st[1]))
	}
	return uint128.From(st[0])
}

func (k *gcra) store(st []uint64, tat uint128.Uint128) []uint64 {
	switch k.form {
	case ticksAndUnits:
		st[0] = tat.Div(k.unit)
		st[1] = tat.Sub(uint128.Mul(st[0], k.unit)).Lo
		return st
	case twoWords:
		st[1] = tat.Hi
	}
	st[0] = tat.Lo
	return st
}

func arrival(tat, t, events uint128.Uint128) uint128.Uint128 {
	return uint128.Max(tat, t).Add(events)
}

// grants reports whether events that move tat to the given value are granted at t.
func (k *gcra) grants(tat, t uint128.Uint128) bool { return !k.span.Less(tat.Sub(t)) }

// next returns an instant in units, and the tat after n events are spent then.
func (k *gcra) next(st []uint64, at Instant, n int) (t, tat uint128.Uint128) {
	t = uint128.Mul(at, k.unit)
	return t, arrival(k.load(st), t, uint128.Mul(uint64(n), k.cost))
}

// Ready rounds up to a whole tick, and only once, at the end. So one tick before the result, the
// events are not granted.
func (k *gcra) Ready(st []uint64, now Instant, n int) Instant {
	now = max(now, k.Frontier(st))
	t, tat := k.next(st, now, n)
	if k.grants(tat, t) {
		return now
	}
	return tat.Sub(k.span).DivCeil(k.unit)
}

func (k *gcra) Spend(st []uint64, at Instant, n int) []uint64 {
	at = max(at, k.Frontier(st))
	_, tat := k.next(st, at, n)
	if k.last == latestSpent {
		st[len(st)-1] = at
	}
	return k.store(st, tat)
}

func (k *gcra) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if now < k.Frontier(st) {
		return st, false
	}
	if k.form != oneWord {
		t, tat := k.next(st, now, n)
		if !k.grants(tat, t) {
			return st, false
		}
		k.store(st, tat)
	} else {
		tat, granted := k.Decide(st[0], now, n)
		if !granted {
			return st, false
		}
		st[0] = tat
	}
	if k.last == latestSpent {
		st[len(st)-1] = now
	}
	return st, true
}

// Decide implements Word. It is called only if tat is one word. Products fit into 64 bits,
// because tat does.
func (k *gcra) Decide(word uint64, now Instant, n int) (next uint64, granted bool) {
	t := uint128.From(now * k.unit)
	tat := arrival(uint128.From(word), t, uint128.From(uint64(n)*k.cost))
	return tat.Lo, k.grants(tat, t)
}

// Await implements Word.
func (k *gcra) Await(word uint64, now Instant, n int) Instant {
	return k.Ready([]uint64{word}, now, n)
}

// Describe implements Word. As in Decide, products fit into 64 bits. A frontier is not
// kept.
func (k *gcra) Describe(word uint64, now Instant) (remaining int, fresh Instant) {
	t := now * k.unit
	if full := t + k.span.Lo; word < full {
		remaining = int((full - max(word, t)) / k.cost)
	}
	fresh = word
	if k.unit > 1 {
		fresh = CeilDiv(word, k.unit)
	}
	return remaining, fresh
}

func (k *gcra) Remaining(st []uint64, now Instant) int {
	t := uint128.Mul(now, k.unit)
	free := t.Add(k.span).Sub(uint128.Max(k.load(st), t))
	return int(free.Div(k.cost)) // at most span/cost = depth
}

func (k *gcra) Fresh(st []uint64) Instant {
	return max(k.latest(st), k.load(st).DivCeil(k.unit))
}

// Valid checks that tat is at most that of a bucket adopted or emptied at the last instant, and
// that its units are not a tick or more, with which a script would compute otherwise.
func (k *gcra) Valid(st []uint64, enc Encoding) bool {
	latest := enc.LastInstant()
	last := uint128.Mul(2*(latest+1), k.unit).Add(k.span)
	if k.last == turnsAreOver {
		latest = last.DivCeil(k.unit)
	}
	if k.form == ticksAndUnits && st[1] >= k.unit {
		return false
	}
	return k.latest(st) <= latest && !last.Less(k.load(st))
}

// Adopt keeps the number of missing events, as of now or of the latest reservation. So
// the time until all have come back is scaled with the time per event, rounded up to a
// unit.
func (k *gcra) Adopt(from Kernel, st []uint64, now, _ Instant) (_ []uint64, lasting bool) {
	old := from.(interface{ cells() *gcra }).cells()
	next := make([]uint64, k.Width())
	if k.SharesStates(from) {
		if k.last != noInstant {
			next[len(next)-1] = old.latest(st)
		}
		return k.storeMost(next, old.load(st)), true
	}
	pivot := max(now, old.Frontier(st))
	if latest := old.latest(st); latest > now {
		next[len(next)-1] = latest
	}
	missing := old.load(st).Sub(uint128.Mul(pivot, old.unit))
	if missing == (uint128.Uint128{}) && pivot == now {
		return next, true
	}
	return k.storeMost(next, uint128.Mul(pivot, k.unit).Add(k.scaled(missing, old))), false
}

// storeMost is store for a tat that a state may be too narrow for.
func (k *gcra) storeMost(st []uint64, tat uint128.Uint128) []uint64 {
	if k.form != ticksAndUnits { // beyond MaxInstant, so the difference does not matter
		tat = uint128.Min(tat, uint128.Mul(1<<63, k.unit))
	}
	if k.form == oneWord {
		tat = uint128.Min(tat, uint128.From(NoWord-1))
	}
	return k.store(st, tat)
}

func (k *gcra) SharesStates(from Kernel) bool {
	old := from.(interface{ cells() *gcra }).cells()
	return k.cost == old.cost && k.unit == old.unit
}

// scaled returns the time in which k regains the events that old regains in the given
// time. A portable time is at most portableMost ticks, and stands for at most as many
// events, which no bucket exceeds. bucket.lua in redisstore/internal/script does the same.
func (k *gcra) scaled(missing uint128.Uint128, old *gcra) uint128.Uint128 {
	most := uint64(math.MaxUint64)
	if k.form == ticksAndUnits {
		most = portableMost
		missing = uint128.Min(missing, uint128.Mul(portableMost, old.unit))
	}
	events, part := min(missing.Div(old.cost), most), uint64(0)
	if events < most {
		part = missing.Sub(uint128.Mul(events, old.cost)).Lo // of another event
	}
	scaled := uint128.Mul(events, k.cost).
		Add(uint128.From(uint128.Mul(part, k.cost).DivCeil(old.cost)))
	if k.form == ticksAndUnits {
		scaled = uint128.Min(scaled, uint128.Mul(portableMost, k.unit))
	}
	return scaled
}

// Chargeable keeps the instant at which the bucket is full again within what a state can hold.
func (k *gcra) Chargeable(st []uint64, now Instant, enc Encoding) uint64 {
	now = max(now, k.Frontier(st))
	t := uint128.Mul(now, k.unit)
	most := uint128.Mul(enc.LastInstant(), k.unit).Sub(uint128.Max(k.load(st), t)).Div(k.cost)
	return max(most, uint64(k.Remaining(st, now)))
}

func (k *gcra) Credit(st []uint64, at Instant) uint64 {
	return k.span.Add(k.span).Sub(k.missing(st, at)).Div(k.cost)
}

func (k *gcra) MissesLess(st, other []uint64, now Instant) bool {
	return k.missing(st, now).Less(k.missing(other, now))
}

// missing returns what the bucket lacks at an instant, or at that of a reservation ahead, in units.
func (k *gcra) missing(st []uint64, at Instant) uint128.Uint128 {
	return k.load(st).Sub(uint128.Mul(max(at, k.Frontier(st)), k.unit))
}

// Marks is the number of words that store writes.
func (k *gcra) Marks() int {
	if k.form != oneWord {
		return 2
	}
	return 1
}

func (k *gcra) Mark(st []uint64, at Instant, n int, mark []uint64) {
	k.store(mark, k.missing(st, at).Add(uint128.Mul(uint64(n), k.cost)))
}

func (k *gcra) Lower(mark, st []uint64, at Instant) { lowered(k, mark, k.missing(st, at)) }

func (k *gcra) LowerTo(mark, ended []uint64) { lowered(k, mark, k.load(ended)) }

func (k *gcra) Settle(st []uint64, _ Instant, r Refund, m Marks) []uint64 {
	return k.store(st, k.load(st).Sub(comesBack(k, r, m, k.cost)))
}

// SettleAll implements BatchHolder.
func (k *gcra) SettleAll(st []uint64, _ Instant, refunds []Refund, m Marks) []uint64 {
	for _, back := range comeBack(k, refunds, m, k.cost) {
		st = k.store(st, k.load(st).Sub(back))
	}
	return st
}

func (k *gcra) Carry(from Kernel, _, _ []uint64, _ Instant, old, mark []uint64) {
	of := from.(interface{ cells() *gcra }).cells()
	least := of.load(old)
	if !k.SharesStates(from) {
		least = k.scaled(least, of)
	}
	k.storeMost(mark, least)
}

func (k *gcra) ValidMark(mark []uint64) bool { return k.form != ticksAndUnits || mark[1] < k.unit }
