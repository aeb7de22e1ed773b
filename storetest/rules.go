package storetest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// This file lists the promises that a store can break, with the test of each. The name of a promise
// is that of its subtest of Run. What no store can break is in the packages of internal/laws.

// A rule is the text of a promise of package ratelimit, and its test.
type rule struct {
	text string
	test func(*suite)
}

var rules = map[string]rule{
	"Exact": {
		"decisions are those of the mathematical definition, " +
			"and keep what earlier ones have told",
		testExact,
	},
	"Atomic": {
		"any number of goroutines together get exactly what one would have got",
		testAtomic,
	},
	"Forgetting": {
		"a key is forgotten only when its state equals a fresh key's",
		testForgetting,
	},
	"Meanwhile": {
		"changes that other calls make while a request is being decided are not lost",
		testMeanwhile,
	},
	"Contexts": {
		"each call uses its own context, and ending one affects no other call",
		testContexts,
	},
	"Names": {
		"limiters with different names share nothing, " +
			"and limiters with the same name share all states",
		testNames,
	},
	"Reset": {"Reset makes a key fresh, and affects no other key of any name", testReset},
	"SameName": {
		"limiters with one name and different algorithms are refused or kept apart",
		testSameName,
	},
	"Keys": {"different strings are different keys", testKeys},
	"ManyKeys": {
		"a key in use is kept, however many other keys there are",
		testManyKeys,
	},
	"LargeStates": {"a state is stored unchanged, however large it is", testLargeStates},
	"Restart": {
		"a store that is reopened has its states, even if limits have changed",
		testRestart,
	},
	"Handles": {
		"several handles on one store, as in several processes, act like one",
		testHandles,
	},
}

// timedRules are tested after the others, because the limiter's timeout is in real time.
var timedRules = map[string]rule{
	"Contended": {
		"many callers of one key get what one would get, and none is decided by the FailurePolicy",
		testContended,
	},
}

var ctx = context.Background()

// hundreds returns limits by name, one for each way in which a state counts events. During a test,
// no event comes back. All of them but the WarmingUp grant 100.
func hundreds() map[string]ratelimit.Algorithm {
	const hour = time.Hour
	fixed := ratelimit.FixedWindow{Limit: 100, Window: hour}
	rate := ratelimit.PerHour(100)
	return map[string]ratelimit.Algorithm{
		"TokenBucket": ratelimit.TokenBucket{Rate: rate},
		"TokenBucket/wide": ratelimit.TokenBucket{
			Rate: ratelimit.Rate{Events: 101, Per: hour}, Burst: 100},
		"TokenBucket/interval": ratelimit.TokenBucket{Rate: rate, Refill: ratelimit.RefillInterval},
		"LeakyBucket":          ratelimit.LeakyBucket{Rate: rate, Capacity: 100},
		"FixedWindow":          fixed,
		"CalendarWindow":       ratelimit.CalendarWindow{Limit: 100, Every: ratelimit.Day},
		"SlidingWindow":        ratelimit.SlidingWindow{Limit: 100, Window: hour, Segments: 4},
		"SlidingLog":           ratelimit.SlidingLog{Limit: 100, Window: hour},
		"RollingWindow":        ratelimit.RollingWindow{Quota: 100, Window: 4 * hour, Period: hour},
		"Lockout":              ratelimit.Lockout{Limit: 100, Window: hour, First: hour},
		"WarmingUp":            ratelimit.WarmingUp{Rate: ratelimit.PerHour(1), Warmup: hour},
		"All": ratelimit.All{
			fixed, ratelimit.SlidingLog{Limit: 130, Window: hour}},
	}
}

func testAtomic(s *suite) {
	for name, alg := range hundreds() {
		b := s.bench(alg)
		any := s.handles(b, alg)
		limit := s.peek(b, "k").Limit
		allowed := contend(goroutines, tries, func() bool { return any().Allow("k") })
		if allowed != limit {
			s.broken("%s: %d of %d concurrent calls were allowed, the limit is %d",
				name, allowed, goroutines*tries, limit)
		}
	}
}

const goroutines, tries = 16, 25

// contend calls f from many goroutines, several times from each, and returns how often it was true.
func contend(goroutines, tries int, f func() bool) int {
	var wg sync.WaitGroup
	var n atomic.Int64
	for range goroutines {
		wg.Go(func() {
			for range tries {
				if f() {
					n.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(n.Load())
}

// testContended has so many callers of one key that a store cannot serve them one after the other
// before the limiter's timeout.
func testContended(s *suite) {
	const callers, limit = 400, 50
	s.watch.impatient = true
	b := s.bench(ratelimit.FixedWindow{Limit: limit, Window: time.Hour},
		ratelimit.WithFailureLog(nil))
	var degraded atomic.Int64
	granted := contend(callers, 1, func() bool {
		d, _ := b.Take(ctx, "k", 1)
		if d.Degraded {
			degraded.Add(1)
		}
		return d.Allowed
	})
	if degraded.Load() > 0 || granted != limit {
		s.broken("%d concurrent calls of one key with a limit of %d: %d were granted, "+
			"and %d were not decided by the store, because it failed or took more than a second",
			callers, limit, granted, degraded.Load())
	}
}

func testForgetting(s *suite) {
	testForever(s)
	// The test uses many more keys in all than at a time. It exhausts each key, which must remain
	// exhausted until the exact tick at which it is fresh.
	subtests(s, map[string]ratelimit.Algorithm{
		"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(4), Burst: 2},
		"SlidingLog":  ratelimit.SlidingLog{Limit: 2, Window: 500 * time.Millisecond},
		"WarmingUp": ratelimit.WarmingUp{
			Rate:   ratelimit.PerSecond(8),
			Warmup: 250 * time.Millisecond,
		},
	}, func(s *suite, alg ratelimit.Algorithm) {
		b := s.bench(alg)
		type used struct {
			key   string
			fresh time.Time
		}
		var inUse []used
		for i := range s.Steps {
			key := fmt.Sprint("key ", i)
			limit := s.peek(b, key).Limit
			d := s.take(b, key, limit)
			if !d.Allowed {
				s.broken("%T: a new key was denied: %+v", alg, d)
			}
			inUse = append(inUse, used{key, b.clk.Now().Add(d.ResetAfter)})
			b.clk.Advance(s.roundUp(d.ResetAfter/10) + s.Tick)
			for len(inUse) > 0 && !b.clk.Now().Before(inUse[0].fresh) {
				if d := s.peek(b, inUse[0].key); d.Remaining != limit || d.ResetAfter != 0 {
					s.broken("%T: an idle key is not like a fresh one: %+v", alg, d)
				}
				inUse = inUse[1:]
			}
			for _, u := range inUse {
				if d := s.peek(b, u.key); d.ResetAfter != u.fresh.Sub(b.clk.Now()) {
					s.broken("%T: a key that is in use was forgotten: %+v", alg, d)
				}
			}
		}
	})
}

// testForever has limits whose events count for a year, or always, so that a key never expires.
func testForever(s *suite) {
	for _, window := range []time.Duration{365 * 24 * time.Hour, math.MaxInt64} {
		usedForLong(s, ratelimit.FixedWindow{
			Limit:  1,
			Window: window,
			Start:  ratelimit.StartOnFirstEvent,
		})
	}
}

// usedForLong uses up a key, which has to wait for more than 3,000 hours.
func usedForLong(s *suite, alg ratelimit.Algorithm) {
	b := &bench{clk: NewClock(start)}
	b.store = s.watch.store(s.New(s.T, b.clk))
	l, err := s.tryLimiter(b, alg)
	if err != nil {
		return // a store with a coarser clock may refuse it
	}
	b.Limiter = l
	for range 3 {
		s.take(b, "k", 1)
		b.clk.Advance(1000 * time.Hour)
	}
	if d := s.peek(b, "k"); d.Allowed {
		s.broken("%v: a key was forgotten after 3000 hours: %+v", alg, d)
	}
}
