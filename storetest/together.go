package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testTogether decides on keys of several limiters with TakeAll and HoldAll, by one caller and by
// many at once.
func testTogether(s *suite) {
	algorithms := Algorithms()
	names := slices.DeleteFunc(
		slices.Sorted(maps.Keys(algorithms)),
		func(name string) bool { return countsDenied(algorithms[name]) },
	)
	rounds := make(map[string][3]ratelimit.Algorithm)
	rng := rand.New(rand.NewPCG(1, 20261122))
	for left := s.Steps; left > 0; left -= 20 {
		var algs [3]ratelimit.Algorithm
		for i := range algs {
			algs[i] = algorithms[names[rng.IntN(len(names))]]
		}
		rounds[fmt.Sprint("round ", len(rounds))] = algs
	}
	subtests(s, rounds, (*suite).takeTogether)
	s.contendTogether()
}

// takeTogether makes the same calls on one store for several keys together and on another for
// one key after the other, if all of them grant.
func (s *suite) takeTogether(algs [3]ratelimit.Algorithm) {
	rng := rand.New(rand.NewPCG(s.seed(), 20261122))
	var together, single [len(algs)]*bench
	for i, alg := range algs {
		name := ratelimit.WithName(fmt.Sprint(i))
		if i == 0 {
			together[0], single[0] = s.bench(alg, name), s.bench(alg, name)
			continue
		}
		for _, of := range []*[len(algs)]*bench{&together, &single} {
			of[i] = &bench{s.limiter(of[0], alg, name), of[0].clk, of[0].store}
		}
	}
	span := time.Second
	for range 20 {
		keys := make([]int, 2+rng.IntN(2)) // in any order, and some of them twice
		var bounds []ratelimit.Bound
		var takes [len(algs)]int // of each key
		n := rng.IntN(4)
		for i := range keys {
			keys[i] = rng.IntN(len(algs))
			b, takesN := ratelimit.For(together[keys[i]].Limiter, "k"), n
			if rng.IntN(3) == 0 {
				takesN = rng.IntN(4)
				b = b.N(takesN)
			}
			bounds = append(bounds, b)
			takes[keys[i]] += takesN
		}
		granted := true
		for i, m := range takes {
			granted = granted &&
				must[ratelimit.Decision](s)(single[i].Peek(ctx, "k")).Remaining >= m
		}
		r, d, err := ratelimit.HoldAll(ctx, n, bounds...)
		if rng.IntN(2) == 0 && err == nil && r != nil {
			if _, err = r.Settle(ctx, 0); err == nil && rng.IntN(2) == 0 {
				d, err = ratelimit.TakeAll(ctx, n, bounds...)
			} else {
				takes = [len(algs)]int{}
			}
		}
		must[ratelimit.Decision](s)(d, err)
		if d.Allowed != granted || d.Allowed == (d.RetryAfter > 0) {
			s.broken(
				"%+v: TakeAll of %v, for %v, decides %+v; that all grant them now is %v",
				algs,
				takes,
				keys,
				d,
				granted,
			)
		}
		for i, m := range takes {
			if granted {
				must[ratelimit.Decision](s)(single[i].Take(ctx, "k", m))
			}
			got, want := must[ratelimit.Decision](
				s,
			)(
				together[i].Peek(ctx, "k"),
			), must[ratelimit.Decision](
				s,
			)(
				single[i].Peek(ctx, "k"),
			)
			if got != want {
				s.broken(
					"%+v: after TakeAll of %v, for %v, which was granted: %v, key %d is\n%+v\nand after single requests\n%+v",
					algs,
					takes,
					keys,
					granted,
					i,
					got,
					want,
				)
			}
			span = max(span, min(want.ResetAfter, time.Hour))
		}
		step := s.roundUp(time.Duration(rng.Int64N(int64(span) / 2)))
		if !granted && d.RetryAfter > s.Tick && d.RetryAfter < step {
			step = d.RetryAfter - s.Tick
			together[0].clk.Advance(step)
			if must[ratelimit.Decision](s)(ratelimit.TakeAll(ctx, n, bounds...)).Allowed {
				s.broken(
					"%+v: TakeAll of %v, for %v, is allowed %v before RetryAfter, %v",
					algs,
					takes,
					keys,
					s.Tick,
					d.RetryAfter,
				)
			}
			single[0].clk.Advance(step)
			continue
		}
		together[0].clk.Advance(step)
		single[0].clk.Advance(step)
	}
}

// contendTogether has many callers take overlapping keys in any order: what each key has spent
// is what was granted.
func (s *suite) contendTogether() {
	b := s.bench(ratelimit.FixedWindow{Limit: 150, Window: 24 * time.Hour}, ratelimit.WithName("0"))
	keys := []ratelimit.Bound{
		ratelimit.For(b.Limiter, "a"),
		ratelimit.For(
			s.limiter(
				b,
				ratelimit.SlidingLog{Limit: 100, Window: time.Hour},
				ratelimit.WithName("1"),
			),
			"b",
		),
		ratelimit.For(
			s.limiter(
				b,
				ratelimit.FixedWindow{Limit: 200, Window: 24 * time.Hour},
				ratelimit.WithName("2"),
			),
			"c",
		),
	}
	want := 0
	for _, pair := range [][]int{{0, 1}, {2, 1, 0}, {1, 2}} {
		var of []ratelimit.Bound
		for _, i := range pair {
			of = append(of, keys[i])
		}
		granted := contend(goroutines, tries, func() bool {
			d, err := ratelimit.TakeAll(ctx, 1, of...)
			return err == nil && d.Allowed
		})
		want += granted
		if pair[0] == 1 && want != 100 {
			s.broken("%d of 100 were granted to callers of several keys", want)
		}
	}
	d := must[ratelimit.Decision](s)(keys[1].Limiter().Peek(ctx, keys[1].Key()))
	if d.Remaining != 0 {
		s.broken("100 of 100 were granted, but then Peek returns %+v", d)
	}
}
