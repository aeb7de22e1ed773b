package model

import (
	"math"
	"math/big"
	"slices"

	"github.com/ratelimit-go/ratelimit"
)

// warmingUp is ratelimit.WarmingUp. Permits are stored while there are no requests. The
// more permits are stored, the colder it is, and the longer each one takes.
type warmingUp struct {
	stack[warmState]

	stable   *big.Rat // ns per permit once warm
	most     *big.Rat // the most stored permits, and their number at the start
	warm     *big.Rat // the number of stored permits above which a permit takes longer
	slope    *big.Rat // the additional ns for each stored permit above warm
	coolDown *big.Rat // ns to store one permit

	// close is set once a next free time was so near the middle between two
	// nanoseconds that floating-point arithmetic may round it the other way.
	close bool
}

// A warmState is the number of stored permits at nextFree, the instant from which the
// next request may be granted.
type warmState struct {
	nextFree instant
	stored   *big.Rat
}

func newWarmingUp(a ratelimit.WarmingUp) *warmingUp {
	factor := new(big.Rat).SetFloat64(a.ColdFactor)
	if factor.Sign() == 0 {
		factor.SetInt64(3)
	}
	warmup := ratOf(instant(a.Warmup))
	stable := new(big.Rat).Inv(perNano(a.Rate))
	cold := new(big.Rat).Mul(factor, stable)

	// θ = w/(2s); max = θ + 2w/(s+c); slope = (c−s)/(max−θ); cool-down = w/max.
	theta := new(big.Rat).Quo(warmup, twice(stable))
	above := new(big.Rat).Quo(twice(warmup), new(big.Rat).Add(stable, cold))
	most := new(big.Rat).Add(theta, above)
	return &warmingUp{
		stack:    newStack(warmState{0, most}),
		stable:   stable,
		most:     most,
		warm:     theta,
		slope:    new(big.Rat).Quo(new(big.Rat).Sub(cold, stable), above),
		coolDown: new(big.Rat).Quo(warmup, most),
	}
}

func twice(r *big.Rat) *big.Rat { return new(big.Rat).Add(r, r) }

// stored is how many permits are stored at t ≥ nextFree.
func (w *warmingUp) stored(s warmState, t instant) *big.Rat {
	gained := new(big.Rat).Quo(ratOf(t-s.nextFree), w.coolDown)
	return minRat(w.most, gained.Add(gained, s.stored))
}

// heat is the time that all stored permits cost together: the integral of the cost of a
// permit from 0 to stored.
func (w *warmingUp) heat(stored *big.Rat) *big.Rat {
	cost := new(big.Rat).Mul(stored, w.stable)
	if above := new(big.Rat).Sub(stored, w.warm); above.Sign() > 0 {
		area := new(big.Rat).Mul(above, above) // of the square that the triangle is half of
		area.Mul(area, w.slope)
		cost.Add(cost, area.Mul(area, big.NewRat(1, 2)))
	}
	return cost
}

func (w *warmingUp) limit() int {
	whole := new(big.Int).Quo(w.most.Num(), w.most.Denom())
	if !whole.IsInt64() {
		return math.MaxInt
	}
	return max(1, int(whole.Int64()))
}

func (w *warmingUp) grantable(t instant, _ int) bool { return t >= w.last().nextFree }

func (w *warmingUp) forgotten(t instant) bool {
	return t >= w.last().nextFree && w.stored(w.last(), t).Cmp(w.most) == 0
}

func (w *warmingUp) charge(t instant, n int) { w.push(charge[warmState]{at: t, n: n}, w.spend) }

// settle changes nothing if others were granted since: they waited for these events already.
func (w *warmingUp) settle(index, n int) {
	if w.granted() == index {
		w.replay(index, n, w.spend)
	}
}

// granted is the index of the latest charge of which events count, or −1.
func (w *warmingUp) granted() int {
	i := w.charges() - 1
	for i >= 0 && w.stack[1+i].n == 0 {
		i--
	}
	return i
}

// spend makes the next request wait for the cost of a charge.
func (w *warmingUp) spend(before warmState, c charge[warmState]) warmState {
	stored := w.stored(before, c.at)
	taken := minRat(stored, ratOf(c.n))
	left := new(big.Rat).Sub(stored, taken)
	cost := new(big.Rat).Sub(w.heat(stored), w.heat(left))
	fresh := new(big.Rat).Sub(ratOf(c.n), taken)
	cost.Add(cost, fresh.Mul(fresh, w.stable))
	return warmState{c.at + w.round(cost), left}
}

func (w *warmingUp) earliest(t instant) instant { return max(t, w.last().nextFree) }

// round rounds to the nearest nanosecond, and to Never if the cost is longer than that.
func (w *warmingUp) round(cost *big.Rat) instant {
	up := new(big.Rat).Add(cost, big.NewRat(1, 2))
	whole := new(big.Int).Quo(up.Num(), up.Denom())
	if !whole.IsInt64() {
		return instant(ratelimit.Never)
	}

	// The rest lies in [0, 1). The middle between two nanoseconds is at either end,
	// because 1/2 was added.
	rest := up.Sub(up, new(big.Rat).SetInt(whole))
	if rest.Cmp(big.NewRat(1, 10000)) < 0 || rest.Cmp(big.NewRat(9999, 10000)) > 0 {
		w.close = true
	}
	return instant(whole.Int64())
}

func (w *warmingUp) clone() part {
	c := *w
	c.stack = slices.Clone(w.stack)
	return &c
}

// Close reports whether a floating-point computation may differ from this exact one by
// now, because some instant was too near the middle between two nanoseconds.
func (k *Key) Close() bool {
	for _, p := range k.parts {
		if w, ok := p.(*warmingUp); ok && w.close {
			return true
		}
	}
	return false
}
