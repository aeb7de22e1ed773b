package storetest

import (
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// testExact plays random histories on the store, for every algorithm. Each answer must be that of
// the reference model.
func testExact(s *suite) { subtests(s, Algorithms(), compare) }

// compare plays a random history of an algorithm.
func compare(s *suite, alg ratelimit.Algorithm) {
	setup := s.setup(alg)
	g := &history.Generator{
		Choices: history.NewRandom(s.seed(), 20260301),
		Keys:    []string{"", "alice", "b\xffb"},
		Spans:   s.spansOf(alg),
		By:      2,
	}
	next := history.AtMost(s.Steps, g.Next)
	for steps := 0; steps < s.Steps; { // a history of a WarmingUp may end early
		played, wrong := history.Try(setup, next)
		if wrong != nil {
			s.broken("%v", wrong)
		}
		if played == 0 {
			return
		}
		steps += played
	}
}

// setup returns what histories are played on: two limiters of the same keys of a new store. If the
// store can have several handles, the limiters have one each, as those of two processes do.
func (s *suite) setup(alg ratelimit.Algorithm) *history.Setup {
	return &history.Setup{
		Algorithm: alg, Tick: s.Tick, Start: start, Kept: "the store", Patience: s.Timeout,
		Open: func() ([]ratelimit.Limiter, history.Clock) {
			b := s.bench(alg)
			return []ratelimit.Limiter{b.Limiter, s.other(b, alg).Limiter}, b.clk
		},
	}
}

// spansOf returns the time until a used key is fresh again, and that in which an event comes back.
func (s *suite) spansOf(alg ratelimit.Algorithm) []time.Duration {
	probe := model.New(alg, s.Tick)
	all := min(probe.Take(start.UnixNano(), probe.Limit()).ResetAfter, math.MaxInt64/2)
	return []time.Duration{all + 1, all/time.Duration(max(1, probe.Limit())) + 1}
}
