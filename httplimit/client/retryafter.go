package client

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter returns the time that the header field Retry-After says to wait, rounded up to
// seconds, and 0 if it says none. The field has a number of seconds, or a date by the server's
// clock. Of several values, the longest that can be read counts: 2.0, 60s and lists are not
// allowed, and are sent. It is for [Transport].Rest.
func RetryAfter(resp *http.Response) (longest time.Duration) {
	return retryAfter(resp.Header, time.Now())
}

func retryAfter(h http.Header, now time.Time) (longest time.Duration) {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	for _, line := range h.Values("Retry-After") {
		if at, err := http.ParseTime(strings.TrimSpace(line)); err == nil {
			longest = max(longest, at.Sub(now))
			continue
		}
		for value := range strings.SplitSeq(line, ",") {
			value = strings.TrimSuffix(strings.TrimSpace(value), "s")
			if s, err := strconv.ParseFloat(value, 64); strings.Trim(value, ".0123456789") == "" &&
				(err == nil || errors.Is(err, strconv.ErrRange)) {
				longest = max(
					longest,
					time.Duration(math.Ceil(min(s, longestRest.Seconds())))*time.Second,
				)
			}
		}
	}
	return longest
}
