package decide_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestEachIsALoop: TakeEach decides as a loop of Take does, also on a key that occurs several times.
func TestEachIsALoop(t *testing.T) {
	t.Parallel()
	for name, alg := range storetest.Algorithms() {
		for kind, open := range fakes.Stores {
			for _, own := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/own=%t", name, kind, own), func(t *testing.T) {
					t.Parallel()
					for seed := range budget.Seeds(t, budget.Histories(2, 20)) {
						c := newEachComparison(alg, open, own, seed)
						for range 12 {
							c.step(t)
						}
					}
				})
			}
		}
	}
}

// An eachComparison makes the same decisions with TakeEach on one store, and in a loop on another.
type eachComparison struct {
	rng        *rand.Rand
	clk        *stepclock.Clock
	each, loop ratelimit.Limiter
	limit      int
	span       time.Duration // until a key that was used up is fresh again
}

// newEachComparison gives some keys limits of their own, if own is set.
func newEachComparison(alg ratelimit.Algorithm, open func() ratelimit.Store, own bool, seed uint64) *eachComparison {
	c := &eachComparison{rng: rand.New(rand.NewPCG(seed, 20261122)), clk: stepclock.New()}
	limiter := func() ratelimit.Limiter {
		opts := []ratelimit.Option{ratelimit.WithStore(open()), ratelimit.WithName("test"), ratelimit.WithClock(c.clk), fakes.Patient}
		if own {
			opts = append(opts, ratelimit.WithLimits(limitOfSevens))
		}
		return ratelimit.Must(ratelimit.New(alg, opts...))
	}
	c.each, c.loop = limiter(), limiter()
	probe, _ := limiter().Peek(ctx, "probe")
	c.limit = probe.Limit
	used, _ := limiter().Take(ctx, "probe", c.limit)
	c.span = used.ResetAfter
	return c
}

// limitOfSevens looks up the limit of a key.
func limitOfSevens(_ context.Context, key string) (ratelimit.Algorithm, error) {
	if strings.HasSuffix(key, "7") {
		return ratelimit.FixedWindow{Limit: 3, Window: time.Minute}, nil
	}
	return nil, nil
}

// step lets time pass, and asks for up to 200 keys.
func (c *eachComparison) step(t *testing.T) {
	t.Helper()
	c.clk.Advance(time.Duration(c.rng.Int64N(int64(c.span)/2 + 1)))
	keys := make([]string, c.rng.IntN([]int{4, 50, 200}[c.rng.IntN(3)]))
	for i := range keys {
		keys[i] = keyOf(c.rng.IntN(1 + c.rng.IntN(100)))
	}
	n := 1
	if c.rng.IntN(3) == 0 {
		n = c.rng.IntN(c.limit + 2)
	}
	out, err := c.each.TakeEach(ctx, keys, n, nil)
	require.NoError(t, err)
	require.Len(t, out, len(keys))
	for i, key := range keys {
		want, err := c.loop.Take(ctx, key, n)
		require.NoError(t, err)
		require.Equal(t, want, out[i], "keys[%d] of %q, %d events each", i, keys, n)
	}
}

// keyOf returns the i-th key. The first one is empty, and some are long.
func keyOf(i int) string {
	if i == 0 {
		return ""
	}
	return strings.Repeat("k\xff", i*i%20) + fmt.Sprint(i)
}
