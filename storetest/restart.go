package storetest

import (
	"context"
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

	for name, c := range restarts() {
		s.restart(name, c)
	}
}

// A restarted limiter has another limit than before, or gets or loses WithLimits.
type restarted struct {
	was, is         ratelimit.Algorithm
	wasOwn, isOwn   bool // whether it has WithLimits
	used, remaining int  // before and after the restart
}

func restarts() map[string]restarted {
	hourly := func(n int) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: ratelimit.PerHour(n)}
	}
	fixed := func(n int, window time.Duration) ratelimit.Algorithm {
		return ratelimit.FixedWindow{Limit: n, Window: window}
	}
	log := func(n int, window time.Duration) ratelimit.Algorithm {
		return ratelimit.SlidingLog{Limit: n, Window: window}
	}
	const hour = time.Hour
	return map[string]restarted{
		"lower":  {was: hourly(10), is: hourly(7), used: 10},
		"higher": {was: hourly(10), is: hourly(17), used: 10, remaining: 7},
		"WithLimits is added": {
			was: hourly(10), is: hourly(10), isOwn: true, used: 9, remaining: 1},
		"WithLimits is gone": {
			was: hourly(10), is: hourly(10), wasOwn: true, used: 9, remaining: 1},
		"WithLimits and more": {
			was: fixed(10, hour), is: fixed(12, hour), wasOwn: true, used: 9, remaining: 3},
		"hour to day":  {was: fixed(10, hour), is: fixed(10, 24*hour), used: 9, remaining: 1},
		"lower window": {was: fixed(10, hour), is: fixed(5, hour), used: 9},
		"another kind": {was: fixed(10, hour), is: hourly(10), used: 9, remaining: 10},
		"All of one": {
			was: ratelimit.All{hourly(10)}, is: ratelimit.All{hourly(12)}, used: 9, remaining: 3},
		"a log": {was: log(10, hour), is: log(12, 2*hour), used: 9, remaining: 3},
	}
}

// ofNoKey looks up limits of keys, and finds none.
func ofNoKey(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil }

// restart uses a key, and restarts its limiter with another limit.
func (s *suite) restart(name string, c restarted) {
	options := func(isOwn bool) (opts []ratelimit.Option) {
		if isOwn {
			opts = append(opts, ratelimit.WithLimits(ofNoKey))
		}
		return opts
	}
	b := s.bench(c.was, options(c.wasOwn)...)
	if !b.AllowN("k", c.used) {
		s.broken("%s: a fresh key was denied %d", name, c.used)
	}
	b = s.reopened(b, c.is, options(c.isOwn)...)
	for range 2 { // the second time, the state has been stored again
		if d := s.peek(b, "k"); d.Remaining != c.remaining {
			s.broken("%s: %d of %+v were used; after a restart with %+v, %d remain, want %d",
				name, c.used, c.was, c.is, d.Remaining, c.remaining)
		}
		s.take(b, "k", c.remaining+1)
	}
	if c.remaining > 0 && !b.AllowN("k", c.remaining) || b.Allow("k") {
		s.broken("%s: Remaining is %d, but that is not what can be taken", name, c.remaining)
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
