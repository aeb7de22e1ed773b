package ratelimit

import "time"

// Share returns alg with an n-th of its limit, for one of n processes that divide it
// among them; for the [Fallback] of a store that they share, say. Rates are divided
// exactly (if a span of n times Per can be told), numbers of events are rounded down,
// but never to 0: n shares of a limit below n are more than it. An n below 1 is 1.
//
// What is no algorithm stays none: nil, or an All that contains itself.
func Share(alg Algorithm, n int) Algorithm { return share(alg, max(n, 1), 1) }

func share(alg Algorithm, n, depth int) Algorithm {
	events := func(of int) int {
		if of < 1 {
			return of // 0 may stand for another value, and less than that is an error elsewhere
		}
		return max(1, of/n)
	}
	rate := func(r Rate) Rate {
		if r.Events%n == 0 {
			return Rate{r.Events / n, r.Per}
		}
		if r.Per > Never/time.Duration(n) {
			return Rate{events(r.Events), r.Per}
		}
		return Rate{r.Events, r.Per * time.Duration(n)}
	}
	alg, err := value(alg)
	if err != nil || depth > maxDepth {
		return nil
	}
	switch a := normalized(alg).(type) {
	case TokenBucket:
		a.Burst = events(a.Burst)
		if a.Refill == RefillInterval {
			a.Rate.Events = events(a.Rate.Events) // lumps come as often
			return a
		}
		a.Rate = rate(a.Rate)
		return a
	case LeakyBucket:
		a.Rate, a.Capacity = rate(a.Rate), events(a.Capacity)
		return a
	case FixedWindow:
		a.Limit = events(a.Limit)
		return a
	case SlidingWindow:
		a.Limit = events(a.Limit)
		return a
	case SlidingLog:
		a.Limit = events(a.Limit)
		return a
	case RollingWindow:
		a.Quota, a.PeriodLimit = events(a.Quota), events(a.PeriodLimit)
		return a
	case WarmingUp:
		a.Rate = rate(a.Rate)
		return a
	}
	parts := alg.(All) // there are no others
	shares := make(All, len(parts))
	for i, part := range parts {
		shares[i] = share(part, n, depth+1)
	}
	return shares
}
