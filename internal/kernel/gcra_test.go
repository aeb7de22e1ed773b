package kernel

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// TestScaled compares the time in which a bucket regains what another has lost with the
// exact quotient, rounded up.
func TestScaled(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	number := func(bits int) uint64 { return rng.Uint64()>>(64-bits)>>rng.IntN(bits) + 1 }
	portable := Form{Tick: 1000, Portable: true, Varies: true}
	for range 100_000 {
		f := []Form{InMemory.Varying(), portable}[rng.IntN(2)]
		bucket := func() *gcra {
			k, err := newGCRA(int(number(40)), time.Duration(number(62)), time.Second, 1, f, "")
			if err != nil {
				return nil
			}
			return &k
		}
		k, old := bucket(), bucket()
		if k == nil || old == nil {
			continue
		}
		missing := uint128.Mul(number(51), old.unit).Add(uint128.From(rng.Uint64N(old.unit)))
		x := bigOf(missing)
		events := uint64(math.MaxUint64)
		if f.Portable {
			events = portableMost
		}
		if most := bigOf(uint128.Mul(events, old.cost)); x.Cmp(most) > 0 {
			x = most
		}
		x.Mul(x, bigOf(uint128.From(k.cost)))
		x.Add(x, bigOf(uint128.From(old.cost-1)))
		x.Quo(x, bigOf(uint128.From(old.cost)))
		if most := bigOf(uint128.Mul(portableMost, k.unit)); f.Portable && x.Cmp(most) > 0 {
			x = most
		}
		require.Zero(t, x.Cmp(bigOf(k.scaled(missing, old))), "%v of %+v is %v of %+v", missing, old, x, k)
	}
}

func bigOf(x uint128.Uint128) *big.Int {
	b := new(big.Int).SetUint64(x.Hi)
	return b.Lsh(b, 64).Or(b, new(big.Int).SetUint64(x.Lo))
}
