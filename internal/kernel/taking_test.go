package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTakingEqualsStep applies random requests to one key twice, as a Taking and by Step. Holds
// are settled in any order, while others take events, reserve and charge.
func TestTakingEqualsStep(t *testing.T) {
	type hold struct {
		Holding
		grant any
	}
	for name, limits := range limitsOf(t) {
		t.Run(name, func(t *testing.T) {
			c := limits[1].narrow
			rng := rand.New(rand.NewPCG(3, 4))
			var settled [3]int // for fewer, as many and more events
			for range 2000 {
				st, now := []uint64{0}, 1_700_000_000*second
				var holds []hold
				for range 30 {
					now += [...]uint64{0, 1, second / 100, second / 3, second, 5 * second}[rng.IntN(6)]
					at := &Reading{Now: now, Lag: uint64(rng.IntN(2) * 1000), Own: true}
					n := 1 + rng.IntN(3)
					var want Answer
					switch op := rng.IntN(8); {
					case op < 3:
						var taking Taking
						var got Answer
						taking.Take(c.Word(), st[0], now, n)
						c.Tell(&taking, st[0], at, &got)
						h := Holding{N: n, At: now, After: taking.Next}
						c.Step(st, &Request{Op: OpHold, N: n, Fixed: at}, &want)
						if want.Allowed {
							got.SetDue(at)
							got.Grant = want.Grant
							holds = append(holds, hold{h, want.Grant})
							if _, leaky := c.Kernel.(*leaky); leaky {
								holds[len(holds)-1].At = want.Due
							}
						}
						require.Equal(t, want, got)
						require.Equal(t, st[0], taking.Next)
					case op < 6 && len(holds) > 0:
						i := rng.IntN(len(holds))
						h, actual := holds[i], rng.IntN(5)
						holds = append(holds[:i], holds[i+1:]...)
						var taking Taking
						ok := taking.Settle(c.Word(), st[0], now, &h.Holding, actual)
						var got Answer
						if ok {
							c.Tell(&taking, taking.Next, at, &got)
						}
						c.Step(st, &Request{Op: OpSettle, N: actual, Grant: h.grant, Fixed: at}, &want)
						if !ok {
							require.Greater(t, actual, h.N, "others are always settled")
							continue
						}
						require.Equal(t, want, got, "%d of %d", actual, h.N)
						require.Equal(t, st[0], taking.Next)
						settled[min(max(actual-h.N, -1), 1)+1]++
					case op == 6:
						c.Step(st, &Request{Op: OpReserve, N: n, MaxWait: Never, Fixed: at}, &want)
					case op == 7:
						c.Step(st, &Request{Op: OpCharge, N: n, Fixed: at}, &want)
					}
				}
			}
			for _, times := range settled {
				assert.Greater(t, times, 500)
			}
		})
	}
}
