package kernel

import (
	"cmp"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// leaky is a gcra used as a queue that drains.
type leaky struct{ gcra }

// NewLeakyBucket returns the kernel of a LeakyBucket that leaks events per span. Errors
// name rate as the Rate of field.
func NewLeakyBucket(
	events int,
	per time.Duration,
	rate fmt.Stringer,
	capacity int,
	enc Encoding,
	field string,
) (Kernel, error) {
	k, err := newGCRA(events, per, rate, capacity, enc, field)
	if k.last != noInstant {
		k.last = turnsAreOver
	}
	return &leaky{k}, cmp.Or(err, enc.Count(capacity, field+".Capacity"))
}

func (*leaky) Kind() string { return "leaky" }

// turns returns when all turns are over, in units. That is when the level has leaked
// out, or later, with late set, if the bucket leaks faster now than when the turns were
// given.
func (k *leaky) turns(st []uint64) (over uint128.Uint128, late bool) {
	level := k.load(st)
	if latest := k.latest(st); latest > level.DivCeil(k.unit) {
		return uint128.Mul(latest, k.unit), true
	}
	return level, false
}

// Delay returns the time until all turns are over.
func (k *leaky) Delay(st []uint64, at Instant) uint64 {
	over, _ := k.turns(st)
	return over.Sub(uint128.Mul(at, k.unit)).DivCeil(k.unit)
}

func (k *leaky) Delays() bool { return true }

// DelayOf implements Word.
func (k *leaky) DelayOf(word uint64, at Instant) uint64 { return k.Delay([]uint64{word}, at) }

// Spend gives the events turns after those of all reservations.
func (k *leaky) Spend(st []uint64, at Instant, n int) []uint64 {
	if over, late := k.turns(st); late {
		over = arrival(over, uint128.Mul(at, k.unit), uint128.Mul(uint64(n), k.cost))
		st[len(st)-1] = over.DivCeil(k.unit)
	}
	return k.gcra.Spend(st, at, n)
}

func (k *leaky) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if k.Ready(st, now, n) > now {
		return st, false
	}
	k.Spend(st, now, n)
	return st, true
}

// Promise records when all turns are over. So if the bucket leaks faster later, no
// caller gets an earlier turn.
func (k *leaky) Promise(st []uint64) {
	if k.last == turnsAreOver {
		end := &st[len(st)-1]
		*end = max(*end, k.load(st).DivCeil(k.unit))
	}
}

func (k *leaky) Full(st []uint64, now Instant, n int) bool {
	return k.Ready(st, now, n) > now
}

// Settle also lets the turns of reservations end earlier: by as much as the level is lower or, if
// the level has leaked out later than they end, not after that.
func (k *leaky) Settle(st []uint64, _ Instant, r Refund, m Marks) []uint64 {
	return k.giveBack(st, comesBack(k, r, m, k.cost))
}

// SettleAll implements BatchHolder.
func (k *leaky) SettleAll(st []uint64, _ Instant, refunds []Refund, m Marks) []uint64 {
	for _, back := range comeBack(k, refunds, m, k.cost) {
		st = k.giveBack(st, back)
	}
	return st
}

func (k *leaky) giveBack(st []uint64, back uint128.Uint128) []uint64 {
	before := k.load(st)
	left := before.Sub(back)
	st = k.store(st, left)
	if k.last == turnsAreOver {
		end := &st[len(st)-1]
		if *end > before.DivCeil(k.unit) {
			*end -= back.Div(k.unit)
		} else {
			*end = min(*end, left.DivCeil(k.unit))
		}
	}
	return st
}
