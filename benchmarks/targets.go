package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// A target is a goal of this library in a scenario.
type target struct {
	scenario string
	limit    float64
	of       yardstick
	who      string // the contender that it is for, if not the one compared with the peers
	than     string // the contender or the scenario that it is compared with, if the yardstick needs one
	bound    string // the contender that is its lower bound, if that is not the one of every limiter
}

// A yardstick is the quantity that a target's limit is for.
type yardstick int

const (
	bestPeer       yardstick = iota // this library ÷ the best peer
	figure                          // the figure itself
	aboveFloor                      // the figure minus that of no limiter
	timesOther                      // the figure ÷ that of the contender than
	timesScenario                   // the figure ÷ the contender's own in scenario than
	aboveScenario                   // the figure minus the contender's own in scenario than
	besideScenario                  // no target; shown beside the contender's own figure in scenario than
	nothingAsked                    // no target; the figure is only shown
)

// targets returns all targets.
func targets() []target {
	all := []target{
		{scenario: "S1", limit: 0.75, of: bestPeer},
		{scenario: "S1", limit: 0.30, of: bestPeer, who: contenders.CoarseClock},
		{scenario: "S1", limit: 1, of: timesOther, than: contenders.TimeNow},
		{scenario: "S1", of: nothingAsked, who: contenders.Take},
		{scenario: "S2", limit: 0.75, of: bestPeer},
		{scenario: "S2", of: nothingAsked, who: contenders.Take},
		{scenario: "S1", limit: 3, of: timesOther, than: contenders.Take, who: contenders.TakeAllOfTwo},
		{scenario: "S2", limit: 3, of: timesOther, than: contenders.Take, who: contenders.TakeAllOfTwo},
		{scenario: "S1", limit: 3.5, of: timesOther, than: contenders.Take, who: contenders.HoldSettle, bound: contenders.TakePeek},
		{scenario: "S3", limit: 3.5, of: timesOther, than: contenders.Take, who: contenders.HoldSettle, bound: contenders.TakePeek},
		{scenario: "S1", limit: 3.5, of: timesOther, than: contenders.TakePeriods, who: contenders.HoldPeriods, bound: contenders.PeekPeriods},
		{scenario: "S3", limit: 3.5, of: timesOther, than: contenders.TakePeriods, who: contenders.HoldPeriods, bound: contenders.PeekPeriods},
		{scenario: "S2p", limit: 0.35, of: bestPeer},
		{scenario: "S3", limit: 0.60, of: bestPeer},
		{scenario: "I1k", limit: 0.70, of: bestPeer},
		{scenario: "I1k", limit: 1.15, of: timesScenario, than: "S3"},
		{scenario: "I1kp", limit: 0.70, of: bestPeer},
		{scenario: "I1kp", limit: 1.15, of: timesScenario, than: "S3p"},
		{scenario: "I100k", limit: 0.70, of: bestPeer},
		{scenario: "I100k", limit: 1.15, of: timesScenario, than: "S4h"},
		{scenario: "I100kp", limit: 0.70, of: bestPeer},
		{scenario: "I100kp", limit: 1.15, of: timesScenario, than: "S6h"},
		{scenario: "I1M", limit: 0.70, of: bestPeer},
		{scenario: "S4", limit: 0.45, of: bestPeer},
		{scenario: "S4h", limit: 0.45, of: bestPeer},
		{scenario: "S4h-each", limit: 0.4, of: timesScenario, than: "S4h"},
		{scenario: "S5", limit: 1.0, of: bestPeer},
		{scenario: "S6", limit: 0.45, of: bestPeer},
		{scenario: "S6h", limit: 0.45, of: bestPeer},
		{scenario: "S7", limit: 0.50, of: bestPeer},
		{scenario: "S3-own", limit: 1.6, of: timesScenario, than: "S3"},
		{scenario: "S3p-own", limit: 1.6, of: timesScenario, than: "S3p"},
		{scenario: "I1k-own", limit: 1.6, of: timesScenario, than: "I1k"},
		{scenario: "heap-own", limit: 60, of: figure},
		{scenario: "heap-1M", limit: 36, of: figure},
		{scenario: "heap-peak", limit: 64, of: figure},
		{scenario: "gc", limit: 1, of: figure},
		{scenario: "gc", limit: 1, of: aboveFloor},
		{scenario: "longest", limit: 2, of: aboveFloor},
		{scenario: "once-shrunk", limit: 1, of: figure},
		{scenario: "http-36", limit: 5, of: aboveScenario, who: contenders.HeaderKeys, than: "http-16"},
		{scenario: "http-hostile", limit: 3, of: timesOther, than: contenders.Only429},
		{scenario: "rules-none", limit: 1, of: timesOther, than: contenders.LimitAlone},
		{scenario: "rules-one", limit: 5, of: timesOther, than: contenders.LimitAlone},
		{scenario: "rules-one", limit: 1.5, of: timesOther, than: contenders.FewRules},
		{scenario: "R1", limit: 0.55, of: timesOther, than: contenders.RedisRate},
		{scenario: "R1", limit: 0.85, of: timesOther, than: contenders.RedisRate, who: contenders.GoRedis},
		{scenario: "R1", limit: 2.2, of: timesOther, than: contenders.Rueidis, who: contenders.Settles},
		{scenario: "R1", limit: 1.3, of: timesOther, than: contenders.Rueidis, who: contenders.RedisSegments},
		{scenario: "R1", limit: 1.3, of: timesOther, than: contenders.Rueidis, who: contenders.RedisPeriods},
		{scenario: "R1", of: nothingAsked, than: contenders.RedisRate, who: contenders.BareScript},
		{scenario: "R2", limit: 0.10, of: timesOther, than: contenders.RedisRate, who: contenders.Lease},
		{scenario: "R3", limit: 1000, of: figure},
		{scenario: "RE100", of: besideScenario, than: "RE100-loop"},
		{scenario: "RE100", of: besideScenario, than: "RE100-loop", who: contenders.GoRedis},
		{scenario: "RE100-away", limit: 0.15, of: timesScenario, than: "RE100-away-loop"},
		{scenario: "RE100-away", limit: 0.15, of: timesScenario, than: "RE100-away-loop", who: contenders.GoRedis},
		{scenario: "R-bytes", limit: 140, of: figure},
		{scenario: "R-bytes", of: nothingAsked, than: contenders.RedisRate},
	}
	for _, id := range []string{"S1", "S2", "I1k"} { // long keys
		for _, who := range []string{"", contenders.Take} {
			all = append(all, target{scenario: id + "-36", limit: 5, of: aboveScenario, who: who, than: id})
		}
	}
	for _, than := range []string{"S3p", "S5", "I100kp"} { // a loss of a third
		id := strings.TrimSuffix(than, "p") + "-64"
		all = append(all, target{scenario: id, limit: 1.5, of: timesScenario, than: than})
	}
	for _, a := range algorithms {
		for _, id := range algorithmRows {
			all = append(all, target{scenario: id, limit: a.limit, of: bestPeer, who: a.who})
		}
	}
	for _, n := range awayCallers {
		for _, who := range []string{"", contenders.GoRedis} {
			for _, quantile := range []string{p50, p99} {
				all = append(all, target{scenario: away("R1", n, quantile), limit: 1.3, of: timesOther, than: contenders.RedisRate, who: who})
			}
			all = append(all, target{scenario: away("R1", n, byPolicy), limit: 0, of: figure, who: who})
		}
		for _, id := range []string{"R2", "R3"} {
			all = append(all, target{scenario: away(id, n, byPolicy), limit: 0, of: figure})
		}
	}
	return all
}

// algorithmRows are the rows of the table of algorithms.
var algorithmRows = []string{"S1", "S2", "S3"}

// algorithms are the algorithms other than the token bucket, with their limits as compared
// with the best peer in each of algorithmRows.
var algorithms = []struct {
	who   string
	limit float64
}{
	{contenders.LeakyBucket, 0.85},
	{contenders.FixedWindow, 0.85},
	{contenders.IntervalBucket, 1.0},
	{contenders.SlidingWindow, 1.0},
	{contenders.RollingWindow, 1.3},
	{contenders.AllOfTwo, 1.3},
	{contenders.WarmingUp, 1.3},
	{contenders.SlidingLog, 1.5},
}

// The allocations that a decision may make. On a known key there are none, except those of
// the runtime that happen during a batch. On a new key there are those of growing tables and
// splitting shards as well: a few thousand in total until there are a million keys.
const (
	allocsKnown  = 0.001
	allocsUnseen = 0.02
)

// asks reports whether there is a target, and not only a figure to show.
func (t target) asks() bool { return t.of != besideScenario && t.of != nothingAsked }

// algorithm reports whether the target is in the table of algorithms.
func (t target) algorithm() bool {
	for _, a := range algorithms {
		if t.who == a.who {
			return true
		}
	}
	return false
}

// words describes the target.
func (t target) words(u unit) string {
	than := strings.Trim(t.than, "()")
	switch t.of {
	case bestPeer:
		return fmt.Sprintf("≤ %.2f × best peer", t.limit)
	case aboveFloor:
		return fmt.Sprintf("≤ %v %s more than no limiter", t.limit, u)
	case timesOther:
		return fmt.Sprintf("≤ %.2f × %s", t.limit, than)
	case timesScenario:
		return fmt.Sprintf("≤ %.2f × its %s", t.limit, than)
	case aboveScenario:
		return fmt.Sprintf("≤ %v %s more than its %s", t.limit, u, than)
	}
	return fmt.Sprintf("≤ %v %s", t.limit, u)
}

// own returns the entry of the contender that the target is for, if it took part.
func (t target) own(entries []entry) (entry, bool) {
	if t.who == "" {
		return first(entries, contenders.Main)
	}
	return named(entries, t.who)
}

// named returns the entry of a contender, if it took part.
func named(entries []entry, names ...string) (entry, bool) {
	i := slices.IndexFunc(entries, func(e entry) bool { return slices.Contains(names, e.Name) && e.wrong == 0 })
	if i < 0 {
		return entry{}, false
	}
	return entries[i], true
}

// beside returns the entry that own is compared with, if there is one. of returns the entries
// of a scenario.
func (t target) beside(own entry, of func(id string) []entry) (entry, bool) {
	switch t.of {
	case aboveFloor:
		return first(of(t.scenario), contenders.Floor)
	case timesOther:
		return named(of(t.scenario), t.than)
	case timesScenario, aboveScenario, besideScenario:
		return named(of(t.than), own.Name)
	case nothingAsked:
		if t.than != "" {
			return named(of(t.scenario), t.than)
		}
	}
	return first(of(t.scenario), contenders.Peer)
}

// met reports whether the target is met. of returns the entries of a scenario. known is false
// if a necessary contender did not take part.
func (t target) met(of func(id string) []entry) (met, known bool) {
	own, ok := t.own(of(t.scenario))
	if !ok {
		return false, false
	}
	got := own.median()
	if t.of == figure {
		return got <= t.limit, true
	}
	other, ok := t.beside(own, of)
	if !ok {
		return false, false
	}
	switch t.of {
	case aboveFloor, aboveScenario:
		return got-other.median() <= t.limit, true
	}
	return got <= t.limit*other.median(), true
}
