package storetest

import (
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// The tests in this file check what a store keeps across restarts and shares between
// processes.

func testRestart(s *suite) {
	if s.Reopen == nil {
		s.Skip("Config.Reopen is nil")
	}
	for name, alg := range Algorithms() {
		b := s.bench(alg)
		limit := s.peek(b, "k").Limit
		b.AllowN("k", limit/2+1)
		b.Allow("\xff other")
		before := s.peek(b, "k")
		for range 2 {
			b = s.reopened(b, alg)
			if d := s.peek(b, "k"); d != before {
				s.broken("%s: before %+v\nafter  %+v", name, before, d)
			}
		}
	}

	own := ownLimit(new(ratelimit.Algorithm)) // a lookup that finds no limit of any key
	hourly := func(n int) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: ratelimit.PerHour(n)}
	}
	fixed := func(n int, window time.Duration) ratelimit.Algorithm {
		return ratelimit.FixedWindow{Limit: n, Window: window}
	}
	for name, tt := range map[string]struct {
		was, is         ratelimit.Algorithm
		wasOwn, isOwn   bool
		used, remaining int
	}{
		"lower":               {was: hourly(10), is: hourly(7), used: 10},
		"higher":              {was: hourly(10), is: hourly(17), used: 10, remaining: 7},
		"WithLimits is added": {was: hourly(10), is: hourly(10), isOwn: true, used: 9, remaining: 1},
		"WithLimits is gone":  {was: hourly(10), is: hourly(10), wasOwn: true, used: 9, remaining: 1},
		"WithLimits and more": {was: fixed(10, time.Hour), is: fixed(12, time.Hour), wasOwn: true, used: 9, remaining: 3},
		"hour to day":         {was: fixed(10, time.Hour), is: fixed(10, 24*time.Hour), used: 9, remaining: 1},
		"lower window":        {was: fixed(10, time.Hour), is: fixed(5, time.Hour), used: 9},
		"another kind":        {was: fixed(10, time.Hour), is: hourly(10), used: 9, remaining: 10},
		"All of one":          {was: ratelimit.All{hourly(10)}, is: ratelimit.All{hourly(12)}, used: 9, remaining: 3},
		"a log":               {was: ratelimit.SlidingLog{Limit: 10, Window: time.Hour}, is: ratelimit.SlidingLog{Limit: 12, Window: 2 * time.Hour}, used: 9, remaining: 3},
	} {
		var was, is []ratelimit.Option
		if tt.wasOwn {
			was = append(was, own)
		}
		if tt.isOwn {
			is = append(is, own)
		}
		b := s.bench(tt.was, was...)
		if !b.AllowN("k", tt.used) {
			s.broken("%s: a fresh key was denied %d", name, tt.used)
		}
		b = s.reopened(b, tt.is, is...)
		for range 2 { // the second time, the state has been stored again
			if d := s.peek(b, "k"); d.Remaining != tt.remaining {
				s.broken("%s: %d of %+v were used; after a restart with %+v, %d remain, want %d",
					name, tt.used, tt.was, tt.is, d.Remaining, tt.remaining)
			}
			s.take(b, "k", tt.remaining+1)
		}
		if tt.remaining > 0 && !b.AllowN("k", tt.remaining) || b.Allow("k") {
			s.broken("%s: Remaining is %d, but that is not what can be taken", name, tt.remaining)
		}
	}
}

func testHandles(s *suite) {
	if s.Reopen == nil {
		s.Skip("Config.Reopen is nil")
	}
	alg := ratelimit.FixedWindow{Limit: 100, Window: time.Hour}
	one := s.bench(alg)
	two := s.reopened(one, alg)
	three := s.reopened(two, alg)
	s.take(one, "k", alg.Limit)
	if d := s.take(three, "k", 1); d.Allowed {
		s.broken("one handle took %d of %d, and another one 1 more", alg.Limit, alg.Limit)
	}
	s.reset(two, "k")
	if d := s.peek(one, "k"); d.Remaining != alg.Limit {
		s.broken("one handle reset the key, and for another one %d of %d remain",
			d.Remaining, alg.Limit)
	}
	s.take(one, "k", 40)
	if d := s.take(three, "k", 40); d.Remaining != 20 {
		s.broken("two handles took 40 of 100 each, and %d remain", d.Remaining)
	}
}
