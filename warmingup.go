package ratelimit

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/warmup"
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

// portableWarmup bounds Warmup in a portable form.
const portableWarmup = 30 * day

func (a WarmingUp) compile(f form) (kernel, error) {
	if err := a.Rate.check("WarmingUp.Rate"); err != nil {
		return nil, err
	}
	if a.Warmup < 1 {
		return nil, invalid("WarmingUp.Warmup", a.Warmup, "must be at least 1ns")
	}
	if !(a.ColdFactor >= 1 && a.ColdFactor <= math.MaxInt32) { // false for NaN, too
		return nil, invalid("WarmingUp.ColdFactor", a.ColdFactor, fmt.Sprintf("must be from 1 to %d, or 0 for 3", math.MaxInt32))
	}
	// A request costs less than three times the longer of these, and that in
	// nanoseconds is to be a whole number that a double holds.
	cold := float64(a.Rate.Per) / float64(a.Rate.Events) * a.ColdFactor
	if f.portable && max(float64(a.Warmup), cold) > float64(portableWarmup) {
		return nil, invalid("WarmingUp", fmt.Sprintf("%+v", a), fmt.Sprintf("must warm up within %v in this store, and a cold permit must not take longer", portableWarmup))
	}
	return &warming{form: f, Constants: warmup.New(a.Rate.Events, a.Rate.Per, a.Warmup, a.ColdFactor)}, nil
}

// warming is the arithmetic of a [WarmingUp]; s, c, w, θ and max are those of
// its description in Guava, in nanoseconds. Its state is the warmth, which is
// max less the stored permits, as the bits of a float64, and the next free
// time, in nanoseconds, or if it is to be portable in whole ticks and nanoseconds.
// The warmth is that at the next free time; it is 0 when cold.
type warming struct {
	plain
	form form
	warmup.Constants
}

func (k *warming) limit() int { return k.Limit }

func (k *warming) width() int {
	if k.form.portable {
		return 3
	}
	return 2
}

// free returns the next free time, in nanoseconds.
func (k *warming) free(st []uint64) uint64 {
	if k.form.portable {
		return st[1]*k.form.tick + st[2]
	}
	return st[1]
}

func (k *warming) store(st []uint64, warmth float64, free uint64) []uint64 {
	st[0], st[1] = math.Float64bits(warmth), free
	if k.form.portable {
		st[1], st[2] = free/k.form.tick, free%k.form.tick
	}
	return st
}

func (k *warming) ready(st []uint64, now instant, _ int) instant {
	return max(now, ceilDiv(k.free(st), k.form.tick))
}

func (k *warming) spend(st []uint64, at instant, n int) []uint64 {
	warmth := k.warmth(st, at)
	stored := k.Stored - warmth
	taken := min(float64(n), stored)
	// The conversions keep products and sums from being fused on machines that
	// could: what is computed in Redis is to be the same bit by bit.
	cost := k.cost(stored, taken) + float64((float64(n)-taken)*k.Stable)
	return k.store(st, warmth+taken, after(at*k.form.tick, saturated(math.Round(cost))))
}

func (k *warming) reserve(st []uint64, _, at instant, n int, to []trace) ([]uint64, []trace) {
	st, t := chained(k, st, at, n, func(st []uint64) [2]uint64 { return [2]uint64{k.free(st), st[0]} })
	return st, append(to, t)
}

// cost returns how long it takes to hand out the permits taken of those
// stored: the integral of the time per permit, which is k.Stable below the
// threshold and rises by k.Slope from there.
func (k *warming) cost(stored, taken float64) float64 {
	cost := float64(taken * k.Stable)
	if above := stored - k.Threshold; above > 0 {
		part := min(taken, above)
		cost += float64(k.Slope * part * (above - float64(part/2)))
	}
	return cost
}

// warmth returns what is left of the warmth at t.
func (k *warming) warmth(st []uint64, t instant) float64 {
	if t >= k.fresh(st) {
		return 0
	}
	warmth := math.Float64frombits(st[0])
	if ns, free := t*k.form.tick, k.free(st); ns > free {
		warmth -= float64(ns-free) / k.Cooldown
	}
	return max(0, warmth)
}

func (k *warming) room(st []uint64, now instant) int {
	if k.ready(st, now, 1) > now {
		return 0
	}
	return k.Limit
}

func (k *warming) fresh(st []uint64) instant {
	return ceilDiv(after(k.free(st), saturated(math.Ceil(math.Float64frombits(st[0])*k.Cooldown))), k.form.tick)
}

// saturated returns ns, a whole number, as an integer, at most forever.
func saturated(ns float64) uint64 {
	if ns >= float64(forever) {
		return forever
	}
	return uint64(ns)
}

func (k *warming) valid(st []uint64) bool {
	if k.form.portable && (st[1] > math.MaxUint64/k.form.tick-1 || st[2] >= k.form.tick) {
		return false
	}
	warmth := math.Float64frombits(st[0])
	return warmth >= 0 && warmth <= k.Stored*(1+1e-9) // false for NaN, too
}
