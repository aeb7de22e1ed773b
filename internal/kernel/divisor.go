package kernel

import (
	"math"
	"math/bits"
)

// A divisor divides by multiplying with a reciprocal. That is faster than a division: with two
// of them, a decision of a RollingWindow takes 4 ns less.
type divisor struct{ by, reciprocal uint64 }

func newDivisor(by uint64) divisor { return divisor{by, math.MaxUint64 / by} }

// quotient returns ⌊x / by⌋. The product is below that by at most 1, because the reciprocal
// is above 2⁶⁴/by − 1, and x below 2⁶⁴.
func (d *divisor) quotient(x uint64) uint64 {
	q, _ := bits.Mul64(x, d.reciprocal)
	if x-q*d.by >= d.by {
		q++
	}
	return q
}
