package ratelimit

import (
	"time"
)

// Share returns alg with an n-th of its limit, for one of n processes that divide the limit among
// them: for example, as the [Fallback] of a store that they share. Rates are divided exactly,
// unless n times Per overflows a Duration. Numbers of events are rounded down, but to no less than
// 1, so n shares of a limit below n exceed it. An n below 1 counts as 1. A share of [Unlimited] or
// [Blocked] is the same.
//
// Share(nil, n) is nil.
func Share(alg Algorithm, n int) Algorithm { return shareOf(alg, divisor{n: max(n, 1), depth: 1}) }

func shareOf(alg Algorithm, by divisor) Algorithm {
	if checkKind(alg) != nil || by.depth > maxDepth {
		return nil
	}
	return alg.normalized().share(by)
}

// A divisor divides limits by n.
type divisor struct {
	n     int
	depth int // how deep in nested Alls the algorithm is
}

// events returns an n-th of a number of events.
func (by divisor) events(whole int) int {
	if whole < 1 {
		return whole // 0 may mean no limit; a negative number is reported elsewhere
	}
	return max(1, whole/by.n)
}

// rate returns an n-th of a rate, exactly if it can be represented.
func (by divisor) rate(r Rate) Rate {
	if r.Events%by.n == 0 {
		return Rate{r.Events / by.n, r.Per}
	}
	if r.Per > Never/time.Duration(by.n) {
		return Rate{by.events(r.Events), r.Per}
	}
	return Rate{r.Events, r.Per * time.Duration(by.n)}
}
