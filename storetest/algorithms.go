package storetest

import (
	"math"
	"time"
	_ "time/tzdata" // so that a machine without zone data can run the tests

	"github.com/ratelimit-go/ratelimit"
)

// Algorithms returns algorithms of every kind, with ordinary and extreme parameters, by
// name. Run compares them with the reference model.
func Algorithms() map[string]ratelimit.Algorithm {
	return map[string]ratelimit.Algorithm{
		"TokenBucket/10 per second": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
		"TokenBucket/7 per second, burst 3": ratelimit.TokenBucket{
			Rate:  ratelimit.PerSecond(7),
			Burst: 3,
		},
		"TokenBucket/3 per second, burst 20": ratelimit.TokenBucket{
			Rate: ratelimit.PerSecond(3), Burst: 20},
		"TokenBucket/huge": ratelimit.TokenBucket{
			Rate: ratelimit.Rate{
				Events: math.MaxInt32,
				Per:    977 * time.Second,
			}, Burst: math.MaxInt32 - 1},
		"TokenBucket/interval": ratelimit.TokenBucket{
			Rate: ratelimit.Rate{Events: 5, Per: time.Minute}, Refill: ratelimit.RefillInterval},
		"TokenBucket/interval, burst above": ratelimit.TokenBucket{
			Rate: ratelimit.PerSecond(4), Burst: 11, Refill: ratelimit.RefillInterval},
		"TokenBucket/interval, burst below": ratelimit.TokenBucket{
			Rate: ratelimit.PerSecond(5), Burst: 3, Refill: ratelimit.RefillInterval},
		"LeakyBucket/strict": ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10)},
		"LeakyBucket/queue":  ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(7), Capacity: 10},
		"FixedWindow/aligned": ratelimit.FixedWindow{
			Limit: 5, Window: time.Minute},
		"FixedWindow/aligned, two words": ratelimit.FixedWindow{
			Limit: math.MaxInt32 - 1, Window: 10 * time.Microsecond},
		"FixedWindow/first event": ratelimit.FixedWindow{
			Limit: 5, Window: time.Minute, Start: ratelimit.StartOnFirstEvent},
		"CalendarWindow/day": ratelimit.CalendarWindow{
			Limit: 5, Every: ratelimit.Day, Zone: "Europe/London", Hour: 4},
		"CalendarWindow/month, two words": ratelimit.CalendarWindow{
			Limit: math.MaxInt >> 23, Every: ratelimit.Month, Zone: "America/New_York", Start: 31},
		"SlidingWindow/pair": ratelimit.SlidingWindow{Limit: 10, Window: time.Minute},
		"SlidingWindow/six segments": ratelimit.SlidingWindow{
			Limit: 10, Window: time.Minute, Segments: 6},
		"SlidingWindow/wide": ratelimit.SlidingWindow{
			Limit: math.MaxInt >> 23, Window: time.Minute, Segments: 3},
		"SlidingLog": ratelimit.SlidingLog{Limit: 6, Window: 10 * time.Second},
		"SlidingLog/count denied": ratelimit.SlidingLog{
			Limit:       4,
			Window:      10 * time.Second,
			CountDenied: true,
		},
		"InFlight": ratelimit.InFlight{Limit: 5, Timeout: 10 * time.Second},
		"Lockout": ratelimit.Lockout{
			Limit: 5, Window: 15 * time.Minute, First: time.Minute, Longest: 24 * time.Hour},
		"Lockout/all alike": ratelimit.Lockout{
			Limit: 3, Window: 2 * time.Second, First: 5 * time.Second},
		"Lockout/huge": ratelimit.Lockout{
			Limit: math.MaxInt >> 23, Window: time.Hour, First: 1e3, Longest: 100 * 24 * time.Hour},
		"RollingWindow/Nominet": ratelimit.RollingWindow{
			Quota: 40, Window: 24 * time.Hour, Period: time.Hour, PeriodLimit: 7},
		"RollingWindow/no period limit": ratelimit.RollingWindow{
			Quota: 9, Window: time.Minute, Period: 20 * time.Second},
		"RollingWindow/one period": ratelimit.RollingWindow{
			Quota: 9, Window: time.Minute, Period: time.Minute},
		"WarmingUp": ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: 3 * time.Second},
		"All/two": ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)},
			ratelimit.FixedWindow{Limit: 12, Window: time.Minute}},
		"All/of everything": ratelimit.All{
			ratelimit.SlidingLog{Limit: 8, Window: 5 * time.Second},
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 6},
			ratelimit.SlidingWindow{Limit: 30, Window: time.Minute, Segments: 4},
			ratelimit.SlidingLog{Limit: 7, Window: 4 * time.Second},
			ratelimit.All{
				ratelimit.RollingWindow{
					Quota:       50,
					Window:      time.Minute,
					Period:      15 * time.Second,
					PeriodLimit: 20,
				},
				ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 6}}},
		"All/lockout": ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 9},
			ratelimit.Lockout{
				Limit: 4, Window: 3 * time.Second, First: time.Second, Longest: 7 * time.Second}},
		"All/in flight": ratelimit.All{
			ratelimit.InFlight{Limit: 4, Timeout: 3 * time.Second},
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 6}},
		"All/with a queue": ratelimit.All{
			ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(5), Capacity: 4},
			ratelimit.FixedWindow{Limit: 9, Window: 2 * time.Second}},
		"All/with a calendar": ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(2), Burst: 6},
			ratelimit.CalendarWindow{Limit: 15, Every: ratelimit.Week, Zone: "Asia/Kolkata"}},
		"All/with an unlimited part": ratelimit.All{
			ratelimit.Unlimited{},
			ratelimit.SlidingLog{Limit: 6, Window: 4 * time.Second},
			ratelimit.Unlimited{},
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 5}},
	}
}

// Plans returns algorithms that need no state, by name: they grant everything, or nothing.
// Run does not test them, because no store is asked for their decisions.
func Plans() map[string]ratelimit.Algorithm {
	return map[string]ratelimit.Algorithm{
		"Unlimited":     ratelimit.Unlimited{},
		"Blocked":       ratelimit.Blocked{},
		"All/unlimited": ratelimit.All{ratelimit.Unlimited{}, ratelimit.Unlimited{}},
		"All/blocked": ratelimit.All{
			ratelimit.SlidingLog{Limit: 4, Window: 10 * time.Second, CountDenied: true},
			ratelimit.Blocked{}, ratelimit.Unlimited{}},
	}
}
