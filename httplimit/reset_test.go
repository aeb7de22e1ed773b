package httplimit_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestResetOfParts compares the t that a grant of several limits has with the limits on their own:
// it is not less than the time until the whole quota of the named one is back, and not more than
// the time in which that comes back if it is used up.
func TestResetOfParts(t *testing.T) {
	alone := make(map[string]ratelimit.Algorithm)
	for name, alg := range storetest.Algorithms() {
		if _, ok := alg.(ratelimit.All); !ok {
			alone[name] = alg
		}
	}
	for name, alg := range alone {
		others := ratelimit.All{alg, ratelimit.FixedWindow{Limit: 100, Window: 24 * time.Hour}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3)}}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rnd := budget.Rand(t)
			clk := storetest.NewClock(time.Unix(0, 0))
			all, err := ratelimit.New(others, ratelimit.WithClock(clk))
			require.NoError(t, err)
			cost, decided := 1, ratelimit.Decision{}
			h := httplimit.Middleware(all, httplimit.WithVerdict(), httplimit.WithCost(func(*http.Request) int { return cost }))(
				http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					a, _ := httplimit.VerdictOf(r.Context())
					decided = a.Decision
				}))
			var parts []ratelimit.Limiter
			for _, part := range others {
				l, err := ratelimit.New(part, ratelimit.WithClock(clk))
				require.NoError(t, err)
				parts = append(parts, l)
			}
			named, told := make([]int, len(parts)), make([]int, len(parts))
			requests := budget.Histories(1000, 3000)
			for range requests {
				clk.Advance(time.Duration(rnd.Int64N(int64(time.Second) << rnd.IntN(8))))
				cost = 1 + rnd.IntN(3)
				resp := serve(h, from("192.0.2.1:1"))
				if resp.StatusCode != 200 {
					clk.Advance(time.Duration(rnd.Int64N(int64(24 * time.Hour)))) // until something is back
					continue
				}
				for i, l := range parts {
					if _, flies := others[i].(ratelimit.InFlight); flies {
						continue // it was released
					}
					require.True(t, l.AllowN("192.0.2.1", cost))
				}
				named[decided.Part]++
				found := regexp.MustCompile(`;t=(\d+)$`).FindStringSubmatch(resp.Header.Get("RateLimit"))
				if found == nil {
					continue
				}
				told[decided.Part]++
				seconds, _ := strconv.Atoi(found[1])
				part, err := parts[decided.Part].Peek(t.Context(), "192.0.2.1")
				require.NoError(t, err)
				back := part.ResetAfter
				if _, locks := others[decided.Part].(ratelimit.Lockout); locks { // it remembers the lock for longer
					whole, err := parts[decided.Part].Take(t.Context(), "192.0.2.1", part.Limit)
					require.NoError(t, err)
					back = whole.RetryAfter
				}
				require.GreaterOrEqual(t, time.Duration(seconds)*time.Second, back, "%T: %v", others[decided.Part], decided)
				require.Less(t, time.Duration(seconds-1)*time.Second, decided.ResetAfter)
				window := regexp.MustCompile(fmt.Sprintf(`"default-%d";q=\d+;w=(\d+)`, decided.Part+1)).FindStringSubmatch(resp.Header.Get("RateLimit-Policy"))
				longest := 1
				if window != nil {
					longest, _ = strconv.Atoi(window[1])
				}
				require.LessOrEqual(t, seconds, longest)
			}
			rolling, _ := alg.(ratelimit.RollingWindow)
			if _, flies := alg.(ratelimit.InFlight); flies || rolling.PeriodLimit > 0 {
				assert.Zero(t, told[0], "it would be a Timeout, or r that of another quota")
				named[0] = 0
			}
			assert.Equal(t, named, told)
			assert.Greater(t, told[0]+told[1]+told[2], int(requests)/4)
		})
	}
}
