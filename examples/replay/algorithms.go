package main

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A candidate is an algorithm with the parameters for the given limit.
type candidate struct {
	id        string              // its name for -alg
	name      string              // its name for people
	algorithm ratelimit.Algorithm // ready to use
	code      string              // the same as Go code, to copy
	settings  string              // its parameters, in short
	about     string              // how it decides, in a sentence or two
}

// A limit is the limit that the flags set.
type limit struct {
	rate  ratelimit.Rate
	burst int // at least 1
}

// build has, for each algorithm's name for -alg and in the order of the report, the
// function that returns the candidate for a limit.
var build = []struct {
	id string
	on bool // whether it is in the default set
	of func(limit) candidate
}{
	{"token", true, tokenBucket},
	{"interval", true, intervalBucket},
	{"leaky", true, leakyBucket},
	{"fixed", true, fixedWindow},
	{"first", true, fixedFromFirst},
	{"sliding", true, slidingWindow},
	{"log", true, slidingLog},
	{"rolling", true, rollingWindow},
	// It spaces requests evenly and so denies every burst. That is useful for callers
	// that wait, but an unfair comparison for a log of callers that did not.
	{"warmup", false, warmingUp},
}

// defaultAlgorithms and allAlgorithms are lists of names for -alg.
var defaultAlgorithms, allAlgorithms = algorithmLists()

func algorithmLists() (byDefault, all string) {
	var on, every []string
	for _, b := range build {
		every = append(every, b.id)
		if b.on {
			on = append(on, b.id)
		}
	}
	return strings.Join(on, ","), strings.Join(every, ",")
}

// candidates returns the candidates for l of a comma-separated list of names, in the order
// of the list and without duplicates.
func candidates(list string, l limit) ([]candidate, error) {
	if strings.TrimSpace(list) == "all" {
		list = allAlgorithms
	}
	var cs []candidate
	for id := range strings.SplitSeq(list, ",") {
		id = strings.TrimSpace(id)
		if slices.ContainsFunc(cs, func(c candidate) bool { return c.id == id }) {
			continue
		}
		found := false
		for _, b := range build {
			if b.id == id {
				c := b.of(l)
				c.id = id
				cs = append(cs, c)
				found = true
			}
		}
		if !found {
			return nil, fmt.Errorf("-alg: unknown algorithm %q: must be all, or a list of some of %s", id, allAlgorithms)
		}
	}
	return cs, nil
}

func tokenBucket(l limit) candidate {
	return candidate{
		name:      "token bucket",
		algorithm: ratelimit.TokenBucket{Rate: l.rate, Burst: l.burst},
		code:      fmt.Sprintf("ratelimit.TokenBucket{Rate: %s, Burst: %d}", rateCode(l.rate), l.burst),
		settings:  fmt.Sprintf("%s, burst %d", rateText(l.rate), l.burst),
		about:     "A bucket of tokens that starts full and refills evenly. Each request takes a token, and is denied if there is none.",
	}
}

// intervalBucket refills at intervals. A refill larger than the bucket would overflow and
// make the limit lower than requested. So if the burst is less than the rate's events,
// each refill has the size of the burst, and they come more often.
func intervalBucket(l limit) candidate {
	r := l.rate
	if l.burst < r.Events {
		// Per·burst/Events, rounded up so that the rate is never higher than requested.
		// The product may need 128 bits; the quotient is less than Per.
		events := uint64(r.Events)
		hi, lo := bits.Mul64(uint64(r.Per), uint64(l.burst))
		lo, carry := bits.Add64(lo, events-1, 0)
		per, _ := bits.Div64(hi+carry, lo, events)
		r = ratelimit.Rate{Events: l.burst, Per: time.Duration(per)}
	}
	return candidate{
		name:      "token bucket, at intervals",
		algorithm: ratelimit.TokenBucket{Rate: r, Burst: l.burst, Refill: ratelimit.RefillInterval},
		code:      fmt.Sprintf("ratelimit.TokenBucket{Rate: %s, Burst: %d, Refill: ratelimit.RefillInterval}", rateCode(r), l.burst),
		settings:  fmt.Sprintf("%d every %s, burst %d", r.Events, brief(r.Per), l.burst),
		about:     fmt.Sprintf("The same bucket, but tokens arrive all at once, every %s after it was last full.", brief(r.Per)),
	}
}

func leakyBucket(l limit) candidate {
	return candidate{
		name:      "leaky bucket",
		algorithm: ratelimit.LeakyBucket{Rate: l.rate, Capacity: l.burst},
		code:      fmt.Sprintf("ratelimit.LeakyBucket{Rate: %s, Capacity: %d}", rateCode(l.rate), l.burst),
		settings:  fmt.Sprintf("%s, capacity %d", rateText(l.rate), l.burst),
		about:     "Each request raises a level, which leaks evenly. It denies exactly the requests that the token bucket denies. It can also tell how long to delay each request so that they leave evenly.",
	}
}

func fixedWindow(l limit) candidate {
	return candidate{
		name:      "fixed window",
		algorithm: ratelimit.FixedWindow{Limit: l.rate.Events, Window: l.rate.Per},
		code:      fmt.Sprintf("ratelimit.FixedWindow{Limit: %d, Window: %s}", l.rate.Events, durationCode(l.rate.Per)),
		settings:  fmt.Sprintf("%d per %s, by the clock", l.rate.Events, exact(l.rate.Per)),
		about:     "A counter that is reset at each full window of the clock. Up to twice the limit can pass around that moment.",
	}
}

func fixedFromFirst(l limit) candidate {
	return candidate{
		name:      "fixed window, from first",
		algorithm: ratelimit.FixedWindow{Limit: l.rate.Events, Window: l.rate.Per, Start: ratelimit.StartOnFirstEvent},
		code: fmt.Sprintf("ratelimit.FixedWindow{Limit: %d, Window: %s, Start: ratelimit.StartOnFirstEvent}",
			l.rate.Events, durationCode(l.rate.Per)),
		settings: fmt.Sprintf("%d per %s, from the first", l.rate.Events, exact(l.rate.Per)),
		about:    "The same counter, but the window of a key starts with its first request, so that not all keys are reset at the same time.",
	}
}

func slidingWindow(l limit) candidate {
	return candidate{
		name:      "sliding window",
		algorithm: ratelimit.SlidingWindow{Limit: l.rate.Events, Window: l.rate.Per},
		code:      fmt.Sprintf("ratelimit.SlidingWindow{Limit: %d, Window: %s}", l.rate.Events, durationCode(l.rate.Per)),
		settings:  fmt.Sprintf("%d per %s, estimated", l.rate.Events, exact(l.rate.Per)),
		about:     "Two counters: that of this window, plus that of the previous one in proportion to its overlap. An estimate of the sliding log.",
	}
}

func slidingLog(l limit) candidate {
	return candidate{
		name:      "sliding log",
		algorithm: ratelimit.SlidingLog{Limit: l.rate.Events, Window: l.rate.Per},
		code:      fmt.Sprintf("ratelimit.SlidingLog{Limit: %d, Window: %s}", l.rate.Events, durationCode(l.rate.Per)),
		settings:  fmt.Sprintf("%d in any %s", l.rate.Events, exact(l.rate.Per)),
		about:     fmt.Sprintf("Stores the time of each request: never more than %d in any %s, wherever it begins.", l.rate.Events, exact(l.rate.Per)),
	}
}

func rollingWindow(l limit) candidate {
	period := rollingPeriod(l.rate.Per)
	return candidate{
		name:      "rolling window",
		algorithm: ratelimit.RollingWindow{Quota: l.rate.Events, Window: l.rate.Per, Period: period},
		code: fmt.Sprintf("ratelimit.RollingWindow{Quota: %d, Window: %s, Period: %s}",
			l.rate.Events, durationCode(l.rate.Per), durationCode(period)),
		settings: fmt.Sprintf("%d per %s, every %s", l.rate.Events, exact(l.rate.Per), exact(period)),
		about: fmt.Sprintf("A quota for the last %s that is recalculated every %s by the clock.",
			exact(l.rate.Per), exact(period)),
	}
}

// rollingPeriod returns a period that divides window into about six, without a remainder.
func rollingPeriod(window time.Duration) time.Duration {
	for _, n := range []time.Duration{6, 5, 4, 8, 10, 7, 3, 2} {
		if window%n == 0 {
			return window / n
		}
	}
	return window
}

func warmingUp(l limit) candidate {
	return candidate{
		name:      "warming up",
		algorithm: ratelimit.WarmingUp{Rate: l.rate, Warmup: l.rate.Per},
		code:      fmt.Sprintf("ratelimit.WarmingUp{Rate: %s, Warmup: %s}", rateCode(l.rate), durationCode(l.rate.Per)),
		settings:  fmt.Sprintf("%s, warm after %s", rateText(l.rate), exact(l.rate.Per)),
		about:     "One request after the other, evenly spaced, three times further apart after a rest. It is meant for callers that wait and denies every burst.",
	}
}

// rateText formats a rate in the syntax of -limit.
func rateText(r ratelimit.Rate) string { return fmt.Sprintf("%d/%s", r.Events, exact(r.Per)) }

// rateCode formats a rate as a Go expression.
func rateCode(r ratelimit.Rate) string {
	for _, u := range []struct {
		name string
		rate ratelimit.Rate
	}{
		{"PerSecond", ratelimit.PerSecond(r.Events)},
		{"PerMinute", ratelimit.PerMinute(r.Events)},
		{"PerHour", ratelimit.PerHour(r.Events)},
		{"PerDay", ratelimit.PerDay(r.Events)},
	} {
		if r == u.rate {
			return fmt.Sprintf("ratelimit.%s(%d)", u.name, r.Events)
		}
	}
	if r.Events == 1 {
		return fmt.Sprintf("ratelimit.Every(%s)", durationCode(r.Per))
	}
	return fmt.Sprintf("ratelimit.Rate{Events: %d, Per: %s}", r.Events, durationCode(r.Per))
}

// durationCode formats a duration as a Go expression.
func durationCode(d time.Duration) string {
	for _, u := range []struct {
		name string
		unit time.Duration
	}{
		{"Hour", time.Hour}, {"Minute", time.Minute}, {"Second", time.Second},
		{"Millisecond", time.Millisecond}, {"Microsecond", time.Microsecond},
	} {
		switch {
		case d == u.unit:
			return "time." + u.name
		case d%u.unit == 0:
			return fmt.Sprintf("%d*time.%s", d/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d*time.Nanosecond", d)
}
