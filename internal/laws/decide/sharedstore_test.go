package decide_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// TestTwoLimitersOnOneStore lets two limiters reserve and cancel at random on one key of one store,
// as two processes do. Neither limiter grants anything before a pending reservation of the other
// one. Together they stay within the limit.
func TestTwoLimitersOnOneStore(t *testing.T) {
	t.Parallel()
	type bound struct {
		alg  ratelimit.Algorithm
		most int           // granted in any span of
		span time.Duration // or, if 0, not checked
	}
	for name, b := range map[string]bound{
		"token":    {alg: ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 2}, most: 5, span: time.Second - 1},
		"interval": {alg: ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Refill: ratelimit.RefillInterval}, most: 6, span: time.Second - 1},
		"fixed":    {alg: ratelimit.FixedWindow{Limit: 3, Window: time.Second}, most: 6, span: time.Second - 1},
		"first":    {alg: ratelimit.FixedWindow{Limit: 3, Window: time.Second, Start: ratelimit.StartOnFirstEvent}, most: 6, span: time.Second - 1},
		"sliding":  {alg: ratelimit.SlidingWindow{Limit: 4, Window: time.Second}, most: 7, span: time.Second - 1},
		"segments": {alg: ratelimit.SlidingWindow{Limit: 4, Window: 2 * time.Second, Segments: 4}, most: 4, span: 1500*time.Millisecond - 1},
		"log":      {alg: ratelimit.SlidingLog{Limit: 3, Window: time.Second}, most: 3, span: time.Second - 1},
		"counted":  {alg: ratelimit.SlidingLog{Limit: 3, Window: time.Second, CountDenied: true}, most: 3, span: time.Second - 1},
		"rolling":  {alg: ratelimit.RollingWindow{Quota: 5, Window: 2 * time.Second, Period: 500 * time.Millisecond, PeriodLimit: 3}, most: 8, span: 2*time.Second - 1},
		"warming":  {alg: ratelimit.WarmingUp{Rate: ratelimit.PerSecond(3), Warmup: time.Second}},
		"all": {alg: ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4}, ratelimit.SlidingWindow{Limit: 4, Window: 2 * time.Second},
			ratelimit.SlidingLog{Limit: 3, Window: time.Second}, ratelimit.FixedWindow{Limit: 3, Window: 700 * time.Millisecond}}, most: 3, span: time.Second - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range budget.Seeds(t, budget.Histories(100, 400)) {
				rng := rand.New(rand.NewPCG(seed, 28))
				clk := stepclock.New()
				var store ratelimit.Store = new(ratelimit.MemoryStore)
				if seed%2 == 0 { // called through the Store interface only
					store = &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore)}
				}
				var both [2]ratelimit.Limiter
				for i := range both {
					var err error
					both[i], err = ratelimit.New(b.alg, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk))
					require.NoError(t, err)
				}
				type held struct {
					*ratelimit.Reservation
					due time.Time
					n   int
				}
				var line []held
				var trace []string
				granted := map[time.Time]int{}
				latest := func() (at time.Time) {
					for _, h := range line {
						if h.due.After(at) {
							at = h.due
						}
					}
					return at
				}
				for range 50 {
					l := both[rng.IntN(2)]
					switch rng.IntN(8) {
					case 0:
						clk.Advance(time.Duration(rng.Int64N(int64(600 * time.Millisecond))))
					case 1, 2:
						trace = append(trace, "Take")
						if l.Allow("key") {
							require.False(t, clk.Now().Before(latest()), "seed %d: granted before a promise\n%v", seed, trace)
							granted[clk.Now()]++
						}
					case 3, 4, 5:
						n := 1 + rng.IntN(2)
						r, _, err := l.Reserve(t.Context(), "key", n)
						require.NoError(t, err)
						due := clk.Now().Add(r.Delay())
						trace = append(trace, fmt.Sprint("Reserve ", n, r.Delay()))
						require.False(t, due.Before(latest()), "seed %d: reserved before a promise\n%v", seed, trace)
						line = append(line, held{r, due, n})
					default:
						if len(line) > 0 {
							i := rng.IntN(len(line))
							if line[i].Delay() > 0 {
								trace = append(trace, fmt.Sprint("Cancel ", i))
								line[i].Cancel()
								line = append(line[:i:i], line[i+1:]...)
							}
						}
					}
				}
				for _, h := range line {
					granted[h.due] += h.n
				}
				if b.span == 0 {
					continue
				}
				for from := range granted {
					sum := 0
					for at, n := range granted {
						if d := at.Sub(from); d >= 0 && d <= b.span {
							sum += n
						}
					}
					require.LessOrEqual(t, sum, b.most, "seed %d: from %v\n%v", seed, from, trace)
				}
			}
		})
	}
}
