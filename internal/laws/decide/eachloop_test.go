package decide_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestEachIsALoop: TakeEach decides as a loop of Take does, also on a key that occurs several times,
// and on keys with limits of their own.
func TestEachIsALoop(t *testing.T) {
	t.Parallel()
	for name, alg := range storetest.Algorithms() {
		for kind, open := range fakes.Stores {
			for _, own := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/own=%t", name, kind, own), func(t *testing.T) {
					t.Parallel()
					for seed := range budget.Seeds(t, budget.Histories(2, 20)) {
						s, span := eachAndLoop(alg, kind, open, own)
						next := history.TakesOfMany(history.NewRandom(seed, 20261122), span/2+1, keyOf)
						history.Run(t, s, history.AtMost(500, next))
					}
				})
			}
		}
	}
}

// eachAndLoop returns what histories are played on whose takes are made by TakeEach and by a loop,
// and the time until a key that was used up is fresh again. If own is set, some keys have limits of
// their own.
func eachAndLoop(
	alg ratelimit.Algorithm, kind string, open func() ratelimit.Store, own bool,
) (s *history.Twins, span time.Duration) {
	limiter := func(clk clock.Clock) ratelimit.Limiter {
		opts := []ratelimit.Option{ratelimit.WithStore(open()), ratelimit.WithName("test"), ratelimit.WithClock(clk), fakes.Patient}
		if own {
			opts = append(opts, ratelimit.WithLimits(limitOfSevens))
		}
		return ratelimit.Must(ratelimit.New(alg, opts...))
	}
	s = &history.Twins{Limits: []ratelimit.Algorithm{alg}, Start: fakes.Midnight, Kept: kind}
	s.Open = func(func(string) ratelimit.Algorithm) history.OpenTwins {
		clk := stepclock.New()
		return history.OpenTwins{
			Stores: []history.Store{
				{Limiters: []ratelimit.Limiter{limiter(clk)}, TakesEach: true},
				{Limiters: []ratelimit.Limiter{limiter(clk)}},
			},
			Clock: clk,
		}
	}
	l := limiter(stepclock.New())
	fresh, _ := l.Peek(ctx, "probe")
	used, _ := l.Take(ctx, "probe", fresh.Limit)
	return s, used.ResetAfter
}

// limitOfSevens looks up the limit of a key.
func limitOfSevens(_ context.Context, key string) (ratelimit.Algorithm, error) {
	if strings.HasSuffix(key, "7") {
		return ratelimit.FixedWindow{Limit: 3, Window: time.Minute}, nil
	}
	return nil, nil
}

// keyOf returns the i-th key. The first one is empty, and some are long.
func keyOf(i int) string {
	if i == 0 {
		return ""
	}
	return strings.Repeat("k\xff", i*i%20) + fmt.Sprint(i)
}
