package main

import (
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/ratelimit-go/ratelimit"
)

// writeTable writes the summary for a terminal: what was read, and a line for each
// algorithm.
func writeTable(w io.Writer, t *trace, l limit, outcomes []*outcome) error {
	tw := table.NewWriter()
	tw.AppendHeader(table.Row{"algorithm", "allowed", "denied", "denied %", "keys limited", "worst key", "its denials", "longest wait"})
	for _, o := range outcomes {
		worst, denials := "–", ""
		if o.worst >= 0 {
			worst, denials = safeKey(t.keys[o.worst], 40), comma(o.deniedOf[o.worst])
		}
		tw.AppendRow(table.Row{
			o.name, comma(o.allowed), comma(o.denied), percent(o.denied, o.allowed+o.denied),
			comma(int64(o.limited)), worst, denials, wait(o.longestWait),
		})
	}
	var columns []table.ColumnConfig
	for _, n := range []int{2, 3, 4, 5, 7, 8} {
		columns = append(columns, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	tw.SetColumnConfigs(columns)
	style := table.StyleLight
	style.Format.Header = text.FormatDefault
	style.Options = table.Options{SeparateHeader: true}
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	tw.SetStyle(style)
	tw.SuppressTrailingSpaces()

	_, err := fmt.Fprintf(w, "%s: %s from %s, %s to %s\nformat: %s\nlimit: %s\n\n%s\n",
		t.source, count(t.total, t.noun), count(len(t.keys), t.keyNoun),
		timeText(t.first(), t.subsecond), timeText(t.last(), t.subsecond), t.format, l.inWords(t), tw.Render())
	return err
}

// wait formats the longest RetryAfter of a denial.
func wait(d time.Duration) string {
	switch d {
	case 0:
		return "–"
	case ratelimit.Never:
		return "forever"
	}
	return brief(d)
}

// timeText formats a time of the log.
func timeText(t time.Time, subsecond bool) string {
	if subsecond {
		return t.UTC().Format("2006-01-02 15:04:05.000 MST")
	}
	return t.UTC().Format("2006-01-02 15:04:05 MST")
}
