package client

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// RateLimit is for [Transport].Quota. It reads the header field RateLimit, in the form that package
// httplimit sends (draft 8 to 11 of the IETF), and in that of draft 7. Of several items of the
// field, the one that needs the slowest pace counts. An item without t says nothing.
func RateLimit(resp *http.Response) (Quota, bool) {
	return quotaOf(resp.Header["Ratelimit"], resp.Header["Ratelimit-Policy"])
}

// XRateLimit is for [Transport].Quota. It reads X-RateLimit-Remaining, X-RateLimit-Reset and
// X-RateLimit-Limit, as GitHub and many others send them. [Headers] says what values they may have.
//
// The fields do not say which requests share a quota. If resources of a server have quotas of their
// own, their requests need keys of their own: with one key, requests wait for the quota that a
// response to any of them has spoken of. GitHub counts searches apart:
//
//	Key: func(r *http.Request) (string, error) {
//		if strings.HasPrefix(r.URL.Path, "/search/") {
//			return r.URL.Host + "/search", nil
//		}
//		return r.URL.Host, nil
//	},
func XRateLimit(resp *http.Response) (Quota, bool) { return xRateLimit(resp) }

var xRateLimit = Headers("X-RateLimit-*")

// Headers returns a function for [Transport].Quota that reads what is left from header fields of a
// server's own. A pattern is the name of these fields, with * in place of Remaining, Reset and
// Limit:
//
//	openAI := client.Headers("X-RateLimit-*-Requests", "X-RateLimit-*-Tokens")
//	anthropic := client.Headers("Anthropic-RateLimit-Requests-*", "Anthropic-RateLimit-Tokens-*")
//	gitLab := client.Headers("RateLimit-*")
//
// Of several patterns, the one that needs the slowest pace counts. Each request counts as one: so
// tokens hold requests back only when hardly any are left. If a request needs many of them, let the
// Limiter count them.
//
// Reset is a time such as 2026-03-01T12:00:00Z, a duration such as 6m0s, or a number. Up to a
// hundred million, that is seconds from now. A larger number is seconds since 1970 or, if that
// would be after the year 5138, milliseconds, microseconds or nanoseconds since then. A time is
// compared with the field Date, so that the server's clock may be wrong. Without Remaining or
// Reset, or with values that cannot be read or are negative, a pattern says nothing. The first
// number of Limit counts; without it, requests are always spread. If Remaining and Reset have
// several lines, each has a quota of its own.
//
// Headers panics if there is no pattern, or one without exactly one *.
func Headers(patterns ...string) func(*http.Response) (Quota, bool) {
	if len(patterns) == 0 {
		panic(param.InvalidIn("client", "the number of patterns", 0, "must be at least 1"))
	}
	fields := make([]quotaFields, len(patterns))
	for i, pattern := range patterns {
		if strings.Count(pattern, "*") != 1 {
			panic(param.InvalidIn("client", "the pattern", strconv.Quote(pattern),
				`must have one *, as "X-RateLimit-*"`))
		}
		name := func(word string) string {
			return http.CanonicalHeaderKey(strings.Replace(pattern, "*", word, 1))
		}
		fields[i] = quotaFields{name("Remaining"), name("Reset"), name("Limit")}
	}
	return func(resp *http.Response) (Quota, bool) {
		slowest := Quota{Left: -1}
		for _, f := range fields {
			slowest = f.slowest(resp.Header, slowest)
		}
		return slowest.bounded()
	}
}

// quotaFields are the names of the fields that say what is left of a quota.
type quotaFields struct{ remaining, reset, limit string }

// slowest returns what needs the slowest pace: q or what the fields say.
func (f quotaFields) slowest(h http.Header, q Quota) Quota {
	remaining, resets, limits := h[f.remaining], h[f.reset], h[f.limit]
	if len(remaining) != len(resets) || len(remaining) > mostMembers {
		return q
	}
	now := time.Now()
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	for i := range remaining {
		left, ok := number(remaining[i])
		reset, known := until(resets[i], now)
		if !ok || !known {
			continue
		}
		said := Quota{Left: int(min(left, mostCounted)), Reset: reset}
		if len(limits) == len(remaining) {
			first, _, _ := strings.Cut(limits[i], ",")
			first, _, _ = strings.Cut(first, ";")
			limit, _ := number(first)
			said.Limit = int(min(limit, mostCounted))
		}
		q = slower(q, said)
	}
	return q
}

// mostCounted is more than any number of requests matters, and fits into an int.
const mostCounted = math.MaxInt32 / 2

// leastUnix is the least number that is not seconds from now, which would be three years, but since
// 1970: March 1973. A number that is a thousand times as large is not seconds, which would be in
// the year 5138, but milliseconds, and so on.
const leastUnix = 1e8

// number returns a number that is not negative. One that is too large is infinite.
func number(value string) (n float64, ok bool) {
	value = strings.TrimSpace(value)
	if len(value) > longestField || strings.Trim(value, ".0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(value, 64)
	return n, err == nil || math.IsInf(n, 1)
}

// until returns the time until a reset, which is at most longestRest.
func until(reset string, now time.Time) (d time.Duration, ok bool) {
	reset = strings.TrimSpace(reset)
	if at, err := time.Parse(time.RFC3339, reset); err == nil {
		return min(max(0, at.Sub(now)), longestRest), true
	}
	n, ok := number(reset)
	if !ok {
		d, err := time.ParseDuration(reset)
		return min(d, longestRest), err == nil && d >= 0
	}
	if n > leastUnix {
		for range 3 { // from nanoseconds to seconds
			if n > 1e3*leastUnix {
				n /= 1e3
			}
		}
		n -= float64(now.UnixNano()) / 1e9
	}
	return time.Duration(min(max(0, n), longestRest.Seconds()) * 1e9), true
}
