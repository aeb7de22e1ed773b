package main

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A candidate is one algorithm, set up for the limit that was asked for.
type candidate struct {
	id        string              // what -alg calls it
	name      string              // what people call it
	algorithm ratelimit.Algorithm // ready to use
	code      string              // the same in Go, to copy
	settings  string              // what it was given, in short
	about     string              // how it decides, in a sentence
}

// A limit is what the flags ask for.
type limit struct {
	rate  ratelimit.Rate
	burst int // at least 1
}

// build holds, for each name that -alg knows and in the order of the report,
// how to set that algorithm up for a limit.
var build = []struct {
	id string
	on bool // part of the default set
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
	// It spaces single requests evenly and so refuses any burst: of use to
	// callers that wait, but no fair comparison in a log of those that did not.
	{"warmup", false, warmingUp},
}

// defaultAlgorithms and allAlgorithms are values for -alg.
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

// candidates returns the algorithms in a comma-separated list of names, set up
// for l, each once, in the order of the list.
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
			return nil, fmt.Errorf("-alg: no algorithm is called %q; want all, or some of %s", id, allAlgorithms)
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
		about:     "A bucket that starts full and refills evenly. Each request takes a token; without one it is denied.",
	}
}

// intervalBucket refills in lumps. A lump greater than the bucket would spill
// over and make the limit lower than was asked for, so with a burst less than
// the rate's events the lumps are as great as the burst and come more often.
func intervalBucket(l limit) candidate {
	r := l.rate
	if l.burst < r.Events {
		// Per·burst/Events, rounded up: never more than was asked for. The
		// product may need 128 bits; the quotient is less than Per.
		events := uint64(r.Events)
		hi, lo := bits.Mul64(uint64(r.Per), uint64(l.burst))
		lo, carry := bits.Add64(lo, events-1, 0)
		per, _ := bits.Div64(hi+carry, lo, events)
		r = ratelimit.Rate{Events: l.burst, Per: time.Duration(per)}
	}
	return candidate{
		name:      "token bucket, in lumps",
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
		about:     "A level that each request raises and that leaks evenly. It denies exactly what the token bucket does; it can also say how long to hold each request so that they leave evenly.",
	}
}

func fixedWindow(l limit) candidate {
	return candidate{
		name:      "fixed window",
		algorithm: ratelimit.FixedWindow{Limit: l.rate.Events, Window: l.rate.Per},
		code:      fmt.Sprintf("ratelimit.FixedWindow{Limit: %d, Window: %s}", l.rate.Events, durationCode(l.rate.Per)),
		settings:  fmt.Sprintf("%d per %s, by the clock", l.rate.Events, exact(l.rate.Per)),
		about:     "One counter, back to zero at each full window of the clock. Twice the limit can pass around that moment.",
	}
}

func fixedFromFirst(l limit) candidate {
	return candidate{
		name:      "fixed window, from first",
		algorithm: ratelimit.FixedWindow{Limit: l.rate.Events, Window: l.rate.Per, Start: ratelimit.StartOnFirstEvent},
		code: fmt.Sprintf("ratelimit.FixedWindow{Limit: %d, Window: %s, Start: ratelimit.StartOnFirstEvent}",
			l.rate.Events, durationCode(l.rate.Per)),
		settings: fmt.Sprintf("%d per %s, from the first", l.rate.Events, exact(l.rate.Per)),
		about:    "The same counter, but a key’s window opens with its first request, so that not all keys start afresh together.",
	}
}

func slidingWindow(l limit) candidate {
	return candidate{
		name:      "sliding window",
		algorithm: ratelimit.SlidingWindow{Limit: l.rate.Events, Window: l.rate.Per},
		code:      fmt.Sprintf("ratelimit.SlidingWindow{Limit: %d, Window: %s}", l.rate.Events, durationCode(l.rate.Per)),
		settings:  fmt.Sprintf("%d per %s, estimated", l.rate.Events, exact(l.rate.Per)),
		about:     "Two counters: this window’s, and the last one’s in proportion to how much of it still counts. An estimate of the sliding log.",
	}
}

func slidingLog(l limit) candidate {
	return candidate{
		name:      "sliding log",
		algorithm: ratelimit.SlidingLog{Limit: l.rate.Events, Window: l.rate.Per},
		code:      fmt.Sprintf("ratelimit.SlidingLog{Limit: %d, Window: %s}", l.rate.Events, durationCode(l.rate.Per)),
		settings:  fmt.Sprintf("%d in any %s", l.rate.Events, exact(l.rate.Per)),
		about:     fmt.Sprintf("Remembers when each request was: never more than %d in any %s, wherever it begins.", l.rate.Events, exact(l.rate.Per)),
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
		about: fmt.Sprintf("A quota for the last %s that is worked out anew every %s by the clock.",
			exact(l.rate.Per), exact(period)),
	}
}

// rollingPeriod divides a window into about six periods, without a remainder.
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

// rateText writes a rate as -limit takes it.
func rateText(r ratelimit.Rate) string { return fmt.Sprintf("%d/%s", r.Events, exact(r.Per)) }

// rateCode writes a rate as a Go expression.
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

// durationCode writes a duration as a Go expression.
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
