package storetest

import (
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testInFlight holds events in flight, and releases them in time, too late, or never.
func testInFlight(s *suite) {
	const timeout = 10 * time.Second
	flight := ratelimit.InFlight{Limit: 3, Timeout: timeout}
	for name, alg := range map[string]ratelimit.Algorithm{
		"InFlight": flight,
		"All":      ratelimit.All{ratelimit.FixedWindow{Limit: 1000, Window: 24 * time.Hour}, flight},
	} {
		b := s.bench(alg)
		hold := func(n int) *ratelimit.Reservation {
			r, d, err := b.Hold(ctx, "k", n)
			if err != nil {
				s.Fatalf("%s: the store failed: %v", name, err)
			}
			if (r != nil) != d.Allowed {
				s.broken("%s: Hold returned %v and %+v", name, r, d)
			}
			return r
		}
		left := func(want int, when string) {
			if d := s.peek(b, "k"); d.Remaining != want {
				s.broken("%s: %d may be taken %s, not %d", name, d.Remaining, when, want)
			}
		}
		settle := func(r *ratelimit.Reservation, n int) {
			if r == nil {
				s.broken("%s: a hold was denied though there was room", name)
			} else if _, err := r.Settle(ctx, n); err != nil {
				s.Fatalf("%s: the store failed: %v", name, err)
			}
		}
		first, second := hold(2), hold(1)
		if hold(1) != nil {
			s.broken("%s: 4 of 3 are in flight", name)
		}
		settle(first, 2)
		left(2, "after 2 were released")
		first = hold(2)
		settle(second, 0) // whatever the number
		left(1, "after 1 was released")
		second = hold(1)

		b.clk.Advance(timeout - s.Tick)
		left(0, "before the holds have timed out")
		b.clk.Advance(s.Tick)
		left(3, "when the holds have timed out")
		third := hold(3)
		settle(first, 2)
		settle(second, 1)
		left(0, "after late releases of other holds")
		settle(third, 9)
		left(3, "when everything is released")
	}
}
