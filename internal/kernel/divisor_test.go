package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

func TestDivisor(t *testing.T) {
	random := budget.Rand(t)
	numbers := []uint64{1, 2, 3, 24, 3600e9, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1<<63 - 1, 1 << 63, 1<<63 + 1, math.MaxUint64 - 1, math.MaxUint64}
	for range 100 {
		numbers = append(numbers, 1+random.Uint64()>>random.IntN(64))
	}
	for _, by := range numbers {
		d := newDivisor(by)
		for _, x := range numbers {
			for _, x := range []uint64{0, x - 1, x, x / by * by, x/by*by - 1} {
				require.Equal(t, x/by, d.quotient(x), "%d / %d", x, by)
			}
		}
	}
}
