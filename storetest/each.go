package storetest

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testEach makes the same decisions with TakeEach on one store, and in a loop on another.
func testEach(s *suite) {
	subtests(s, Algorithms(), func(s *suite, alg ratelimit.Algorithm) {
		whether := map[string]bool{"own=false": false, "own=true": true}
		subtests(s, whether, func(s *suite, own bool) { compareEach(s, alg, own) })
	})
}

// compareEach compares TakeEach with a loop. If own is set, some keys have limits of their
// own.
func compareEach(s *suite, alg ratelimit.Algorithm, own bool) {
	seed := s.seed()
	rng := rand.New(rand.NewPCG(seed, 20261122))
	var opts []ratelimit.Option
	if own {
		lookup := func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			if strings.HasSuffix(key, "7") {
				return ratelimit.FixedWindow{Limit: 3, Window: time.Minute}, nil
			}
			return nil, nil
		}
		opts = append(opts, ratelimit.WithLimits(lookup))
	}
	each, loop := s.bench(alg, opts...), s.bench(alg, opts...)
	first := s.peek(loop, "")
	span := s.take(loop, "probe", first.Limit).ResetAfter
	var out []ratelimit.Decision
	var err error
	for left := s.Steps; left > 0; {
		d := s.roundUp(time.Duration(rng.Int64N(int64(span)/2 + 1)))
		each.clk.Advance(d)
		loop.clk.Advance(d)
		keys := make([]string, rng.IntN([]int{4, 50, 200}[rng.IntN(3)]))
		for i := range keys {
			keys[i] = eachKey(rng.IntN(1 + rng.IntN(100)))
		}
		n := 1
		if rng.IntN(3) == 0 {
			n = rng.IntN(first.Limit + 2)
		}
		out, err = each.TakeEach(ctx, keys, n, out[:0])
		s.succeeded(err)
		if len(out) != len(keys) {
			s.broken("%v: %d decisions on %d keys", alg, len(out), len(keys))
		}
		for i, key := range keys {
			if want := s.take(loop, key, n); out[i] != want {
				s.broken("%v, seed %d: TakeEach of %d events of each of %q decides on keys[%d]:\n%+v\nTake decides:\n%+v",
					alg, seed, n, keys, i, out[i], want)
			}
		}
		left -= 1 + len(keys)
	}
}

// eachKey returns the i-th key. Some keys are long.
func eachKey(i int) string {
	if i == 0 {
		return ""
	}
	h := fnv.New64a()
	fmt.Fprint(h, i)
	return strings.Repeat("k\xff", int(h.Sum64()%20)) + fmt.Sprint(i)
}
