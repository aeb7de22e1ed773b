package storetest

import (
	"context"
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
	for left := s.Steps; left > 0; { // a history of a WarmingUp may end early
		played, wrong := history.Try(setup, func(p history.Player) (history.Op, bool) {
			left--
			if left < 0 {
				return history.Op{}, false
			}
			return g.Next(p)
		})
		if wrong != nil {
			s.broken("%v", wrong)
		}
		if played == 0 {
			return
		}
	}
}

// setup returns what histories are played on: two limiters of the same keys of a new store. If the
// store can have several handles, the limiters have one each, as those of two processes do.
func (s *suite) setup(alg ratelimit.Algorithm) *history.Setup {
	patience := s.Timeout
	return &history.Setup{
		Algorithm: alg, Tick: s.Tick, Start: start, Kept: "the store",
		Open: func() ([]ratelimit.Limiter, history.Clock) {
			b := s.bench(alg)
			one, other := b.Limiter, s.other(b, alg).Limiter
			return []ratelimit.Limiter{&hurried{one, &patience}, &hurried{other, &patience}}, b.clk
		},
	}
}

// A hurried limiter bounds waits in real time. A history waits only for what is granted at once,
// but a broken store may let it wait until its clock is moved, which is never.
type hurried struct {
	ratelimit.Limiter
	patience *time.Duration
}

// hurry calls f with a context that ends when the patience does. Once it has ended, there is
// less of it: the search for a short history waits often.
func (h *hurried) hurry(ctx context.Context, f func(ctx context.Context)) {
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(*h.patience, cancel)
	f(bounded)
	if isOver := !timer.Stop(); isOver {
		*h.patience = min(*h.patience, 50*time.Millisecond)
	}
}

func (h *hurried) Wait(ctx context.Context, key string) (err error) {
	h.hurry(ctx, func(ctx context.Context) { err = h.Limiter.Wait(ctx, key) })
	return err
}

func (h *hurried) WaitN(ctx context.Context, key string, n int) (err error) {
	h.hurry(ctx, func(ctx context.Context) { err = h.Limiter.WaitN(ctx, key, n) })
	return err
}

func (h *hurried) Hold(
	ctx context.Context,
	key string,
	n int,
	opts ...ratelimit.HoldOption,
) (r *ratelimit.Reservation, d ratelimit.Decision, err error) {
	h.hurry(ctx, func(ctx context.Context) { r, d, err = h.Limiter.Hold(ctx, key, n, opts...) })
	return r, d, err
}

// spansOf returns the time until a used key is fresh again, and that in which an event comes back.
func (s *suite) spansOf(alg ratelimit.Algorithm) []time.Duration {
	probe := model.New(alg, s.Tick)
	all := min(probe.Take(start.UnixNano(), probe.Limit()).ResetAfter, math.MaxInt64/2)
	return []time.Duration{all + 1, all/time.Duration(max(1, probe.Limit())) + 1}
}
