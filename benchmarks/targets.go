package main

import (
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// A target is a goal of this library in a scenario.
type target struct {
	scenario string
	limit    float64
	of       yardstick
	who      string // the contender that it is for, if not this library's token bucket
}

// A yardstick is the quantity that a target's limit is for.
type yardstick int

const (
	bestPeer     yardstick = iota // this library ÷ the best peer
	figure                        // the figure itself
	aboveFloor                    // the figure minus that of no limiter
	oneTimeNow                    // the figure ÷ that of a call of time.Now
	redisRate                     // the figure ÷ that of redis_rate
	only429                       // the figure ÷ that of a handler that only answers 429
	limitAlone                    // the figure ÷ that of a rule's limit without a table of rules
	fewRules                      // the figure ÷ that of a table of a few rules
	oneLimit                      // the figure ÷ that of a limiter with one limit for all keys
	nothingAsked                  // no target; the figure is only shown
)

var targets = []target{
	{scenario: "S1", limit: 0.75, of: bestPeer},
	{scenario: "S1", limit: 0.30, of: bestPeer, who: contenders.CoarseClock},
	{scenario: "S1", limit: 1, of: oneTimeNow},
	{scenario: "S2", limit: 0.75, of: bestPeer},
	{scenario: "S2p", limit: 0.35, of: bestPeer},
	{scenario: "S3", limit: 0.55, of: bestPeer},
	{scenario: "S3", limit: 1.6, of: oneLimit, who: contenders.OwnLimits},
	{scenario: "I1k", limit: 0.70, of: bestPeer},
	{scenario: "I1kp", limit: 0.70, of: bestPeer},
	{scenario: "I100k", limit: 0.70, of: bestPeer},
	{scenario: "I100kp", limit: 0.70, of: bestPeer},
	{scenario: "I1M", limit: 0.70, of: bestPeer},
	{scenario: "S4", limit: 0.45, of: bestPeer},
	{scenario: "S4h", limit: 0.45, of: bestPeer},
	{scenario: "S5", limit: 1.0, of: bestPeer},
	{scenario: "S6", limit: 0.45, of: bestPeer},
	{scenario: "S6h", limit: 0.45, of: bestPeer},
	{scenario: "S7", limit: 0.40, of: bestPeer},
	{scenario: "heap-1M", limit: 36, of: figure},
	{scenario: "heap-peak", limit: 64, of: figure},
	{scenario: "gc", limit: 1, of: figure},
	{scenario: "longest", limit: 2, of: aboveFloor},
	{scenario: "http-hostile", limit: 3, of: only429},
	{scenario: "rules-none", limit: 1, of: limitAlone},
	{scenario: "rules-one", limit: 5, of: limitAlone},
	{scenario: "rules-one", limit: 1.5, of: fewRules},
	{scenario: "R1", limit: 0.55, of: redisRate},
	{scenario: "R1", limit: 0.85, of: redisRate, who: contenders.GoRedis},
	{scenario: "R2", limit: 0.10, of: redisRate, who: contenders.Lease},
	{scenario: "R3", limit: 1000, of: figure},
	{scenario: "R1-64-p50", limit: 1.3, of: redisRate},
	{scenario: "R1-64-p50", limit: 1.3, of: redisRate, who: contenders.GoRedis},
	{scenario: "R1-64-p99", limit: 1.3, of: redisRate},
	{scenario: "R1-64-p99", limit: 1.3, of: redisRate, who: contenders.GoRedis},
	{scenario: "R1-64-policy", limit: 0, of: figure},
	{scenario: "R1-64-policy", limit: 0, of: figure, who: contenders.GoRedis},
	{scenario: "R1-1024-p50", limit: 1.3, of: redisRate},
	{scenario: "R1-1024-p50", limit: 1.3, of: redisRate, who: contenders.GoRedis},
	{scenario: "R1-1024-p99", limit: 1.3, of: redisRate},
	{scenario: "R1-1024-p99", limit: 1.3, of: redisRate, who: contenders.GoRedis},
	{scenario: "R1-1024-policy", limit: 0, of: figure},
	{scenario: "R1-1024-policy", limit: 0, of: figure, who: contenders.GoRedis},
	{scenario: "R2-64-policy", limit: 0, of: figure},
	{scenario: "R2-1024-policy", limit: 0, of: figure},
	{scenario: "R3-64-policy", limit: 0, of: figure},
	{scenario: "R3-1024-policy", limit: 0, of: figure},
}

// The allocations that a decision may make. On a known key there are none, except those of
// the runtime that happen during a batch. On a new key there are those of growing tables and
// splitting shards as well: a few thousand in total until there are a million keys.
const (
	allocsKnown  = 0.001
	allocsUnseen = 0.02
)

// words describes the target.
func (t target) words(u unit) string {
	switch t.of {
	case bestPeer:
		return fmt.Sprintf("≤ %.2f × best peer", t.limit)
	case aboveFloor:
		return fmt.Sprintf("≤ %v %s more than no limiter", t.limit, u)
	case oneTimeNow:
		return fmt.Sprintf("≤ %v × time.Now()", t.limit)
	case redisRate:
		return fmt.Sprintf("≤ %.2f × redis_rate", t.limit)
	case only429:
		return fmt.Sprintf("≤ %v × only 429", t.limit)
	case limitAlone:
		return fmt.Sprintf("≤ %v × the limit alone", t.limit)
	case fewRules:
		return fmt.Sprintf("≤ %v × 10 rules", t.limit)
	case oneLimit:
		return fmt.Sprintf("≤ %v × one limit for all", t.limit)
	}
	return fmt.Sprintf("≤ %v %s", t.limit, u)
}

// contender returns the name of the contender that y compares with, if it is a particular
// one.
func (y yardstick) contender() string {
	switch y {
	case oneTimeNow:
		return contenders.TimeNow
	case redisRate:
		return contenders.RedisRate
	case only429:
		return contenders.Only429
	case limitAlone:
		return contenders.LimitAlone
	case fewRules:
		return contenders.FewRules
	case oneLimit:
		return contenders.OneLimit
	}
	return ""
}

// own returns the entry of the contender that the target is for, if it took part.
func (t target) own(entries []entry) (entry, bool) {
	if t.who == "" {
		return first(entries, contenders.Main)
	}
	return named(entries, t.who)
}

// named returns the entry of a contender, if it took part.
func named(entries []entry, name string) (entry, bool) {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.Name == name && e.wrong == 0 })
	if i < 0 {
		return entry{}, false
	}
	return entries[i], true
}

// met reports whether the entries of the target's scenario meet it. known is false if a
// necessary contender did not take part.
func (t target) met(entries []entry) (met, known bool) {
	own, ok := t.own(entries)
	if !ok {
		return false, false
	}
	got := own.median()
	switch t.of {
	case bestPeer:
		peer, ok := first(entries, contenders.Peer)
		return ok && got/peer.median() <= t.limit, ok
	case oneTimeNow, redisRate, only429, limitAlone, fewRules, oneLimit:
		other, ok := named(entries, t.of.contender())
		return ok && got/other.median() <= t.limit, ok
	case aboveFloor:
		floor, ok := first(entries, contenders.Floor)
		return ok && got-floor.median() <= t.limit, ok
	}
	return got <= t.limit, true
}
