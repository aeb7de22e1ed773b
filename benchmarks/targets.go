package main

import (
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// A target is what this library is to reach in a scenario.
type target struct {
	scenario string
	limit    float64
	of       yardstick
	who      string // the contender that is to reach it, if not this library's token bucket
}

// A yardstick is what a limit is compared with.
type yardstick int

const (
	bestPeer     yardstick = iota // this library ÷ the best peer
	figure                        // the figure itself
	aboveFloor                    // the figure less that of no limiter at all
	oneTimeNow                    // limit times a reading of the clock by time.Now
	redisRate                     // the figure ÷ that of redis_rate
	only429                       // the figure ÷ that of a handler that only answers 429
	limitAlone                    // the figure ÷ that of a rule's limit without a table of rules
	fewRules                      // the figure ÷ that of a table of a few rules
	nothingAsked                  // the figure is only told
)

var targets = []target{
	{scenario: "S1", limit: 0.75, of: bestPeer},
	{scenario: "S1", limit: 0.30, of: bestPeer, who: contenders.CoarseClock},
	{scenario: "S1", limit: 1, of: oneTimeNow},
	{scenario: "S2", limit: 0.75, of: bestPeer},
	{scenario: "S2p", limit: 0.35, of: bestPeer},
	{scenario: "S3", limit: 0.55, of: bestPeer},
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
}

// How many allocations a decision may make: of a key that is known, none but
// those of the runtime that happen to fall into a batch; of a new one, also
// those of the tables that it makes grow and of the shards that it makes split, a
// few each: some thousand before they hold a million keys.
const (
	allocsKnown  = 0.001
	allocsUnseen = 0.02
)

// words says what the target asks for.
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
	}
	return fmt.Sprintf("≤ %v %s", t.limit, u)
}

// contender returns the name of the only contender that y compares with, if it
// is one.
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
	}
	return ""
}

// own returns the entry that the target is for, if it took part.
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

// met reports whether entries, those of the target's scenario, meet it. Known
// is false if too few took part to tell.
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
	case oneTimeNow, redisRate, only429, limitAlone, fewRules:
		other, ok := named(entries, t.of.contender())
		return ok && got/other.median() <= t.limit, ok
	case aboveFloor:
		floor, ok := first(entries, contenders.Floor)
		return ok && got-floor.median() <= t.limit, ok
	}
	return got <= t.limit, true
}
