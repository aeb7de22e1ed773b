// Package linear_test checks that concurrent histories of a limiter are linearizable: the
// results of concurrent calls equal those of the same calls made one after the other, in
// some order, in which a call that had returned before another one began comes before it.
//
// So a caller may think of a limiter as one that decides on one call at a time. A store that loses
// an update, decides on a state that was replaced meanwhile, or shows half of a change has
// histories for which there is no such order.
//
// A check has three parts, and a file for each:
//
//   - history_test.go calls a limiter from a few goroutines, and records the calls, their results,
//     and when they began and ended.
//   - sequential_test.go defines what a limiter answers to one call after the other: what the
//     compiled limit answers, applied to a state that nobody shares. That the compiled limit is
//     right is checked elsewhere, by internal/laws.
//   - Porcupine searches for an order of the calls in which the definition has the same results
//     (recorder_test.go).
//
// together_test.go has the first two parts for decisions on several keys, and inflight_test.go for
// an InFlight. The tests named TestCatches show that a check can fail.
package linear_test

import (
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

var algorithms = map[string]ratelimit.Algorithm{
	"TokenBucket":          ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4},
	"TokenBucket/wide":     ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7), Burst: 4},
	"TokenBucket/interval": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Refill: ratelimit.RefillInterval},
	"LeakyBucket":          ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(3), Capacity: 4},
	"FixedWindow":          ratelimit.FixedWindow{Limit: 4, Window: time.Second},
	"CalendarWindow":       ratelimit.CalendarWindow{Limit: 4, Every: ratelimit.Day},
	"SlidingWindow":        ratelimit.SlidingWindow{Limit: 4, Window: time.Second, Segments: 4},
	"SlidingWindow/pair":   ratelimit.SlidingWindow{Limit: 4, Window: time.Second},
	"SlidingLog":           ratelimit.SlidingLog{Limit: 4, Window: time.Second},
	"Lockout":              ratelimit.Lockout{Limit: 4, Window: time.Second, First: 300 * time.Millisecond, Longest: time.Second},
	"SlidingLog/denied":    ratelimit.SlidingLog{Limit: 4, Window: time.Second, CountDenied: true},
	"RollingWindow":        ratelimit.RollingWindow{Quota: 8, Window: 2 * time.Second, Period: time.Second / 2, PeriodLimit: 4},
	"WarmingUp":            ratelimit.WarmingUp{Rate: ratelimit.PerSecond(3), Warmup: time.Second},
	"All": ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4},
		ratelimit.SlidingLog{Limit: 6, Window: 2 * time.Second},
	},
}

// TestLinearizable: calls on a few keys, whatever else happens to the store.
func TestLinearizable(t *testing.T) {
	for name, alg := range algorithms {
		for settingName, s := range settings {
			if s.keys > 0 && !strings.HasPrefix(name, "TokenBucket") && name != "SlidingWindow" {
				continue // one algorithm of each width is enough
			}
			t.Run(name+"/"+settingName, func(t *testing.T) {
				t.Parallel()
				for seed := range budget.Seeds(t, s.seeds) {
					check(t, []ratelimit.Algorithm{alg}, s, seed)
				}
			})
		}
	}
}

// TestLinearizableHolds: the same with holds, settlements and charges.
func TestLinearizableHolds(t *testing.T) {
	for name, alg := range algorithms {
		for _, settingName := range []string{"quiet", "growing", "evicting"} {
			t.Run(name+"/"+settingName, func(t *testing.T) {
				t.Parallel()
				set := settings[settingName]
				set.holds = true
				for seed := range budget.Seeds(t, set.seeds) {
					check(t, []ratelimit.Algorithm{alg}, set, seed)
				}
			})
		}
	}
}

// TestLinearizableLimits: the same while the limits of keys change.
func TestLinearizableLimits(t *testing.T) {
	slow, fast := ratelimit.PerSecond(2), ratelimit.PerSecond(5)
	window := func(limit int, window time.Duration) ratelimit.Algorithm {
		return ratelimit.FixedWindow{Limit: limit, Window: window}
	}
	limits := map[string][]ratelimit.Algorithm{
		"TokenBucket": {
			ratelimit.TokenBucket{Rate: slow, Burst: 6},
			ratelimit.TokenBucket{Rate: fast, Burst: 6},
			ratelimit.TokenBucket{Rate: fast, Burst: 3},
		},
		"LeakyBucket": {ratelimit.LeakyBucket{Rate: slow, Capacity: 6}, ratelimit.LeakyBucket{Rate: fast, Capacity: 3}},
		"FixedWindow": {window(6, time.Second), window(3, time.Second), window(4, 2*time.Second)},
		"kinds":       {window(4, time.Second), ratelimit.TokenBucket{Rate: slow, Burst: 4}},
		"places": {
			ratelimit.TokenBucket{Rate: slow, Burst: 4},
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7), Burst: 5},
			ratelimit.TokenBucket{Rate: fast, Burst: 2},
			ratelimit.SlidingLog{Limit: 4, Window: time.Second},
		},
	}
	for name, algs := range limits {
		for _, settingName := range []string{"quiet", "growing", "evicting"} {
			t.Run(name+"/"+settingName, func(t *testing.T) {
				t.Parallel()
				set := settings[settingName]
				for seed := range budget.Seeds(t, set.seeds) {
					check(t, algs, set, seed)
				}
			})
		}
	}
}

// check makes a history of a limiter, and fails the test unless it is linearizable, and unless the
// observer was told of each decision once. If there is more than one limit, each call is made with
// one of them.
func check(t *testing.T, limits []ratelimit.Algorithm, set setting, seed uint64) {
	t.Helper()
	h := newHistory(t, limits, set, seed)
	h.callAtOnce(seed)
	if h.observed != nil {
		h.observed.check(t, seed, h.ops)
	}
	h.check(t, seed, sequential(compiled(t, limits...), h.times))
}

// compiled returns the limits as their definitions apply them.
func compiled(t *testing.T, algs ...ratelimit.Algorithm) (limits []*limit.Limit) {
	t.Helper()
	for _, alg := range algs {
		one, err := fakes.NewLimit(alg)
		if err != nil {
			t.Fatal(err)
		}
		limits = append(limits, one)
	}
	return limits
}

// TestCatchesLostUpdate checks that the check can fail, on a store that loses updates, the
// most common bug in stores.
func TestCatchesLostUpdate(t *testing.T) {
	limits := compiled(t, ratelimit.FixedWindow{Limit: 4, Window: time.Second})
	told := func(remaining int) ratelimit.Decision {
		return ratelimit.Decision{Allowed: true, Limit: 4, Remaining: remaining, ResetAfter: time.Second}
	}
	take := call{op: "take", key: "a", n: 1}
	history := func(first, second int) []porcupine.Operation {
		return []porcupine.Operation{
			{ClientId: 0, Input: take, Output: told(first), Call: 0, Return: 10},
			{ClientId: 1, Input: take, Output: told(second), Call: 5, Return: 15},
		}
	}
	if !porcupine.CheckOperations(sequential(limits, times{0}), history(2, 3)) {
		t.Error("two overlapping calls may take effect in either order")
	}
	if porcupine.CheckOperations(sequential(limits, times{0}), history(3, 3)) {
		t.Error("two calls were granted the same event, and the check did not notice")
	}
}

// TestCatchesLostSettlement: the same for a settlement.
func TestCatchesLostSettlement(t *testing.T) {
	limits := compiled(t, ratelimit.FixedWindow{Limit: 4, Window: time.Second})
	told := func(remaining int) ratelimit.Decision {
		return ratelimit.Decision{Allowed: true, Limit: 4, Remaining: remaining, ResetAfter: time.Second}
	}
	history := func(last int) []porcupine.Operation {
		return []porcupine.Operation{
			{Input: call{op: "hold", key: "a", n: 2, hold: 7}, Output: told(2), Call: 0, Return: 10},
			{Input: call{op: "settle", key: "a", n: 1, hold: 7}, Output: told(3), Call: 20, Return: 40},
			{ClientId: 1, Input: call{op: "take", key: "a", n: 1}, Output: told(last), Call: 30, Return: 50},
		}
	}
	if !porcupine.CheckOperations(sequential(limits, times{0}), history(2)) {
		t.Error("the take came after the settlement")
	}
	if porcupine.CheckOperations(sequential(limits, times{0}), history(3)) {
		t.Error("the take did not count, and the check did not notice")
	}
}
