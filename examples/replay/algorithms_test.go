package main

import (
	"go/parser"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

func minuteLimit(n, burst int) limit { return limit{ratelimit.PerMinute(n), burst} }

func TestCandidatesAreValidForAnyLimit(t *testing.T) {
	for _, l := range []limit{
		minuteLimit(60, 60),
		minuteLimit(60, 1),
		minuteLimit(1, 100),
		{ratelimit.Rate{Events: 7, Per: 1}, 3},
		{ratelimit.Rate{Events: 7, Per: 11}, 7},
		{ratelimit.Rate{Events: 1_000_000, Per: 365 * day}, 999_999},
		{ratelimit.Every(math.MaxInt64), 1},
	} {
		cs, err := candidates("all", l)
		if err != nil {
			t.Fatal(err)
		}
		if len(cs) != len(build) {
			t.Errorf("%d algorithms, want %d", len(cs), len(build))
		}
		for _, c := range cs {
			if _, err := ratelimit.New(c.algorithm); err != nil {
				t.Errorf("%s for %v, burst %d: %v", c.id, l.rate, l.burst, err)
			}
			if _, err := parser.ParseExpr(c.code); err != nil {
				t.Errorf("%s: %s: %v", c.id, c.code, err)
			}
			if c.name == "" || c.settings == "" || c.about == "" {
				t.Errorf("%s lacks a name, settings or a description: %+v", c.id, c)
			}
		}
	}
}

func TestCandidatesList(t *testing.T) {
	ids := func(list string) string {
		cs, err := candidates(list, minuteLimit(60, 60))
		if err != nil {
			return err.Error()
		}
		var s []string
		for _, c := range cs {
			s = append(s, c.id)
		}
		return strings.Join(s, " ")
	}
	for list, want := range map[string]string{
		"token":             "token",
		" log , token,log ": "log token",
		"all":               "token interval leaky fixed first sliding log rolling warmup",
		defaultAlgorithms:   "token interval leaky fixed first sliding log rolling",
		"token,bucket":      `-alg: unknown algorithm "bucket": must be all, or a list of some of ` + allAlgorithms,
		"":                  `-alg: unknown algorithm "": must be all, or a list of some of ` + allAlgorithms,
		"token,,log":        `-alg: unknown algorithm "": must be all, or a list of some of ` + allAlgorithms,
	} {
		if got := ids(list); got != want {
			t.Errorf("-alg %q: got %s, want %s", list, got, want)
		}
	}
}

// Refills are never larger than the bucket, and never come faster than the limit.
func TestIntervalBucketKeepsTheRate(t *testing.T) {
	for _, c := range []struct {
		l    limit
		want ratelimit.Rate
	}{
		{minuteLimit(60, 60), ratelimit.PerMinute(60)},
		{minuteLimit(60, 100), ratelimit.PerMinute(60)},
		{minuteLimit(60, 20), ratelimit.Rate{Events: 20, Per: 20 * time.Second}},
		{minuteLimit(7, 2), ratelimit.Rate{Events: 2, Per: 17_142_857_143}}, // rounded up
		{limit{ratelimit.Rate{Events: 1 << 30, Per: math.MaxInt64}, 1<<30 - 1}, ratelimit.Rate{Events: 1<<30 - 1, Per: 9223372028264841216}},
	} {
		got := intervalBucket(c.l).algorithm.(ratelimit.TokenBucket)
		if got.Rate != c.want || got.Burst != c.l.burst {
			t.Errorf("%v, burst %d: got %v, burst %d; want %v", c.l.rate, c.l.burst, got.Rate, got.Burst, c.want)
		}
	}
}

func TestRollingPeriod(t *testing.T) {
	for window, want := range map[time.Duration]time.Duration{
		time.Minute: 10 * time.Second,
		time.Second: 200 * time.Millisecond, // a sixth is not a whole number of nanoseconds
		49:          7,
		11:          11,
		1:           1,
	} {
		if got := rollingPeriod(window); got != want {
			t.Errorf("rollingPeriod(%v) = %v, want %v", window, got, want)
		}
	}
}

func TestCode(t *testing.T) {
	for r, want := range map[ratelimit.Rate]string{
		ratelimit.PerSecond(5):               "ratelimit.PerSecond(5)",
		ratelimit.PerDay(5):                  "ratelimit.PerDay(5)",
		ratelimit.Every(90 * time.Second):    "ratelimit.Every(90*time.Second)",
		{Events: 5, Per: 2 * time.Hour}:      "ratelimit.Rate{Events: 5, Per: 2*time.Hour}",
		{Events: 5, Per: time.Microsecond}:   "ratelimit.Rate{Events: 5, Per: time.Microsecond}",
		{Events: 5, Per: 1_000_001}:          "ratelimit.Rate{Events: 5, Per: 1000001*time.Nanosecond}",
		{Events: 5, Per: 1500 * time.Second}: "ratelimit.Rate{Events: 5, Per: 25*time.Minute}",
	} {
		if got := rateCode(r); got != want {
			t.Errorf("rateCode(%v) = %s, want %s", r, got, want)
		}
	}
}
