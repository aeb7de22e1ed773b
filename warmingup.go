package ratelimit

import (
	"fmt"
	"math"
	"math/big"
	"time"
)

// A WarmingUp limiter grants Rate once it is warm, and less while it is cold:
// a permit takes ColdFactor times as long then, and ever less over Warmup of
// use at full speed. It cools down again when it idles. It protects what needs
// to warm up itself: caches, pools, a peer that just started.
//
// A request is granted if the next free time has come, whatever n is (up to
// Limit), and the next one pays for it: it has to wait for as long as the
// permits before it took. Limit is the permits that warming up takes, at least
// 1; Remaining is Limit or 0.
//
// This is Guava's SmoothWarmingUp RateLimiter (com.google.common.util.concurrent,
// where the integral is drawn), and as there the arithmetic is in floating
// point, with instants rounded to the nearest nanosecond. Its state is two
// words.
type WarmingUp struct {
	Rate       Rate          // the rate once warm
	Warmup     time.Duration // how long warming up takes at full speed
	ColdFactor float64       // how many times longer a permit takes when cold; at least 1, 0 means 3
}

func (a WarmingUp) compile() (kernel, error) {
	if err := a.Rate.check("WarmingUp.Rate"); err != nil {
		return nil, err
	}
	if a.Warmup < 1 {
		return nil, invalid("WarmingUp.Warmup", a.Warmup, "must be at least 1ns")
	}
	factor := a.ColdFactor
	if factor == 0 {
		factor = 3
	}
	if !(factor >= 1 && factor <= math.MaxInt32) { // false for NaN, too
		return nil, invalid("WarmingUp.ColdFactor", a.ColdFactor, fmt.Sprintf("must be from 1 to %d, or 0 for 3", math.MaxInt32))
	}
	return newWarming(a.Rate, a.Warmup, factor), nil
}

// warming is the arithmetic of a [WarmingUp]; s, c, w, θ and max are those of
// its description in Guava, in nanoseconds. Its state is the warmth, which is
// max less the stored permits, as the bits of a float64, and the next free
// time. The warmth is that at the next free time; it is 0 when cold.
type warming struct {
	plain
	most      int     // the limit
	stable    float64 // s, the time a permit takes when warm
	slope     float64 // by how much a stored permit above θ takes longer than the one below
	threshold float64 // θ, stored permits
	stored    float64 // max, stored permits when cold
	cooldown  float64 // w/max, the time in which one permit is stored
}

func newWarming(rate Rate, warmup time.Duration, factor float64) *warming {
	// The constants are computed exactly and then rounded, so that a whole
	// number of permits is not missed by a hair.
	div := func(a, b *big.Rat) *big.Rat { return new(big.Rat).Quo(a, b) }
	float := func(r *big.Rat) float64 { f, _ := r.Float64(); return f }

	s := big.NewRat(int64(rate.Per), int64(rate.Events))
	c := new(big.Rat).SetFloat64(factor)
	c.Mul(c, s)
	w := new(big.Rat).SetInt64(int64(warmup))
	two := big.NewRat(2, 1)
	theta := div(w, new(big.Rat).Mul(two, s))
	above := div(new(big.Rat).Mul(two, w), new(big.Rat).Add(s, c)) // max − θ
	most := new(big.Rat).Add(theta, above)

	k := &warming{
		most:      math.MaxInt,
		stable:    float(s),
		slope:     float(div(new(big.Rat).Sub(c, s), above)),
		threshold: float(theta),
		stored:    float(most),
		cooldown:  float(div(w, most)),
	}
	if whole := new(big.Int).Quo(most.Num(), most.Denom()); whole.IsInt64() && whole.Int64() <= math.MaxInt {
		k.most = max(1, int(whole.Int64()))
	}
	return k
}

func (k *warming) limit() int { return k.most }
func (k *warming) width() int { return 2 }

func (k *warming) ready(st []uint64, now instant, _ int) instant {
	return max(now, st[1])
}

func (k *warming) spend(st []uint64, at instant, n int) []uint64 {
	warmth := k.warmth(st, at)
	stored := k.stored - warmth
	taken := min(float64(n), stored)
	st[0] = math.Float64bits(warmth + taken)
	st[1] = after(at, saturated(math.Round(k.cost(stored, taken)+(float64(n)-taken)*k.stable)))
	return st
}

// cost returns how long it takes to hand out the permits taken of those
// stored: the integral of the time per permit, which is k.stable below the
// threshold and rises by k.slope from there.
func (k *warming) cost(stored, taken float64) float64 {
	cost := taken * k.stable
	if above := stored - k.threshold; above > 0 {
		part := min(taken, above)
		cost += k.slope * part * (above - part/2)
	}
	return cost
}

// warmth returns what is left of the warmth at t.
func (k *warming) warmth(st []uint64, t instant) float64 {
	if t >= k.fresh(st) {
		return 0
	}
	warmth := math.Float64frombits(st[0])
	if t > st[1] {
		warmth -= float64(t-st[1]) / k.cooldown
	}
	return max(0, warmth)
}

func (k *warming) room(st []uint64, now instant) int {
	if now < st[1] {
		return 0
	}
	return k.most
}

func (k *warming) fresh(st []uint64) instant {
	return after(st[1], saturated(math.Ceil(math.Float64frombits(st[0])*k.cooldown)))
}

// saturated returns ns, a whole number, as an integer, at most forever.
func saturated(ns float64) uint64 {
	if ns >= float64(forever) {
		return forever
	}
	return uint64(ns)
}

func (k *warming) valid(st []uint64) bool {
	warmth := math.Float64frombits(st[0])
	return warmth >= 0 && warmth <= k.stored*(1+1e-9) // false for NaN, too
}
