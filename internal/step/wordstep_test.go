package step

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// TestWordStepEqualsStep applies random requests to one key twice, as a WordStep and by Step, while
// others reserve events.
func TestWordStepEqualsStep(t *testing.T) {
	for name, limits := range limitsOf(t) {
		t.Run(name, func(t *testing.T) {
			c := limits[1].narrow
			rng := budget.Rand(t)
			var charged [2]int // events, and none
			for range 2000 {
				st, now := []uint64{0}, 1_700_000_000*second
				for range 30 {
					now += [...]uint64{0, 1, second / 100, second / 3, second, 5 * second}[rng.IntN(6)]
					at := &Reading{Now: now, Lag: uint64(rng.IntN(2) * 1000), Own: true}
					n := 1 + rng.IntN(3)
					var taking WordStep
					var got, want Answer
					switch op := rng.IntN(9); {
					case op < 3:
						taking.Take(c.Word(), st[0], now, n)
						c.Tell(&taking, st[0], at, &got)
						c.Step(st, &Request{Op: OpTake, N: n, Fixed: at}, &want)
					case op < 4:
						n = 1 + rng.IntN(2*c.Limit())
						most := UpTo(c.Word(), st[0], now, n)
						taking.Take(c.Word(), st[0], now, most)
						c.Tell(&taking, st[0], at, &got)
						if got.Allowed {
							got.Granted = most
						}
						c.Step(st, &Request{Op: OpTake, UpTo: true, N: n, Fixed: at}, &want)
					case op < 7:
						n = rng.IntN(4)
						ok := taking.Charge(c.Word(), st[0], now, n)
						c.Tell(&taking, taking.Next, at, &got)
						c.Step(st, &Request{Op: OpCharge, N: n, Fixed: at}, &want)
						charged[min(n, 1)]++
						if !ok {
							require.Positive(t, n, "nothing is always granted")
							continue
						}
					default:
						next, _ := c.Step(slices.Clone(st), &Request{Op: OpReserve, N: n, MaxWait: kernel.Never, Fixed: at}, &want)
						if want.Wait == 0 { // otherwise, it is not stored as a word
							st = next
						}
						continue
					}
					require.Equal(t, want, got)
					require.Equal(t, st[0], taking.Next)
				}
			}
			for _, times := range charged {
				assert.Greater(t, times, 500)
			}
		})
	}
}
