// Package warmup computes the constants of Guava's SmoothWarmingUp, for the kernel of WarmingUp and
// for its script in Redis.
package warmup

import (
	"math"
	"math/big"
	"time"
)

// Constants are s, θ, max and the numbers that follow from them. The names are those of the
// description in Guava. Times are in nanoseconds.
type Constants struct {
	Stable    float64 // s, the time a permit takes when warm
	Slope     float64 // by how much a stored permit above θ takes longer than the one below
	Threshold float64 // θ, stored permits
	Stored    float64 // max, stored permits when cold
	Cooldown  float64 // w/max, the time in which one permit is stored
	Limit     int     // the whole permits in max, at least 1
}

// New returns the constants of a rate of events in per, with a warm-up. They are computed exactly
// and rounded once at the end. So rounding errors do not turn a whole number of permits into a
// little less.
func New(events int, per, warmup time.Duration, factor float64) Constants {
	div := func(a, b *big.Rat) *big.Rat { return new(big.Rat).Quo(a, b) }
	float := func(r *big.Rat) float64 { f, _ := r.Float64(); return f }

	s := big.NewRat(int64(per), int64(events))
	c := new(big.Rat).SetFloat64(factor)
	c.Mul(c, s)
	w := new(big.Rat).SetInt64(int64(warmup))
	two := big.NewRat(2, 1)
	theta := div(w, new(big.Rat).Mul(two, s))
	above := div(new(big.Rat).Mul(two, w), new(big.Rat).Add(s, c)) // max − θ
	most := new(big.Rat).Add(theta, above)

	consts := Constants{
		Stable:    float(s),
		Slope:     float(div(new(big.Rat).Sub(c, s), above)),
		Threshold: float(theta),
		Stored:    float(most),
		Cooldown:  float(div(w, most)),
		Limit:     math.MaxInt,
	}
	if whole := new(big.Int).Quo(most.Num(), most.Denom()); whole.IsInt64() &&
		whole.Int64() <= math.MaxInt {
		consts.Limit = max(1, int(whole.Int64()))
	}
	return consts
}
