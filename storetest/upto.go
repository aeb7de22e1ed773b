package storetest

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testUpTo compares TakeUpTo with a Take of the events that remain, while nobody else calls, and
// calls it from many goroutines.
func testUpTo(s *suite) {
	subtests(s, Algorithms(), (*suite).compareUpTo)
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)},
		ratelimit.SlidingWindow{Limit: 100, Window: time.Hour, Segments: 4},
		ratelimit.All{
			ratelimit.FixedWindow{Limit: 100, Window: time.Hour},
			ratelimit.SlidingLog{Limit: 130, Window: time.Hour},
		},
	} {
		s.contendUpTo(alg)
	}
}

// compareUpTo makes the same decisions with TakeUpTo on one store, and with Take on another. Some
// events are held or reserved.
func (s *suite) compareUpTo(alg ratelimit.Algorithm) {
	seed := s.seed()
	rng := rand.New(rand.NewPCG(seed, 20261128))
	upTo, take := s.bench(alg), s.bench(alg)
	limit := s.peek(take, "").Limit
	span := s.take(take, "probe", limit).ResetAfter
	for range s.Steps {
		d := s.roundUp(time.Duration(rng.Int64N(int64(span)/3 + 1)))
		n := rng.IntN(1 + min(2*min(limit, 1<<30), limit/(1+rng.IntN(4))+2))
		if rng.IntN(8) == 0 {
			s.reserveBoth(upTo, take, n, s.roundUp(span/4))
			continue
		}
		upTo.clk.Advance(d)
		take.clk.Advance(d)
		granted, got, err := upTo.TakeUpTo(ctx, "k", n)
		s.succeeded(err)
		asked := min(n, max(1, s.peek(take, "k").Remaining))
		want := s.take(take, "k", asked)
		if !want.Allowed {
			asked = 0
		}
		if granted != asked || got != want {
			s.broken("%v, seed %d: TakeUpTo of %d takes %d:\n%+v\nof these, a Take is granted %d:\n%+v",
				alg, seed, n, granted, got, asked, want)
		}
	}
}

// reserveBoth reserves n events on both benches, for a turn that may be ahead.
func (s *suite) reserveBoth(upTo, take *bench, n int, within time.Duration) {
	for _, b := range []*bench{upTo, take} {
		_, _, err := b.Reserve(ctx, "k", n, ratelimit.Within(within), ratelimit.HoldFor(within))
		s.succeeded(err)
	}
}

// contendUpTo takes up to 7 of 100 events in each of many goroutines. Calls that decide at once are
// granted 7, or none, except for the one that is granted the rest.
func (s *suite) contendUpTo(alg ratelimit.Algorithm) {
	const limit, n = 100, 7
	b := s.bench(alg)
	any := s.handles(b, alg)
	var sum, some atomic.Int64
	calls := contend(goroutines, 2, func() bool {
		granted, _, _ := any().TakeUpTo(ctx, "k", n)
		sum.Add(int64(granted))
		if 0 < granted && granted < n {
			some.Add(1)
		}
		return granted > 0
	})
	if sum.Load() != limit || some.Load() != 1 {
		s.broken("%v: %d concurrent calls of TakeUpTo of %d took %d in all, %d of them some but not all",
			alg, calls, n, sum.Load(), some.Load())
	}
}
