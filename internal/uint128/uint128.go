// Package uint128 has the arithmetic on unsigned 128-bit integers that exact rates need: a time
// multiplied by a number of events may not fit into 64 bits.
package uint128

import (
	"math"
	"math/bits"
)

// A Uint128 is the integer Hi·2⁶⁴ + Lo.
type Uint128 struct{ Hi, Lo uint64 }

// From returns x.
func From(x uint64) Uint128 { return Uint128{0, x} }

// Mul returns x·y.
func Mul(x, y uint64) Uint128 {
	hi, lo := bits.Mul64(x, y)
	return Uint128{hi, lo}
}

// Less reports whether x < y.
func (x Uint128) Less(y Uint128) bool {
	return x.Hi < y.Hi || x.Hi == y.Hi && x.Lo < y.Lo
}

// Max returns the greater of x and y.
func Max(x, y Uint128) Uint128 {
	if x.Less(y) {
		return y
	}
	return x
}

// Min returns the smaller of x and y.
func Min(x, y Uint128) Uint128 {
	if y.Less(x) {
		return y
	}
	return x
}

// Add returns x + y, which must be below 2¹²⁸.
func (x Uint128) Add(y Uint128) Uint128 {
	lo, carry := bits.Add64(x.Lo, y.Lo, 0)
	hi, _ := bits.Add64(x.Hi, y.Hi, carry)
	return Uint128{hi, lo}
}

// Sub returns x − y, or 0 if y is the greater.
func (x Uint128) Sub(y Uint128) Uint128 {
	lo, borrow := bits.Sub64(x.Lo, y.Lo, 0)
	hi, borrow := bits.Sub64(x.Hi, y.Hi, borrow)
	if borrow != 0 {
		return Uint128{}
	}
	return Uint128{hi, lo}
}

// Div returns ⌊x / y⌋, or the greatest uint64 if that is greater. y must not
// be 0.
func (x Uint128) Div(y uint64) uint64 {
	switch {
	case x.Hi == 0 && y == 1: // the usual case, spared the division
		return x.Lo
	case x.Hi == 0:
		return x.Lo / y
	case x.Hi >= y:
		return math.MaxUint64
	}
	q, _ := bits.Div64(x.Hi, x.Lo, y)
	return q
}

// DivCeil returns ⌈x / y⌉, or the greatest uint64 if that is greater. y must
// not be 0, and x at most 2¹²⁸ − y.
func (x Uint128) DivCeil(y uint64) uint64 {
	return x.Add(From(y - 1)).Div(y)
}

// Ratio returns a / (b·c) in lowest terms, and whether both fit into 64 bits. None
// of them may be 0.
func Ratio(a, b, c uint64) (num, den uint64, ok bool) {
	d := gcd(a, b)
	a, b = a/d, b/d
	d = gcd(a, c)
	a, c = a/d, c/d
	den128 := Mul(b, c)
	return a, den128.Lo, den128.Hi == 0
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
