package limitpage

// This file says an algorithm and its limit in words.

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// wordsOfLimiter returns the words for the algorithm of l, or says that each key has a limit of its
// own.
func wordsOfLimiter(l ratelimit.Limiter) (name, limit string) {
	info := ratelimit.Describe(l)
	if info.Lookup != nil {
		return "limits by key", "each key has a limit of its own"
	}
	return words(info.Algorithm)
}

// words returns the name of an algorithm and its limit in words. alg is normalized, as
// ratelimit.Describe returns it.
func words(alg ratelimit.Algorithm) (name, limit string) {
	switch a := alg.(type) {
	case nil: // of a limiter that New has not made
		return "unknown algorithm", "unknown: the limiter has no method Unwrap or Describe"
	case ratelimit.TokenBucket:
		return tokenBucketWords(a)
	case ratelimit.LeakyBucket:
		return "leaky bucket", events(a.Rate) + ", a queue of " + comma(a.Capacity)
	case ratelimit.FixedWindow:
		return fixedWindowWords(a)
	case ratelimit.SlidingWindow:
		return slidingWindowWords(a)
	case ratelimit.SlidingLog:
		return slidingLogWords(a)
	case ratelimit.RollingWindow:
		return rollingWindowWords(a)
	case ratelimit.WarmingUp:
		return warmingUpWords(a)
	case ratelimit.InFlight:
		return "in flight", comma(a.Limit) + " at once, each for " + exact(a.Timeout) + " at most"
	case ratelimit.Unlimited:
		return "unlimited", "no limit"
	case ratelimit.Blocked:
		return "blocked", "nothing is granted"
	case ratelimit.All:
		return allWords(a)
	}
	// An algorithm without words here is shown as in Go.
	name = strings.TrimPrefix(fmt.Sprintf("%T", alg), "ratelimit.")
	return name, fmt.Sprintf("%+v", alg)
}

func tokenBucketWords(a ratelimit.TokenBucket) (name, limit string) {
	name, limit = "token bucket", events(a.Rate)
	if a.Refill == ratelimit.RefillInterval {
		name = "token bucket, refilled at intervals"
		limit = comma(a.Rate.Events) + " every " + span(a.Rate.Per)
	}
	if a.Burst != a.Rate.Events {
		limit += ", " + comma(a.Burst) + " at once"
	}
	return name, limit
}

func fixedWindowWords(a ratelimit.FixedWindow) (name, limit string) {
	name = "fixed window"
	if a.Start == ratelimit.StartOnFirstEvent {
		name = "fixed window, from the first event"
	}
	return name, comma(a.Limit) + " per " + span(a.Window)
}

func slidingWindowWords(a ratelimit.SlidingWindow) (name, limit string) {
	name = "sliding window"
	if a.Segments > 1 {
		name = "sliding window of " + comma(a.Segments) + " segments"
	}
	return name, comma(a.Limit) + " per " + span(a.Window)
}

func slidingLogWords(a ratelimit.SlidingLog) (name, limit string) {
	name = "sliding log"
	if a.CountDenied {
		name = "sliding log, which counts denials"
	}
	return name, comma(a.Limit) + " in any " + span(a.Window)
}

func rollingWindowWords(a ratelimit.RollingWindow) (name, limit string) {
	limit = comma(a.Quota) + " per " + span(a.Window)
	if a.PeriodLimit > 0 && a.PeriodLimit < a.Quota {
		limit += ", " + comma(a.PeriodLimit) + " per " + span(a.Period)
	}
	return "rolling window, in periods of " + exact(a.Period), limit
}

func warmingUpWords(a ratelimit.WarmingUp) (name, limit string) {
	factor := strconv.FormatFloat(a.ColdFactor, 'g', 4, 64)
	limit = fmt.Sprintf("%s, and 1/%s of that at first, for a warm-up of %s",
		events(a.Rate), factor, exact(a.Warmup))
	return "warming up", limit
}

func allWords(parts ratelimit.All) (name, limit string) {
	names, limits := make([]string, len(parts)), make([]string, len(parts))
	for i, part := range parts {
		names[i], limits[i] = words(part)
	}
	return "all of: " + strings.Join(names, "; "), strings.Join(limits, "; ")
}

// events returns "10 per second".
func events(r ratelimit.Rate) string { return comma(r.Events) + " per " + span(r.Per) }

const day = 24 * time.Hour

// span returns "second" for a second, and "5s" for five.
func span(d time.Duration) string {
	switch d {
	case time.Second:
		return "second"
	case time.Minute:
		return "minute"
	case time.Hour:
		return "hour"
	case day:
		return "day"
	}
	return exact(d)
}

// exact formats a duration with days, and without trailing zero units.
func exact(d time.Duration) string {
	days := ""
	if d >= day {
		days = strconv.Itoa(int(d/day)) + "d"
		d %= day
		if d == 0 {
			return days
		}
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return days + s
}

// comma formats a number with thousands separators.
func comma(n int) string {
	s := strconv.Itoa(n)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
