package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A limit is the limit that the flags set.
type limit struct {
	rate  ratelimit.Rate
	burst int // at least 1
	// calendar is the limit as -limit has it if that names a unit of the calendar, such as
	// 1000/day@Europe/London. Then rate is about the same, for algorithms that have no calendar.
	// Otherwise, calendar is zero.
	calendar ratelimit.CalendarWindow
}

// spans has the units of the calendar, and about how long each of them is.
var spans = map[ratelimit.CalendarUnit]time.Duration{
	ratelimit.Day:     24 * time.Hour,
	ratelimit.Week:    7 * 24 * time.Hour,
	ratelimit.Month:   30 * 24 * time.Hour,
	ratelimit.Quarter: 91 * 24 * time.Hour,
	ratelimit.Year:    365 * 24 * time.Hour,
}

// parseLimit parses a limit without a burst: a rate, such as 10/s, or a unit of the calendar, such
// as 1000/day or 1000/day@Europe/London.
func parseLimit(text string) (limit, error) {
	events, of, _ := strings.Cut(text, "/")
	name, zone, hasZone := strings.Cut(of, "@")
	for unit, span := range spans {
		if !strings.EqualFold(name, unit.String()) {
			continue
		}
		n, err := strconv.Atoi(events)
		switch {
		case err != nil:
			return limit{}, fmt.Errorf("%q: %q is not a whole number of events", text, events)
		case hasZone && zone == "":
			return limit{}, fmt.Errorf("%q: name a time zone after the @, or leave it out for UTC", text)
		}
		calendar := ratelimit.CalendarWindow{Limit: n, Every: unit, Zone: zone}
		_, err = ratelimit.New(calendar)
		return limit{rate: ratelimit.Rate{Events: n, Per: span}, calendar: calendar}, err
	}
	if hasZone {
		return limit{}, fmt.Errorf("%q: only a day, week, month, quarter or year has a time zone", text)
	}
	rate, err := ratelimit.ParseRate(text)
	if err != nil {
		const orUnit = "%w; or EVENTS/UNIT, such as 1000/day, of a day, week, month, quarter or year"
		return limit{}, fmt.Errorf(orUnit, err)
	}
	return limit{rate: rate}, nil
}

// hasCalendar reports whether -limit names a unit of the calendar.
func (l limit) hasCalendar() bool { return l.calendar.Every != 0 }

// A candidate is an algorithm with the parameters for the limit.
type candidate struct {
	id, name  string // for -alg, and for people
	about     string // how the algorithm decides
	choose    string // what a key costs in memory, and when to choose the algorithm
	algorithm ratelimit.Algorithm
}

const (
	// A WarmingUp spaces requests evenly, and so denies every burst. The callers in a log did not
	// wait, so by default the comparison would be unfair.
	defaultAlgorithms = "token,interval,leaky,fixed,first,sliding,log,rolling"
	allAlgorithms     = defaultAlgorithms + ",warmup"
	// The calendar window is tried first if -limit names a unit of the calendar, and not otherwise.
	calendarID = "calendar"
)

// algorithms returns all algorithms, in the order of the report.
func (l limit) algorithms() []candidate {
	n, window := l.rate.Events, l.rate.Per
	var calendars []candidate
	if l.hasCalendar() {
		calendars = append(calendars, candidate{calendarID, "calendar window",
			fmt.Sprintf("Counts the requests of each %v of a time zone. The others have a window of %s.", l.calendar.Every, brief(window)),
			"8 bytes a key. Choose it if you sell a limit by the day or month: it knows the days of the zone, and when its clock changes.",
			l.calendar})
	}
	return append(calendars, []candidate{
		{"token", "token bucket", "Starts full and refills evenly. A request takes a token. If there is none, the request is denied.",
			"8 bytes a key, or up to 24. Choose it when in doubt: a key may burst after a rest, and otherwise has the rate.",
			ratelimit.TokenBucket{Rate: l.rate, Burst: l.burst}},
		{"interval", "token bucket, at intervals", "The token bucket, but tokens arrive in groups, at fixed intervals.",
			"16 bytes a key. Choose it if tokens must come together, such as a whole day’s at once. Who is denied waits for longer.",
			ratelimit.TokenBucket{Rate: l.refill(), Burst: l.burst, Refill: ratelimit.RefillInterval}},
		{"leaky", "leaky bucket", "Denies the same requests as the token bucket. It can also delay the others, so that they leave evenly.",
			"8 bytes a key, or 16. Choose it to delay requests instead of denying them, so that a backend has an even load.",
			ratelimit.LeakyBucket{Rate: l.rate, Capacity: l.burst}},
		{"fixed", "fixed window", "Counts the requests of each window of the clock. Up to twice the limit can pass around the border of two windows.",
			"8 bytes a key. Choose it if people must understand the limit at once, and a double burst at a border does no harm.",
			ratelimit.FixedWindow{Limit: n, Window: window}},
		{"first", "fixed window, from first", "The fixed window, but the window of a key starts with its first request.",
			"16 bytes a key. Choose it if people must understand the limit, and not all windows may begin at the same instant.",
			ratelimit.FixedWindow{Limit: n, Window: window, Start: ratelimit.StartOnFirstEvent}},
		{"sliding", "sliding window", "Estimates the sliding log: counts this window in full, and the previous one in part.",
			"8 bytes a key, or 16. Choose it against bursts at the border of windows, if an estimate will do.",
			ratelimit.SlidingWindow{Limit: n, Window: window}},
		{"log", "sliding log", "Stores the time of each request. No window has more requests than the limit, wherever the window begins.",
			"24 bytes a key, and 8 for each request in the window. Choose it if you promise that no window ever has more than the limit.",
			ratelimit.SlidingLog{Limit: n, Window: window}},
		{"rolling", "rolling window", "A quota for the last window, recalculated every " + brief(l.period()) + ".",
			"16 bytes a key, and 4 for each period. Choose it for long windows, such as 30 days, whose quota comes back by and by.",
			ratelimit.RollingWindow{Quota: n, Window: window, Period: l.period()}},
		{"warmup", "warming up", "Spaces requests evenly, and after a rest three times as far apart. For callers that wait.",
			"16 bytes a key. Choose it for callers that wait, before a backend that is slow after a rest.",
			ratelimit.WarmingUp{Rate: l.rate, Warmup: window}},
	}...)
}

// candidates returns the algorithms of a comma-separated list. The list "all" has all of them, and
// an empty list those that are tried by default.
func (l limit) candidates(list string) ([]candidate, error) {
	switch list {
	case "":
		list = l.withCalendar(defaultAlgorithms)
	case "all":
		list = l.withCalendar(allAlgorithms)
	}
	known := l.algorithms()
	var cs []candidate
	for id := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(known, func(c candidate) bool { return c.id == strings.TrimSpace(id) })
		switch {
		case i < 0 && strings.TrimSpace(id) == calendarID:
			return nil, fmt.Errorf("-alg: %s needs a -limit such as 1000/day@Europe/London", calendarID)
		case i < 0:
			return nil, fmt.Errorf("-alg: unknown algorithm %q: must be all, or a list of some of %s", id, l.withCalendar(allAlgorithms))
		}
		cs = append(cs, known[i])
	}
	return cs, nil
}

// withCalendar adds the calendar window to a list, if the limit has a calendar.
func (l limit) withCalendar(list string) string {
	if l.hasCalendar() {
		return calendarID + "," + list
	}
	return list
}

// refill returns the rate of a bucket that refills at intervals. A refill larger than the bucket
// would overflow, and make the limit lower than requested. So if the burst is smaller than the
// limit, a refill has the size of the burst, and refills come more often.
func (l limit) refill() ratelimit.Rate {
	if l.burst >= l.rate.Events {
		return l.rate
	}
	per := math.Ceil(float64(l.rate.Per) / float64(l.rate.Events) * float64(l.burst))
	return ratelimit.Rate{Events: l.burst, Per: time.Duration(per)}
}

// period returns a period that divides the window into about six, without a remainder.
func (l limit) period() time.Duration {
	for _, n := range []time.Duration{6, 5, 4, 8, 10, 7, 3, 2} {
		if l.rate.Per%n == 0 {
			return l.rate.Per / n
		}
	}
	return l.rate.Per
}
