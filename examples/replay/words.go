package main

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

// inWords describes the limit.
func (l limit) inWords(t *trace) string {
	span := exact(l.rate.Per)
	switch l.rate.Per {
	case time.Second:
		span = "second"
	case time.Minute:
		span = "minute"
	case time.Hour:
		span = "hour"
	case day:
		span = "day"
	}
	s := fmt.Sprintf("%s per %s for each %s", count(l.rate.Events, t.noun), span, t.keyNoun(1))
	if l.burst != l.rate.Events {
		s += fmt.Sprintf(", %s at once", comma(int64(l.burst)))
	}
	return s
}

// count formats a number with its noun.
func count[N int | int64](n N, noun func(n int) string) string {
	return comma(int64(n)) + " " + noun(int(n))
}

const day = 24 * time.Hour

// exact formats a duration with days and without trailing zero units: 1m instead of 1m0s,
// and 2d instead of 48h0m0s.
func exact(d time.Duration) string {
	if d >= day {
		days := fmt.Sprintf("%dd", d/day)
		if d %= day; d == 0 {
			return days
		}
		return days + exact(d)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// brief is like exact, but rounds the duration to about three digits.
func brief(d time.Duration) string {
	for _, u := range []struct{ from, to time.Duration }{
		{100 * day, day},
		{day, time.Hour},
		{time.Hour, time.Minute},
		{time.Minute, time.Second},
		{10 * time.Second, 100 * time.Millisecond},
		{time.Second, 10 * time.Millisecond},
		{time.Millisecond, 10 * time.Microsecond},
	} {
		if d >= u.from {
			return exact(d.Round(u.to))
		}
	}
	return exact(d)
}

// comma formats a number with thousands separators.
func comma(n int64) string { return humanize.Comma(n) }

// percent formats part/whole as a percentage with one decimal. It never rounds a nonzero
// part to 0 %, or an incomplete one to 100 %.
func percent(part, whole int64) string {
	p := 100 * float64(part) / float64(max(whole, 1))
	switch {
	case part > 0 && p < 0.1:
		return "<0.1 %"
	case part < whole && p > 99.9:
		return ">99.9 %"
	}
	return fmt.Sprintf("%.1f %%", p)
}

// safeKey makes a key safe to display: characters that could confuse a terminal or a reader
// (control characters, changes of direction, invalid UTF-8) become �, and a key longer than
// most characters is shortened in the middle.
func safeKey(key string, most int) string {
	if key == "" {
		return "(empty)"
	}
	// At either end, at most this many bytes can be shown.
	if room := most * utf8.UTFMax; len(key) > 2*room {
		key = key[:room] + key[len(key)-room:]
	}
	runes := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(key, string(utf8.RuneError))))
	if len(runes) > most {
		tail := most / 3
		head := most - tail - 1
		runes = append(append(runes[:head:head], '…'), runes[len(runes)-tail:]...)
	}
	return string(runes)
}

// plural returns noun if n is 1, and noun+"s" otherwise.
func plural(noun string, n int) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// lineOrFirst returns the words before the number of the first of n lines.
func lineOrFirst(n int) string {
	if n == 1 {
		return "line"
	}
	return "the first is line"
}
