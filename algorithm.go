package ratelimit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Algorithm is a kind of limit with its parameters: a [TokenBucket], [LeakyBucket], [FixedWindow],
// [SlidingWindow], [SlidingLog], [RollingWindow], [WarmingUp], [InFlight], [All], [Unlimited] or [Blocked].
// Algorithms are plain data. They hold no state, and can be copied, printed and (except All) compared. Pass them
// as values: a pointer to one, or a type that embeds one, is refused.
type Algorithm interface {
	// normalized returns the algorithm with its zero fields replaced by their defaults, which only this method
	// knows. A zero field that means no limit, such as RollingWindow's PeriodLimit, stays zero.
	normalized() Algorithm

	// spec returns a normalized algorithm as numbers.
	spec() limit.Spec

	// share returns a normalized algorithm with a part of its limit.
	share(divisor) Algorithm
}

// newLimit checks alg, which a user passed, and returns it ready to be applied, normalized, and as a copy that
// shares no memory with it. An All becomes a list of its leaves.
func newLimit(alg Algorithm, enc kernel.Encoding) (*limit.Limit, error) {
	err := checkKind(alg)
	if err != nil {
		return nil, err
	}
	if a, ok := alg.(All); ok {
		if alg, err = a.leaves(nil, enc, "All", 1); err != nil {
			return nil, err
		}
	}
	alg = alg.normalized()
	return limit.New(alg.spec(), enc, alg)
}

// algorithmOf returns the algorithm of l, which newLimit has made, with defaults filled in and nested Alls
// flattened.
func algorithmOf(l *limit.Limit) Algorithm {
	if parts, ok := l.Known.(All); ok {
		return slices.Clone(parts)
	}
	return l.Known.(Algorithm)
}

// checkKind returns an error if alg is none of this package's algorithms: nil, a pointer to one, or a type that
// embeds one, which has its methods.
func checkKind(alg Algorithm) error {
	if _, ok := alg.(All); ok || isPlain(alg) {
		return nil
	}
	return param.Invalid("Algorithm", fmt.Sprintf("%T", alg), "must be one of this package's own, such as TokenBucket{Rate: PerSecond(10)}, and neither a pointer nor a type that embeds one")
}

// isPlain reports whether alg is one of this package, and can be compared.
func isPlain(alg Algorithm) bool {
	switch alg.(type) {
	case TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingLog, RollingWindow, WarmingUp, InFlight, Unlimited, Blocked:
		return true
	}
	return false
}

// Share returns alg with an n-th of its limit, for one of n processes that divide the limit among them: for
// example, as the [Fallback] of a store that they share. Rates are divided exactly, unless n times Per overflows a
// Duration. Numbers of events are rounded down, but to no less than 1, so n shares of a limit below n exceed it.
// An n below 1 counts as 1. A share of [Unlimited] or [Blocked] is the same.
//
// Share(nil, n) is nil.
func Share(alg Algorithm, n int) Algorithm { return share(alg, divisor{n: max(n, 1), depth: 1}) }

func share(alg Algorithm, by divisor) Algorithm {
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

// A Rate is a number of events per span of time: "10 per second". The zero Rate is not valid; both fields must be
// positive.
type Rate struct {
	Events int
	Per    time.Duration
}

const day = 24 * time.Hour

// PerSecond returns the rate of n events per second.
func PerSecond(n int) Rate { return Rate{n, time.Second} }

// PerMinute returns the rate of n events per minute.
func PerMinute(n int) Rate { return Rate{n, time.Minute} }

// PerHour returns the rate of n events per hour.
func PerHour(n int) Rate { return Rate{n, time.Hour} }

// PerDay returns the rate of n events per 24 hours.
func PerDay(n int) Rate { return Rate{n, day} }

// Every returns the rate of one event per d.
func Every(d time.Duration) Rate { return Rate{1, d} }

// String returns the rate in the form "10/s" or "5/250ms". If the rate is valid, [ParseRate] returns the same
// value from it.
func (r Rate) String() string { return limit.Rate(r).String() }

// ParseRate parses a rate, written as events, a slash and a span of time: "10/s", "100/1m", "5/250ms",
// "10000/24h", "1/1d". The span is a unit (ns, us, ms, s, m, h, d), a number of days ("7d"), or any duration that
// [time.ParseDuration] accepts. Both numbers must be positive.
func ParseRate(s string) (Rate, error) {
	bad := func(why string) (Rate, error) {
		return Rate{}, param.Invalid("Rate", strconv.Quote(s), "must be EVENTS/SPAN such as 10/s or 5/250ms, but "+why)
	}
	events, span, ok := strings.Cut(s, "/")
	if !ok {
		return bad("has no slash")
	}
	n, err := strconv.Atoi(strings.TrimSpace(events))
	if err != nil {
		return bad(fmt.Sprintf("%q is not a whole number of events", events))
	}
	per, ok := parseSpan(strings.TrimSpace(span))
	if !ok {
		return bad(fmt.Sprintf("%q is not a span of time", span))
	}
	r := Rate{n, per}
	if err := limit.Rate(r).Check("Rate"); err != nil {
		return Rate{}, err
	}
	return r, nil
}

func parseSpan(s string) (time.Duration, bool) {
	if r, _ := utf8.DecodeRuneInString(s); unicode.IsLetter(r) {
		s = "1" + s
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 64)
		if err != nil || n > int64(Never/day) || n < 0 {
			return 0, false
		}
		return time.Duration(n) * day, true
	}
	d, err := time.ParseDuration(s)
	return d, err == nil
}
