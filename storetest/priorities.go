package storetest

import (
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// This file tests limits that differ only in how much they grant: calls of less importance leave
// what the smaller limit lacks to all others.

// priorities returns functions, by name, each of which makes limits of a kind that differ only in
// the number that is granted at once. The limits regain nearly nothing during a test.
func priorities() map[string]func(n int) ratelimit.Algorithm {
	const long = 1000 * time.Hour
	rate := ratelimit.Rate{Events: 10, Per: long}
	return map[string]func(n int) ratelimit.Algorithm{
		"TokenBucket": func(n int) ratelimit.Algorithm { return ratelimit.TokenBucket{Rate: rate, Burst: n} },
		"TokenBucket/interval": func(n int) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: rate, Burst: n, Refill: ratelimit.RefillInterval}
		},
		"LeakyBucket": func(n int) ratelimit.Algorithm { return ratelimit.LeakyBucket{Rate: rate, Capacity: n} },
		"FixedWindow": func(n int) ratelimit.Algorithm { return ratelimit.FixedWindow{Limit: n, Window: long} },
		"FixedWindow/first event": func(n int) ratelimit.Algorithm {
			return ratelimit.FixedWindow{Limit: n, Window: long, Start: ratelimit.StartOnFirstEvent}
		},
		"CalendarWindow": func(n int) ratelimit.Algorithm {
			return ratelimit.CalendarWindow{Limit: n, Every: ratelimit.Year}
		},
		"SlidingWindow": func(n int) ratelimit.Algorithm { return ratelimit.SlidingWindow{Limit: n, Window: long} },
		"SlidingWindow/segments": func(n int) ratelimit.Algorithm {
			return ratelimit.SlidingWindow{Limit: n, Window: long, Segments: 5}
		},
		"SlidingLog": func(n int) ratelimit.Algorithm { return ratelimit.SlidingLog{Limit: n, Window: long} },
		"RollingWindow": func(n int) ratelimit.Algorithm {
			return ratelimit.RollingWindow{Quota: n, Window: long, Period: long / 10}
		},
		"InFlight": func(n int) ratelimit.Algorithm { return ratelimit.InFlight{Limit: n, Timeout: long} },
		"All": func(n int) ratelimit.Algorithm {
			return ratelimit.All{ratelimit.TokenBucket{Rate: rate, Burst: n}, ratelimit.FixedWindow{Limit: n, Window: long}}
		},
	}
}

// testPriorities asks by turns with limits that share a state.
func testPriorities(s *suite) {
	for name, of := range priorities() {
		var limit ratelimit.Algorithm
		b := s.bench(of(10), ownLimit(&limit))
		used := 0
		for i := range 36 {
			most := []int{5, 8, 10}[i%3]
			limit = of(most)
			d := s.take(b, "k", 1)
			if d.Allowed != (used < most) {
				s.broken("%s: with %d of 10 in use, a limit of %d returned %+v", name, used, most, d)
			}
			if d.Allowed {
				used++
			}
			if d.Limit != most || d.Remaining != max(0, most-used) {
				s.broken("%s: with %d of 10 in use, a limit of %d has %+v", name, used, most, d)
			}
			b.clk.Advance(s.roundUp(time.Millisecond))
		}
		limit = of(8)
		d := s.take(b, "k", 1)
		b.clk.Advance(d.RetryAfter - s.Tick)
		if s.peek(b, "k").Allowed {
			s.broken("%s: granted %v before RetryAfter, %v", name, s.Tick, d.RetryAfter)
		}
		b.clk.Advance(s.Tick)
		if !s.peek(b, "k").Allowed {
			s.broken("%s: denied at RetryAfter, %v", name, d.RetryAfter)
		}
	}
}
