package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/ratelimit-go/ratelimit"
)

// writeTable writes what was read, and a line for each algorithm.
func writeTable(w io.Writer, t *trace, l limit, outcomes []*outcome) error {
	const layout = "%-26s %12s %12s %9s %13s %13s   %s"
	text := fmt.Sprintf("%s: %s\nformat: %s\nlimit: %s\n\n", t.source, t.summary(), t.title, l.inWords(t))
	text += fmt.Sprintf(layout+"\n", "algorithm", "allowed", "denied", "share", "keys limited", "longest wait", "denied most")
	for _, r := range newRows(t, outcomes) {
		text += fmt.Sprintf(layout+" %s\n", r.Name, r.Allowed, r.Denied, r.Percent, r.Limited, r.Wait, r.Worst, r.Worsts)
	}
	if said := verdict(t, outcomes); said != "" {
		text += "\n" + said + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// summary says how many requests of how many keys there are, and from when to when.
func (t *trace) summary() string {
	const layout = "2006-01-02 15:04:05.999 MST"
	return fmt.Sprintf("%s %s from %s %s, %s to %s", comma(t.total), plural(t.oneEvent, t.total),
		comma(int64(len(t.keys))), plural(t.oneKey, int64(len(t.keys))), t.first().Format(layout), t.last().Format(layout))
}

// inWords describes the limit. Algorithms other than buckets have no burst.
func (l limit) inWords(t *trace) string {
	text := ratelimit.TokenBucket{Rate: l.rate, Burst: l.burst}.String()
	if l.hasCalendar() {
		text = l.calendar.String() + ", or " + text
	}
	if l.hasCalendar() || l.burst != l.rate.Events {
		text += ","
	}
	return text + " for each " + t.oneKey
}

// wait formats the longest RetryAfter of a denial.
func wait(d time.Duration) string {
	switch {
	case d == 0:
		return "–"
	case d == ratelimit.Never:
		return "forever"
	case d > time.Second:
		d = d.Round(10 * time.Millisecond)
	}
	return brief(d)
}

// brief formats a duration without zero units at its end: 1m instead of 1m0s.
func brief(d time.Duration) string {
	return strings.TrimSpace(strings.Replace(strings.Replace(d.String()+" ", "m0s ", "m ", 1), "h0m ", "h ", 1))
}

var comma = humanize.Comma // 1,234

func plural(noun string, n int64) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// percent formats part/whole as a percentage with one decimal. It never rounds a nonzero part
// to 0 %, or an incomplete one to 100 %.
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

// safeText makes the text of a log safe to display. Characters that could confuse a terminal or a
// reader (control characters, changes of direction, invalid UTF-8) become �. A text with more than
// most characters is cut off.
func safeText(s string, most int) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s[:min(len(s), most*utf8.UTFMax)]))
	if len(runes) > most {
		runes = append(runes[:most-1], '…')
	}
	return string(runes)
}
