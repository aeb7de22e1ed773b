package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// This file lists the promises that a store keeps, with the test of each. The name of a promise is
// that of its subtest of Run.

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
	"RetryAfter": {
		"one tick before RetryAfter, the same request is still denied; at RetryAfter, it is granted",
		testRetryAfter,
	},
	"CountDenied": {
		"denied events are counted with CountDenied, and only then",
		testCountDenied,
	},
	"Atomic": {
		"any number of goroutines together get exactly what one would have got",
		testAtomic,
	},
	"AllOrNothing": {"an All is spent in all parts or in none", testAllOrNothing},
	"Forgetting": {
		"a key is forgotten only when its state equals a fresh key's",
		testForgetting,
	},
	"ClockBack": {"a clock that steps back never grants more", testClockBack},
	"Calendars": {
		"windows of a calendar begin when the clock of their zone first shows their beginning",
		testCalendars,
	},
	"Cancel": {
		"a cancelled reservation gives back what can still be given back",
		testCancel,
	},
	"Wait": {"Wait spends nothing if its deadline is before its turn", testWait},
	"Settle": {
		"a settled key is as if only the events that happened had been taken, " +
			"and never grants more than that",
		testSettle,
	},
	"Holds": {
		"an open hold is a part of its key: it ends by itself at its time, " +
			"and any process that has its token can settle it once",
		testHolds,
	},
	"Charge": {
		"charged events count beyond the limit, and a debt is paid at RetryAfter",
		testCharge,
	},
	"InFlight": {
		"events in flight count until they are released, or for the Timeout, " +
			"and a late release does not release other events",
		testInFlight,
	},
	"Each": {
		"TakeEach decides on keys as a loop of Take does, even on a key that occurs several times",
		testEach,
	},
	"UpTo": {
		"TakeUpTo takes the events that remain, in one decision, and is otherwise denied one",
		testUpTo,
	},
	"Together": {
		"TakeAll spends in all keys or in none, and as much as a Take of each key would",
		testTogether,
	},
	"Reset": {"Reset makes a key fresh, and affects no other key", testReset},
	"Meanwhile": {
		"changes that other calls make while a request is being decided are not lost",
		testMeanwhile,
	},
	"Contexts": {
		"each call uses its own context, and ending one affects no other call",
		testContexts,
	},
	"Changes": {"a key whose limit changes keeps the events it has used", testChanges},
	"Priorities": {
		"limits that differ only in how much they grant have one state, and RetryAfter is exact in each",
		testPriorities,
	},
	"Plans": {
		"Unlimited grants everything and Blocked nothing, " +
			"and a key that has one of them for a while keeps its usage",
		testPlans,
	},
	"Names": {
		"limiters with different names share nothing, and limiters with the same name share all states",
		testNames,
	},
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

func testRetryAfter(s *suite) {
	for name, alg := range Algorithms() {
		b := s.bench(alg)
		for range 20 {
			d := s.take(b, "k", 1)
			if d.Allowed {
				continue
			}
			b.clk.Advance(d.RetryAfter - s.Tick)
			if s.peek(b, "k").Allowed {
				s.broken("%s: allowed %v before RetryAfter, %v", name, s.Tick, d.RetryAfter)
			}
			b.clk.Advance(s.Tick)
			if !s.peek(b, "k").Allowed {
				s.broken("%s: denied at RetryAfter, %v", name, d.RetryAfter)
			}
		}
	}
}

func countsDenied(alg ratelimit.Algorithm) bool {
	l, ok := alg.(ratelimit.SlidingLog)
	return ok && l.CountDenied
}

func testCountDenied(s *suite) {
	for _, counted := range []bool{false, true} {
		b := s.bench(ratelimit.SlidingLog{Limit: 2, Window: 10 * time.Second, CountDenied: counted})
		b.AllowN("k", 2)
		b.clk.Advance(9 * time.Second)
		b.Allow("k") // denied
		b.clk.Advance(time.Second)
		// The first two events have left the window, and the denied event has not.
		if d := s.peek(b, "k"); d.Remaining != 2 && !counted || d.Remaining != 1 && counted {
			s.broken("CountDenied %v: %+v", counted, d)
		}
	}
}

func testAtomic(s *suite) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"TokenBucket":          ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)},
		"TokenBucket/wide":     ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 101, Per: time.Hour}, Burst: 100},
		"TokenBucket/interval": ratelimit.TokenBucket{Rate: ratelimit.PerHour(100), Refill: ratelimit.RefillInterval},
		"LeakyBucket":          ratelimit.LeakyBucket{Rate: ratelimit.PerHour(100), Capacity: 100},
		"FixedWindow":          ratelimit.FixedWindow{Limit: 100, Window: time.Hour},
		"CalendarWindow":       ratelimit.CalendarWindow{Limit: 100, Every: ratelimit.Day},
		"SlidingWindow":        ratelimit.SlidingWindow{Limit: 100, Window: time.Hour, Segments: 4},
		"SlidingLog":           ratelimit.SlidingLog{Limit: 100, Window: time.Hour},
		"RollingWindow":        ratelimit.RollingWindow{Quota: 100, Window: 4 * time.Hour, Period: time.Hour},
		"Lockout":              ratelimit.Lockout{Limit: 100, Window: time.Hour, First: time.Hour},
		"WarmingUp":            ratelimit.WarmingUp{Rate: ratelimit.PerHour(1), Warmup: time.Hour},
		"All":                  ratelimit.All{ratelimit.FixedWindow{Limit: 100, Window: time.Hour}, ratelimit.SlidingLog{Limit: 130, Window: time.Hour}},
	} {
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
		s.broken("%d concurrent calls of one key with a limit of %d: %d were granted, and %d were not decided by the store, because it failed or took more than a second",
			callers, limit, granted, degraded.Load())
	}
}

func testAllOrNothing(s *suite) {
	b := s.bench(ratelimit.All{
		ratelimit.FixedWindow{Limit: 100, Window: 24 * time.Hour},
		ratelimit.FixedWindow{Limit: 10, Window: time.Hour},
	})
	// Each hour, the second part grants 10 events. It refuses further events, which the first part
	// alone would grant. After ten hours, still on the same day, the first part is exhausted.
	for hour := range 10 {
		granted := contend(goroutines, tries, func() bool { return b.AllowN("k", 2) })
		if granted != 5 {
			s.broken("hour %d: AllowN(2) succeeded %d times with a limit of 10", hour, granted)
		}
		b.clk.Advance(time.Hour)
	}
	if d := s.peek(b, "k"); d.Remaining != 0 || d.Part != 0 {
		s.broken("100 of 100 were granted, but then Peek returns %+v", d)
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

// testForever has a limit whose events always count, so that a key never expires.
func testForever(s *suite) {
	alg := ratelimit.FixedWindow{
		Limit:  1,
		Window: math.MaxInt64,
		Start:  ratelimit.StartOnFirstEvent,
	}
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
		s.broken("a key whose limit lasts longer than time was forgotten: %+v", d)
	}
}

func testClockBack(s *suite) {
	for name, alg := range Algorithms() {
		for _, back := range []time.Duration{s.Tick, time.Second, 100 * 365 * 24 * time.Hour} {
			b := s.bench(alg)
			limit := s.peek(b, "k").Limit
			if !b.AllowN("k", limit) {
				s.broken("%s: a fresh key was denied its limit", name)
			}
			before := s.peek(b, "k")
			b.clk.Advance(-back)
			if d := s.peek(b, "k"); d.Remaining > before.Remaining || b.Allow("k") {
				s.broken("%s: the clock went back by %v, and events were granted: %+v",
					name, back, d)
			}
			b.clk.Advance(back)
			if d := s.peek(b, "k"); d != before && !countsDenied(alg) {
				s.broken("%s: the clock went back by %v and forward again: before %+v\nafter %+v",
					name, back, before, d)
			}
		}
	}
}

// testCalendars has days on which the clock of a zone is set: of some, midnight does not exist or
// comes twice.
func testCalendars(s *suite) {
	for _, day := range []struct {
		zone   string
		begins time.Time
		lasts  time.Duration
	}{
		{"Europe/London", in2026(3, 29, 0), 23 * time.Hour},
		{"Europe/London", in2026(10, 24, 23), 25 * time.Hour},
		{"America/New_York", in2026(11, 1, 4), 25 * time.Hour},
		{"Australia/Lord_Howe", in2026(4, 4, 13), 24*time.Hour + 30*time.Minute},
		{"America/Havana", in2026(3, 8, 5), 23 * time.Hour},  // from 1:00 on
		{"America/Havana", in2026(11, 1, 4), 25 * time.Hour}, // from the first midnight on
	} {
		b := s.bench(ratelimit.CalendarWindow{Limit: 2, Every: ratelimit.Day, Zone: day.zone})
		b.clk.Set(day.begins.Add(-s.Tick))
		b.AllowN("k", 2)
		if d := s.take(b, "k", 1); d.Allowed || d.RetryAfter != s.Tick {
			s.broken("%s: a day ends in %v, but %+v", day.zone, s.Tick, d)
		}
		b.clk.Advance(s.Tick)
		if d := s.take(b, "k", 2); !d.Allowed || d.ResetAfter != day.lasts {
			s.broken("%s: a day of %v begins, but %+v", day.zone, day.lasts, d)
		}
		b.clk.Advance(day.lasts - s.Tick)
		if b.Allow("k") {
			s.broken("%s: more than the limit of a day was granted", day.zone)
		}
		b.clk.Advance(s.Tick)
		if !b.Allow("k") {
			s.broken("%s: a day of %v has ended, and the next one grants nothing", day.zone, day.lasts)
		}
	}
}

func in2026(month time.Month, day, hour int) time.Time {
	return time.Date(2026, month, day, hour, 0, 0, 0, time.UTC)
}

func testCancel(s *suite) {
	for name, alg := range Algorithms() {
		b := s.bench(alg)
		limit := s.peek(b, "k").Limit
		if _, queue := alg.(ratelimit.LeakyBucket); queue {
			limit = (limit + 1) / 2 // so that there is room in it
		}
		b.AllowN("k", limit) // so that both are for later
		before := s.peek(b, "k")
		first, _, err := b.Reserve(ctx, "k", 1)
		if err != nil {
			s.broken("%s: Reserve: %v", name, err)
		}
		if first == nil { // a queue is full
			continue
		}
		second, _, err := b.Reserve(ctx, "k", max(1, limit/2))
		if err != nil {
			s.broken("%s: Reserve: %v", name, err)
		}
		if second == nil {
			second = first
		}
		for range 2 {
			second.Cancel()
			first.Cancel()
		}
		if d := s.peek(b, "k"); d != before {
			s.broken("%s: two reservations were cancelled, the last one first: before\n%+v\nafter\n%+v",
				name, before, d)
		}
	}
	// A reservation whose time has passed gives nothing back.
	b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	b.Allow("k")
	r, _, err := b.Reserve(ctx, "k", 1)
	if err != nil {
		s.broken("Reserve: %v", err)
	}
	b.clk.Advance(r.Delay() + s.Tick)
	r.Cancel()
	if b.Allow("k") {
		s.broken("a reservation whose time had passed was given back")
	}
	testCancelTogether(s)
}

// testCancelTogether cancels many reservations concurrently.
func testCancelTogether(s *suite) {
	b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)})
	b.Allow("k")
	before := s.peek(b, "k")
	var wg sync.WaitGroup
	for range 50 {
		r, _, err := b.Reserve(context.Background(), "k", 1)
		if err != nil {
			s.Fatalf("the store failed: %v", err)
		}
		wg.Go(r.Cancel)
	}
	wg.Wait()
	if d := s.peek(b, "k"); d != before {
		s.broken("50 reservations were cancelled concurrently: before\n%+v\nafter\n%+v", before, d)
	}
}

func testWait(s *suite) {
	b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	if err := b.Wait(ctx, "k"); err != nil {
		s.broken("Wait on a fresh key: %v", err)
	}
	before := s.peek(b, "k")
	near, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(5*time.Second, cancel).Stop() // in case a broken store makes it wait
	err := b.Wait(deadline{near, b.clk.Now().Add(time.Second - s.Tick)}, "k")
	if !errors.Is(err, context.DeadlineExceeded) {
		s.broken("the turn is in 1s and the deadline %v before it, but the error is %v",
			s.Tick, err)
	}
	if err := b.WaitN(ctx, "k", 2); !errors.Is(err, ratelimit.ErrNever) {
		s.broken("WaitN(2) with a limit of 1, but the error is %v", err)
	}
	if d := s.peek(b, "k"); d != before {
		s.broken("a failed Wait changed %+v\nto %+v", before, d)
	}

	b = s.bench(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 2})
	b.AllowN("k", 2)
	if err := b.Wait(ctx, "k"); !errors.Is(err, ratelimit.ErrQueueFull) {
		s.broken("the queue is full, but the error is %v", err)
	}
}

// A deadline is a context whose deadline is by the clock of the test.
type deadline struct {
	context.Context
	at time.Time
}

func (d deadline) Deadline() (time.Time, bool) { return d.at, true }
