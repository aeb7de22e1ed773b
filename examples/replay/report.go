package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"time"
)

var (
	//go:embed assets/page.html
	pageHTML string
	//go:embed assets/page.css
	pageCSS string
	//go:embed assets/page.js
	pageJS string
	//go:embed assets/uPlot.iife.min.js
	uPlotJS string
	//go:embed assets/uPlot.min.css
	uPlotCSS string
	//go:embed assets/uPlot.LICENSE
	uPlotLicense string

	pageTemplate = template.Must(template.New("page").Parse(pageHTML))
)

// topKeys is how many keys have a plot of their own on the page.
const topKeys = 12

// A page is the data of the template.
type page struct {
	Source, Format, Limit, Summary, Event, Key string
	Verdict, Suggestion                        string
	Reference                                  string // the algorithm with which the others are compared
	Burst                                      bool   // whether the burst differs from the rate's events
	Problems                                   []string
	Rows                                       []row
	Keys                                       []keyRow
	Data                                       pageData
	CSS                                        template.CSS
	JS                                         template.JS
}

// A row is about an algorithm. Worst is the key that was denied most, and Worsts the number of its
// denials.
type row struct {
	Name, About, Choose, Allowed, Denied, Percent string
	Limited, Worst, Worsts, Wait                  string

	Difference string // from the reference, in words; of the reference, what it denied
	Twin       string // an earlier algorithm with the same decisions, or ""
	// The number of events that only this algorithm denies, and of those that only the reference
	// denies, or "" if there is none; and the widths of their bars.
	Stricter, Laxer           string
	StricterWidth, LaxerWidth template.CSS
}

// A keyRow is a line about a key: the number of its events, and how many of them each algorithm
// denied.
type keyRow struct {
	Key, Offered string
	Denied       []string
}

// A pageData is the data of the plots.
type pageData struct {
	Start      float64  `json:"start"` // of the first bin, in Unix seconds
	Step       float64  `json:"step"`  // the width of a bin, in seconds
	Event      string   `json:"event"`
	Algorithms []string `json:"algorithms"`
	Lines      []*line  `json:"lines"` // first of all keys together, then of the keys denied most
}

// A line counts events by bin: all events, and for each algorithm those that it denied, and those of
// them that the first algorithm, the reference, allowed.
type line struct {
	Name     string    `json:"name"`
	Offered  []int64   `json:"offered"`
	Denied   [][]int64 `json:"denied"`
	Stricter [][]int64 `json:"stricter"`
}

// writePage writes the report as one self-contained HTML file.
func writePage(w io.Writer, t *trace, l limit, outcomes []*outcome, suggestion string) error {
	offered := make([]int64, len(t.keys))
	for _, r := range t.requests {
		offered[r.key] += int64(r.n)
	}
	top := mostLimited(t, outcomes, offered)
	p := page{
		Source: t.source, Format: t.title, Limit: l.inWords(t), Summary: t.summary(),
		Verdict: verdict(t, outcomes), Suggestion: suggestion, Reference: outcomes[0].name,
		Event: t.oneEvent, Key: t.oneKey, Burst: l.burst != l.rate.Events,
		Problems: t.problems(), Data: newPageData(t, outcomes, top), CSS: template.CSS(uPlotCSS + pageCSS),
		JS: template.JS("/*\nuPlot\n\n" + uPlotLicense + "*/\n" + uPlotJS + pageJS),
	}
	p.Rows = newRows(t, outcomes)
	for _, key := range top {
		r := keyRow{Key: safeText(t.keys[key], 60), Offered: comma(offered[key])}
		for _, o := range outcomes {
			r.Denied = append(r.Denied, comma(o.deniedOf[key]))
		}
		p.Keys = append(p.Keys, r)
	}
	return pageTemplate.Execute(w, p)
}

// newRows returns a row for each outcome. The longest bar of a difference has the whole width.
func newRows(t *trace, outcomes []*outcome) []row {
	differences, most := make([]difference, len(outcomes)), int64(1)
	for i, o := range outcomes {
		d := o.beside(outcomes[0], t)
		differences[i], most = d, max(most, d.stricter, d.laxer)
	}
	bar := func(n int64) (count string, width template.CSS) {
		if n == 0 {
			return "", "0"
		}
		return comma(n), template.CSS(fmt.Sprintf("%.2f%%", 100*float64(n)/float64(most)))
	}
	var rows []row
	for i, o := range outcomes {
		r := row{
			Name: o.name, About: o.about, Choose: o.choose, Allowed: comma(o.allowed), Denied: comma(o.denied),
			Percent: percent(o.denied, t.total), Limited: comma(int64(o.limited)), Worst: "–", Wait: wait(o.longestWait),
		}
		switch same := twin(outcomes, i); {
		case i == 0:
			r.Difference = fmt.Sprintf("Denies %s of %s.", r.Denied, comma(t.total))
		case same != nil:
			r.Twin = same.name
			r.Difference = "The same decisions as those of: " + same.name + "."
		default:
			r.Difference = differences[i].inWords(outcomes[0].name)
		}
		r.Stricter, r.StricterWidth = bar(differences[i].stricter)
		r.Laxer, r.LaxerWidth = bar(differences[i].laxer)
		if most := slices.Max(o.deniedOf); most > 0 {
			r.Worst, r.Worsts = safeText(t.keys[slices.Index(o.deniedOf, most)], 40), comma(most)
		}
		rows = append(rows, r)
	}
	return rows
}

// mostLimited returns at most topKeys keys that were denied. The key with the most denials by any
// one algorithm comes first. Of keys with as many denials, the busiest comes first.
func mostLimited(t *trace, outcomes []*outcome, offered []int64) []int {
	denied := make([]int64, len(t.keys)) // by the strictest algorithm
	var keys []int
	for key := range t.keys {
		for _, o := range outcomes {
			denied[key] = max(denied[key], o.deniedOf[key])
		}
		if denied[key] > 0 {
			keys = append(keys, key)
		}
	}
	slices.SortStableFunc(keys, func(a, b int) int {
		return cmp.Or(cmp.Compare(denied[b], denied[a]), cmp.Compare(offered[b], offered[a]))
	})
	return keys[:min(len(keys), topKeys)]
}

// binWidth returns the width of a bin: the narrowest width with which at most 400 bins cover the
// trace, so that each bin has a few pixels. A bin is not narrower than the resolution of the times.
func binWidth(t *trace) time.Duration {
	span := t.last().Sub(t.first())
	for _, w := range []time.Duration{
		time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond,
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour,
	} {
		if span/w < 399 && (w >= time.Second || t.subsecond) {
			return w
		}
	}
	return 365 * 24 * time.Hour // 230 bins for the longest trace, of 230 years
}

// newPageData counts events by bin, for all keys together and for the keys that have a plot.
func newPageData(t *trace, outcomes []*outcome, top []int) pageData {
	width := int64(binWidth(t))
	first := t.requests[0].at / width
	bins := int(t.requests[len(t.requests)-1].at/width-first) + 1
	d := pageData{Start: time.Duration(first * width).Seconds(), Step: time.Duration(width).Seconds(), Event: t.oneEvent}
	lines := make(map[int32]*line) // of keys
	newLine := func(name string) *line {
		l := &line{Name: name, Offered: make([]int64, bins)}
		for range outcomes {
			l.Denied = append(l.Denied, make([]int64, bins))
			l.Stricter = append(l.Stricter, make([]int64, bins))
		}
		d.Lines = append(d.Lines, l)
		return l
	}
	whole := newLine("all")
	for _, key := range top {
		lines[int32(key)] = newLine(safeText(t.keys[key], 60))
	}
	for i, r := range t.requests {
		for _, l := range []*line{whole, lines[r.key]} {
			if l == nil {
				continue
			}
			bin := r.at/width - first
			l.Offered[bin] += int64(r.n)
			for a, o := range outcomes {
				if o.denials[i] && !outcomes[0].denials[i] {
					l.Stricter[a][bin] += int64(r.n)
				}
				if o.denials[i] {
					l.Denied[a][bin] += int64(r.n)
				}
			}
		}
	}
	for _, o := range outcomes {
		d.Algorithms = append(d.Algorithms, o.name)
	}
	return d
}
