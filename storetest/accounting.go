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

// The tests in this file check that a store counts exactly the events that have happened.

// testSettle holds and settles events. testExact compares random schedules with the model.
func testSettle(s *suite) {
	for name, alg := range Algorithms() {
		if countsDenied(alg) || hasInFlight(alg) {
			continue // settled, events in flight are over; see testInFlight
		}
		c := &settleComparison{suite: s, name: name, held: s.bench(alg), taken: s.bench(alg)}
		c.run()
	}
	testSettleBucket(s)
	testSettleReservation(s)
	testHoldCancelled(s)
	testSettleAfterReset(s)
	testSettleConcurrently(s)
}

// A settleComparison settles holds on one store. On another store, it takes the events that the
// holds were settled for. Then the keys of both stores must be equal.
type settleComparison struct {
	*suite
	name        string
	held, taken *bench
}

// run holds various numbers of events, and settles each hold for all of its events, for half of
// them or for none.
func (c *settleComparison) run() {
	limit := c.peek(c.held, "k").Limit
	for i, n := range []int{limit, (limit + 1) / 2, 1} {
		for _, happened := range []int{n, (n + 1) / 2, 0} {
			r, d, err := c.held.Hold(ctx, "k", n)
			c.succeeded(err)
			want := c.take(c.taken, "k", happened)
			if !d.Allowed || !want.Allowed {
				break // from here on, the two keys differ
			}
			c.advance(c.Tick)
			after := c.settle(r, n, happened)
			c.settleAgain(r, after)
			c.advance(c.roundUp(after.ResetAfter/2 + time.Duration(i)))
		}
	}
}

func (c *settleComparison) advance(d time.Duration) {
	c.held.clk.Advance(d)
	c.taken.clk.Advance(d)
}

// settle settles a hold of n events, and compares its key with the key on the other store.
func (c *settleComparison) settle(r *ratelimit.Reservation, n, happened int) ratelimit.Decision {
	got := c.decided(r.Settle(ctx, happened))
	want := c.peek(c.taken, "k")
	if got != want {
		c.broken("%s: %d held, %d happened:\n%+v\nbut if only these are taken,\n%+v",
			c.name, n, happened, got, want)
	}
	if peek := c.peek(c.held, "k"); peek != got {
		c.broken("%s: Settle returned %+v\nbut then Peek returns %+v", c.name, got, peek)
	}
	return got
}

// settleAgain settles a hold that has ended, which changes nothing.
func (c *settleComparison) settleAgain(r *ratelimit.Reservation, before ratelimit.Decision) {
	if _, err := r.Settle(ctx, 0); !errors.Is(err, ratelimit.ErrEnded) {
		c.broken("%s: settled twice, but the error is %v", c.name, err)
	}
	if after := c.peek(c.held, "k"); after != before {
		c.broken("%s: settling twice changed %+v\nto %+v", c.name, before, after)
	}
}

// testSettleAfterReset settles a hold after a Reset, which gives nothing back.
func testSettleAfterReset(s *suite) {
	b := s.bench(ratelimit.FixedWindow{Limit: 5, Window: time.Hour})
	r, d, err := b.Hold(ctx, "k", 3)
	if r == nil {
		s.broken("a fresh key denied a hold: %+v, %v", d, err)
	}
	s.reset(b, "k")
	b.AllowN("k", 4)
	if d := s.decided(r.Settle(ctx, 0)); d.Remaining != 1 {
		s.broken("after Reset, 4 of 5 were taken; then a hold of before the Reset was settled: %+v", d)
	}
}

// testSettleConcurrently has many callers hold and settle at once. Together they must get as many
// events as one caller.
func testSettleConcurrently(s *suite) {
	alg := ratelimit.FixedWindow{Limit: 100, Window: time.Hour}
	b := s.bench(alg)
	any := s.handles(b, alg)
	var happened atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range tries {
				n := i % 2
				r, _, _ := any().Hold(ctx, "k", 2)
				if r == nil {
					continue
				}
				if _, err := r.Settle(ctx, n); err == nil {
					happened.Add(int64(n))
				}
			}
		})
	}
	wg.Wait()
	if d := s.peek(b, "k"); d.Remaining != 100-int(happened.Load()) {
		s.broken("%d events of 100 have happened in concurrent holds, but then %+v",
			happened.Load(), d)
	}
}

// testSettleReservation settles reservations with 0 that hold events and were due at once.
func testSettleReservation(s *suite) {
	for name, alg := range Algorithms() {
		if countsDenied(alg) {
			continue
		}
		b := s.bench(alg)
		limit := s.peek(b, "k").Limit
		r, d, err := b.Reserve(ctx, "k", limit, ratelimit.Within(ratelimit.Never),
			ratelimit.GiveBack())
		if r == nil {
			s.broken("%s: a fresh key refused a reservation of %d: %+v, %v", name, limit, d, err)
		}
		if r.Delay() > 0 {
			continue // its turn has not come
		}
		b.clk.Advance(s.Tick)
		if d := s.decided(r.Settle(ctx, 0)); d.Remaining != limit || !d.Allowed {
			s.broken("%s: a reservation of all events, due at once, was settled with 0 one tick later: %+v",
				name, d)
		}
	}
}

// testHoldCancelled cancels holds, which settles them with 0.
func testHoldCancelled(s *suite) {
	for name, alg := range Algorithms() {
		b := s.bench(alg)
		limit := s.peek(b, "k").Limit
		hold := func(key string) *ratelimit.Reservation {
			r, d, err := b.Hold(ctx, key, (limit+1)/2)
			if r == nil {
				s.broken("%s: a fresh key denied a hold: %+v, %v", name, d, err)
			}
			return r
		}
		r, like := hold("k"), hold("like")
		r.Cancel()
		settled := s.decided(like.Settle(ctx, 0))
		if after := s.peek(b, "k"); after != settled {
			s.broken("%s: after Cancel of a hold:\n%+v\nafter Settle with 0:\n%+v",
				name, after, settled)
		}
		if _, err := r.Settle(ctx, 0); !errors.Is(err, ratelimit.ErrEnded) {
			s.broken("%s: a hold was cancelled, but the error of Settle is %v", name, err)
		}
	}
}

// testSettleBucket settles holds of a TokenBucket that has been refilled in part since then. If
// other events were granted since the hold, only as many events come back as the bucket still
// misses.
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
		s.decided(first.Settle(ctx, 0))
		b.clk.Advance(4 * time.Second)
		b.AllowN("k", others)
		// The bucket still misses one of the five events.
		d, want := s.decided(second.Settle(ctx, 0)), 11-others
		if d.Remaining != want {
			s.broken("a bucket of 11, one a second: 5 and 5 were held, the first hold was settled with 0, 4 seconds later %d were taken, and the second hold was settled with 0. Remaining is %d instead of %d",
				others, d.Remaining, want)
		}
	}

	together := func(b *bench) *ratelimit.Reservation {
		r, d, err := ratelimit.HoldAll(ctx, 5, ratelimit.For(b.Limiter, "k"),
			ratelimit.For(b.Limiter, "l"))
		if r == nil {
			s.broken("a hold of 5 events of each of two keys was denied: %+v, %v", d, err)
		}
		return r
	}
	testSettleUntouched(s, hold)
	testSettleUntouched(s, together)
}

// testSettleUntouched settles a hold of a key that has granted nothing since.
func testSettleUntouched(s *suite, hold func(b *bench) *ratelimit.Reservation) {
	b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10})
	first, second := hold(b), hold(b)
	b.clk.Advance(time.Second)
	s.decided(first.Settle(ctx, 4))
	b.clk.Advance(3 * time.Second)
	b.AllowN("k", 6)
	s.peek(b, "k")
	if d := s.decided(second.Settle(ctx, 0)); d.Remaining != 10 {
		s.broken("a bucket of 10, one a second: 5 and 5 were held, the first hold was settled with 4 a second later and the second one with 0 when nothing had been granted for 4 seconds. Remaining is %d",
			d.Remaining)
	}
}

// testCharge puts keys into debt.
func testCharge(s *suite) {
	for name, alg := range Algorithms() {
		if !countsDenied(alg) {
			testDebt(s, name, alg)
		}
	}
	testDebtOfBucket(s)
	testDebtOfLog(s)
}

// testDebt charges one event of a key that grants no more, and waits until its debt is paid.
func testDebt(s *suite, name string, alg ratelimit.Algorithm) {
	b := s.bench(alg)
	b.AllowN("k", s.peek(b, "k").Limit)
	before := s.peek(b, "k")
	d, err := b.Charge(ctx, "k", 1)
	if errors.Is(err, ratelimit.ErrDebt) {
		return // the state has no room for a debt
	}
	s.succeeded(err)
	if d.Allowed || d.Remaining > 0 || d.RetryAfter < before.RetryAfter {
		s.broken("%s: all events were taken and one more charged: %+v\nand before it, %+v",
			name, d, before)
	}
	if peek := s.peek(b, "k"); peek != d {
		s.broken("%s: Charge returned %+v\nbut then Peek returns %+v", name, d, peek)
	}
	if d.RetryAfter > 1000*time.Hour {
		return
	}
	b.clk.Advance(d.RetryAfter - s.Tick)
	if s.take(b, "k", 1).Allowed {
		s.broken("%s: allowed %v before RetryAfter, %v", name, s.Tick, d.RetryAfter)
	}
	b.clk.Advance(s.Tick)
	if d := s.take(b, "k", 1); !d.Allowed {
		s.broken("%s: the debt is paid, but %+v", name, d)
	}
}

// testDebtOfBucket charges 3 events of an empty bucket. The bucket grants the next event once 4
// tokens have been refilled: 3 for the debt, and 1 for the event.
func testDebtOfBucket(s *suite) {
	b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5})
	b.AllowN("k", 5)
	got := s.decided(b.Charge(ctx, "k", 3))
	want := ratelimit.Decision{Limit: 5, RetryAfter: 4 * time.Second, ResetAfter: 8 * time.Second}
	if got != want {
		s.broken("5 tokens of 5 were taken and 3 more charged:\n%+v\ninstead of\n%+v", got, want)
	}
}

// testDebtOfLog has many callers charge events of a log. The log grants nothing until these events
// leave its window. A settlement for more events than were held also makes a debt.
func testDebtOfLog(s *suite) {
	b := s.bench(ratelimit.SlidingLog{Limit: 5, Window: time.Hour})
	contend(goroutines, tries, func() bool {
		_, err := b.Charge(context.Background(), "k", 1)
		return err == nil
	})
	b.clk.Advance(time.Hour - s.Tick)
	if d := s.peek(b, "k"); d.Allowed || d.RetryAfter != s.Tick {
		s.broken("%d events were charged concurrently with a limit of 5 in an hour: %+v one tick "+
			"before it is over", goroutines*tries, d)
	}
	r, d, err := b.Hold(ctx, "k", 0)
	if r == nil {
		s.broken("a hold of 0 was denied: %+v, %v", d, err)
	}
	if d := s.decided(r.Settle(ctx, 6)); d.RetryAfter != time.Hour {
		s.broken("0 held, 6 of 5 happened: RetryAfter is %v instead of %v", d.RetryAfter, time.Hour)
	}
}

// hasInFlight reports whether alg limits events in flight, or has a part that does.
func hasInFlight(alg ratelimit.Algorithm) bool {
	switch alg := alg.(type) {
	case ratelimit.InFlight:
		return true
	case ratelimit.All:
		return slices.ContainsFunc(alg, hasInFlight)
	}
	return false
}
