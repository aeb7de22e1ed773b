package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// The tests in this file check what is counted of events that have happened.

// testSettle holds and settles events. testExact compares random schedules with the model.
func testSettle(s *suite) {
	for name, alg := range Algorithms() {
		if countsDenied(alg) || flies(alg) {
			continue // settled, events in flight are over; see testInFlight
		}
		b, taken := s.bench(alg), s.bench(alg)
		limit := must[ratelimit.Decision](s)(b.Peek(ctx, "k")).Limit
		for i, held := range []int{limit, (limit + 1) / 2, 1} {
			for _, actual := range []int{held, (held + 1) / 2, 0} {
				r, d, err := b.Hold(ctx, "k", held)
				if err != nil {
					must[ratelimit.Decision](s)(d, err)
				}
				if want := must[ratelimit.Decision](s)(taken.Take(ctx, "k", actual)); !d.Allowed ||
					!want.Allowed {
					break // from here on, the two keys differ
				}
				b.clk.Advance(s.Tick)
				taken.clk.Advance(s.Tick)
				got := must[ratelimit.Decision](s)(r.Settle(ctx, actual))
				want := must[ratelimit.Decision](s)(taken.Peek(ctx, "k"))
				if got != want {
					s.broken(
						"%s: %d held, %d happened:\n%+v\nbut if only these are taken,\n%+v",
						name,
						held,
						actual,
						got,
						want,
					)
				}
				if peek := must[ratelimit.Decision](s)(b.Peek(ctx, "k")); peek != got {
					s.broken("%s: Settle returned %+v\nbut then Peek returns %+v", name, got, peek)
				}
				if _, err := r.Settle(ctx, 0); !errors.Is(err, ratelimit.ErrEnded) {
					s.broken("%s: settled twice, but the error is %v", name, err)
				}
				if peek := must[ratelimit.Decision](s)(b.Peek(ctx, "k")); peek != got {
					s.broken("%s: settling twice changed %+v\nto %+v", name, got, peek)
				}
				wait := s.roundUp(got.ResetAfter/2 + time.Duration(i))
				b.clk.Advance(wait)
				taken.clk.Advance(wait)
			}
		}
	}

	testSettleBucket(s)
	testSettleReservation(s)
	testHoldCancelled(s)

	// After a Reset, a hold gives nothing back.
	b := s.bench(ratelimit.FixedWindow{Limit: 5, Window: time.Hour})
	r, d, err := b.Hold(ctx, "k", 3)
	if r == nil {
		s.broken("a fresh key denied a hold: %+v, %v", d, err)
	}
	s.reset(b, "k")
	b.AllowN("k", 4)
	if d := must[ratelimit.Decision](s)(r.Settle(ctx, 0)); d.Remaining != 1 {
		s.broken(
			"after Reset, 4 of 5 were taken; then a hold that was made before was settled: %+v",
			d,
		)
	}

	// Concurrent holds get what one caller would have got.
	alg := ratelimit.FixedWindow{Limit: 100, Window: time.Hour}
	b = s.bench(alg)
	any := s.handles(b, alg)
	var happened atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range tries {
				if r, _, _ := any().Hold(ctx, "k", 2); r != nil {
					if _, err := r.Settle(ctx, i%2); err == nil {
						happened.Add(int64(i % 2))
					}
				}
			}
		})
	}
	wg.Wait()
	if d := must[ratelimit.Decision](s)(b.Peek(ctx, "k")); d.Remaining != 100-int(happened.Load()) {
		s.broken(
			"%d events of 100 have happened in concurrent holds, but then %+v",
			happened.Load(),
			d,
		)
	}
}

// testSettleReservation settles reservations that hold events, and were due at once, as if nothing
// had happened.
func testSettleReservation(s *suite) {
	for name, alg := range Algorithms() {
		if countsDenied(alg) {
			continue
		}
		b := s.bench(alg)
		limit := must[ratelimit.Decision](s)(b.Peek(ctx, "k")).Limit
		r, d, err := b.Reserve(
			ctx,
			"k",
			limit,
			ratelimit.Within(ratelimit.Never),
			ratelimit.GiveBack(),
		)
		if r == nil {
			s.broken("%s: a fresh key refused a reservation of %d: %+v, %v", name, limit, d, err)
		}
		if r.Delay() > 0 {
			continue // its turn has not come
		}
		b.clk.Advance(s.Tick)
		if d := must[ratelimit.Decision](s)(r.Settle(ctx, 0)); d.Remaining != limit || !d.Allowed {
			s.broken(
				"%s: a reservation of all events, due at once, was settled with 0 one tick later: %+v",
				name,
				d,
			)
		}
	}
}

// testHoldCancelled cancels holds, which settles them with 0.
func testHoldCancelled(s *suite) {
	for name, alg := range Algorithms() {
		b := s.bench(alg)
		limit := must[ratelimit.Decision](s)(b.Peek(ctx, "k")).Limit
		hold := func(key string) *ratelimit.Reservation {
			r, d, err := b.Hold(ctx, key, (limit+1)/2)
			if r == nil {
				s.broken("%s: a fresh key denied a hold: %+v, %v", name, d, err)
			}
			return r
		}
		r, like := hold("k"), hold("like")
		r.Cancel()
		settled := must[ratelimit.Decision](s)(like.Settle(ctx, 0))
		if after := must[ratelimit.Decision](s)(b.Peek(ctx, "k")); after != settled {
			s.broken(
				"%s: after Cancel of a hold:\n%+v\nafter Settle with 0:\n%+v",
				name,
				after,
				settled,
			)
		}
		if _, err := r.Settle(ctx, 0); !errors.Is(err, ratelimit.ErrEnded) {
			s.broken("%s: a hold was cancelled, but the error of Settle is %v", name, err)
		}
	}
}

// testSettleBucket settles holds of a TokenBucket, of which only as much comes back as is missing
// still, unless nothing was granted since.
func testSettleBucket(s *suite) {
	hold := func(b *bench) *ratelimit.Reservation {
		r, d, err := b.Hold(ctx, "k", 5)
		if r == nil {
			s.broken("a hold of 5 events was denied: %+v, %v", d, err)
		}
		return r
	}
	for others := 1; others <= 6; others++ {
		b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 11})
		first, second := hold(b), hold(b)
		must[ratelimit.Decision](s)(first.Settle(ctx, 0))
		b.clk.Advance(4 * time.Second)
		b.AllowN("k", others)
		// One of the five was missing still.
		d, want := must[ratelimit.Decision](s)(second.Settle(ctx, 0)), 11-others
		if d.Remaining != want {
			s.broken(
				"a bucket of 11, one a second: 5 and 5 were held, the first hold was settled with 0, 4 seconds later %d were taken, and the second hold was settled with 0. Remaining is %d instead of %d",
				others,
				d.Remaining,
				want,
			)
		}
	}

	together := func(b *bench) *ratelimit.Reservation {
		r, d, err := ratelimit.HoldAll(
			ctx,
			5,
			ratelimit.For(b.Limiter, "k"),
			ratelimit.For(b.Limiter, "l"),
		)
		if r == nil {
			s.broken("a hold of 5 events of each of two keys was denied: %+v, %v", d, err)
		}
		return r
	}
	testSettleUntouched(s, hold)
	testSettleUntouched(s, together)
}

// testSettleUntouched settles a hold when nothing was granted since.
func testSettleUntouched(s *suite, hold func(b *bench) *ratelimit.Reservation) {
	b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10})
	first, second := hold(b), hold(b)
	b.clk.Advance(time.Second)
	must[ratelimit.Decision](s)(first.Settle(ctx, 4))
	b.clk.Advance(3 * time.Second)
	b.AllowN("k", 6)
	must[ratelimit.Decision](s)(b.Peek(ctx, "k"))
	if d := must[ratelimit.Decision](s)(second.Settle(ctx, 0)); d.Remaining != 10 {
		s.broken(
			"a bucket of 10, one a second: 5 and 5 were held, the first hold was settled with 4 a second later and the second one with 0 when nothing had been granted for 4 seconds. Remaining is %d",
			d.Remaining,
		)
	}
}

// testCharge puts keys into debt.
func testCharge(s *suite) {
	for name, alg := range Algorithms() {
		if countsDenied(alg) {
			continue
		}
		b := s.bench(alg)
		limit := must[ratelimit.Decision](s)(b.Peek(ctx, "k")).Limit
		b.AllowN("k", limit)
		before := must[ratelimit.Decision](s)(b.Peek(ctx, "k"))
		d, err := b.Charge(ctx, "k", 1)
		if errors.Is(err, ratelimit.ErrDebt) {
			continue
		}
		must[ratelimit.Decision](s)(d, err)
		if d.Allowed || d.Remaining > 0 || d.RetryAfter < before.RetryAfter {
			s.broken(
				"%s: all events were taken and one more charged: %+v\nand before it, %+v",
				name,
				d,
				before,
			)
		}
		if peek := must[ratelimit.Decision](s)(b.Peek(ctx, "k")); peek != d {
			s.broken("%s: Charge returned %+v\nbut then Peek returns %+v", name, d, peek)
		}
		if d.RetryAfter > 1000*time.Hour {
			continue
		}
		b.clk.Advance(d.RetryAfter - s.Tick)
		if must[ratelimit.Decision](s)(b.Take(ctx, "k", 1)).Allowed {
			s.broken("%s: allowed %v before RetryAfter, %v", name, s.Tick, d.RetryAfter)
		}
		b.clk.Advance(s.Tick)
		if d := must[ratelimit.Decision](s)(b.Take(ctx, "k", 1)); !d.Allowed {
			s.broken("%s: the debt is paid, but %+v", name, d)
		}
	}

	b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5})
	b.AllowN("k", 5)
	d := must[ratelimit.Decision](s)(b.Charge(ctx, "k", 3))
	if want := (ratelimit.Decision{Limit: 5, RetryAfter: 4 * time.Second, ResetAfter: 8 * time.Second}); d != want {
		s.broken("5 tokens of 5 were taken and 3 more charged:\n%+v\ninstead of\n%+v", d, want)
	}

	b = s.bench(ratelimit.SlidingLog{Limit: 5, Window: time.Hour})
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range tries {
				_, _ = b.Charge(context.Background(), "k", 1)
			}
		})
	}
	wg.Wait()
	b.clk.Advance(time.Hour - s.Tick)
	if d := must[ratelimit.Decision](s)(b.Peek(ctx, "k")); d.Allowed || d.RetryAfter != s.Tick {
		s.broken(
			"%d events were charged concurrently with a limit of 5 in an hour: %+v one tick before it is over",
			goroutines*tries,
			d,
		)
	}
	r, d, err := b.Hold(ctx, "k", 0)
	if r == nil {
		s.broken("a hold of 0 was denied: %+v, %v", d, err)
	}
	d = must[ratelimit.Decision](s)(r.Settle(ctx, 6))
	if want := s.Tick + time.Hour - s.Tick; d.RetryAfter != want {
		s.broken("0 held, 6 of 5 happened: RetryAfter is %v instead of %v", d.RetryAfter, want)
	}
}

// flies reports whether alg limits events in flight, or has a part that does.
func flies(alg ratelimit.Algorithm) bool {
	switch alg := alg.(type) {
	case ratelimit.InFlight:
		return true
	case ratelimit.All:
		return slices.ContainsFunc(alg, flies)
	}
	return false
}
