package uint128_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

func toBig(x uint128.Uint128) *big.Int {
	b := new(big.Int).SetUint64(x.Hi)
	return b.Lsh(b, 64).Or(b, new(big.Int).SetUint64(x.Lo))
}

// saturated is x as a uint64, or the greatest one.
func saturated(x *big.Int) uint64 {
	if !x.IsUint64() {
		return math.MaxUint64
	}
	return x.Uint64()
}

// TestAgainstBig holds every operation against math/big on numbers of all
// sizes, the edges included.
func TestAgainstBig(t *testing.T) {
	edges := []uint64{0, 1, 2, 3, 1<<32 - 1, 1 << 32, 1<<63 - 1, 1 << 63, math.MaxUint64 - 1, math.MaxUint64}
	rng := budget.Rand(t)
	pick := func() uint64 {
		if rng.IntN(2) == 0 {
			return edges[rng.IntN(len(edges))]
		}
		return rng.Uint64() >> rng.IntN(64)
	}
	limit := new(big.Int).Lsh(big.NewInt(1), 128)
	for range budget.Histories(50_000, 200_000) {
		x := uint128.Uint128{Hi: pick(), Lo: pick()}
		y := uint128.Uint128{Hi: pick(), Lo: pick()}
		bx, by := toBig(x), toBig(y)

		require.Equal(t, bx.Cmp(by) < 0, x.Less(y), "%v < %v", bx, by)
		require.Equal(t, new(big.Int).Mul(toBig(uint128.From(x.Lo)), toBig(uint128.From(y.Lo))), toBig(uint128.Mul(x.Lo, y.Lo)))
		if bx.Cmp(by) < 0 {
			require.Equal(t, []*big.Int{bx, by}, []*big.Int{toBig(uint128.Min(x, y)), toBig(uint128.Max(x, y))})
		} else {
			require.Equal(t, []*big.Int{by, bx}, []*big.Int{toBig(uint128.Min(x, y)), toBig(uint128.Max(x, y))})
		}
		if sum := new(big.Int).Add(bx, by); sum.Cmp(limit) < 0 {
			require.Zero(t, sum.Cmp(toBig(x.Add(y))), "%v + %v", bx, by)
		}
		diff := new(big.Int).Sub(bx, by)
		if diff.Sign() < 0 {
			diff.SetInt64(0)
		}
		require.Zero(t, diff.Cmp(toBig(x.Sub(y))), "%v - %v", bx, by)

		if d := y.Lo; d != 0 {
			bd := new(big.Int).SetUint64(d)
			require.Equal(t, saturated(new(big.Int).Div(bx, bd)), x.Div(d), "%v / %v", bx, bd)
			up := new(big.Int).Add(bx, new(big.Int).SetUint64(d-1))
			if up.Cmp(limit) < 0 {
				require.Equal(t, saturated(up.Div(up, bd)), x.DivCeil(d), "ceil %v / %v", bx, bd)
			}
		}
	}
}

func TestRatio(t *testing.T) {
	for _, tt := range []struct {
		a, b, c, num, den uint64
		ok                bool
	}{
		{1e9, 10, 1000, 100000, 1, true},
		{1e9, 7, 1000, 1000000, 7, true},
		{1, 1, 1, 1, 1, true},
		{1000, 1, 1000, 1, 1, true},
		{1 << 60, 1 << 61, 1 << 61, 1, 1 << 62, true},
		{1, 1 << 63, 1, 1, 1 << 63, true},
		{1, 1 << 63, 1000, 0, 0, false},
	} {
		num, den, ok := uint128.Ratio(tt.a, tt.b, tt.c)
		require.Equal(t, tt.ok, ok, tt)
		if ok {
			require.Equal(t, [2]uint64{tt.num, tt.den}, [2]uint64{num, den}, tt)
		}
	}
}
