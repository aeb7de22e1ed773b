package ratelimit

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Rate is a number of events per span of time: "10 per second". The zero Rate is not valid; both
// fields must be positive.
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

// String returns the rate in the form "10/s" or "5/250ms". If the rate is valid, [ParseRate]
// returns the same value from it.
func (r Rate) String() string { return limit.Rate(r).String() }

// ParseRate parses a rate, written as events, a slash and a span of time: "10/s", "100/1m",
// "5/250ms", "10000/24h", "1/1d". The span is a unit (ns, us, ms, s, m, h, d), a number of days
// ("7d"), or any duration that [time.ParseDuration] accepts. Both numbers must be positive.
func ParseRate(s string) (Rate, error) {
	bad := func(why string) (Rate, error) {
		return Rate{}, param.Invalid(
			"Rate",
			strconv.Quote(s),
			"must be EVENTS/SPAN such as 10/s or 5/250ms, but "+why,
		)
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
