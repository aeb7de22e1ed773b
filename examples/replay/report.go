package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"slices"
	"strings"
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

// topKeys is how many keys the page shows individually.
const topKeys = 12

// A page is the data of the template.
type page struct {
	Source, Name          string // of the log: as given, and without its folder
	Limit, From, To, Span string
	OneNoun, Noun         string // for events: singular and plural
	OneKey, Keys          string // for keys: singular and plural
	Burst                 bool   // whether the burst differs from the rate's events
	Tiles                 []tile
	Rows                  []row
	Denied                bool // whether any event was denied
	Read                  []fact
	Code                  []code
	Data                  pageData

	CSS template.CSS
	JS  template.JS
}

// A tile is a figure about the log.
type tile struct{ Value, Label, Note string }

// A row is a line of the summary.
type row struct {
	Name, Settings, About    string
	Allowed, Denied, Percent string
	DeniedWidth              template.CSS // of the bar
	Limited                  string
	Worst, WorstFull, Worsts string // the key denied most, short and in full, and its denials
	Wait                     string
}

// A fact is a line about how the log was read.
type fact struct{ Name, Value string }

// A code is an algorithm written in Go.
type code struct{ Name, Go string }

// A pageData is the data of the plots.
type pageData struct {
	Start      float64     `json:"start"`  // of the first bin, Unix seconds
	Step       float64     `json:"step"`   // the width of a bin, in seconds
	Bins       int         `json:"bins"`   // the number of bins
	Origin     int         `json:"origin"` // the first bin's number since the epoch, modulo every factor
	Factors    []int       `json:"factors"`
	Noun       string      `json:"noun"`
	Key        string      `json:"key"`
	Algorithms []pageAlg   `json:"algorithms"`
	All        timeline    `json:"all"`
	Keys       []keyOfPage `json:"keys"` // those denied most, in that order
}

type pageAlg struct {
	Name     string `json:"name"`
	Settings string `json:"settings"`
	About    string `json:"about"`
}

type keyOfPage struct {
	Label string `json:"label"`
	Full  string `json:"full"`
	timeline
	Total       int64   `json:"total"`
	TotalDenied []int64 `json:"totalDenied"` // by algorithm
}

// writePage writes the report as one self-contained HTML file.
func writePage(w io.Writer, t *trace, l limit, outcomes []*outcome) error {
	p := page{
		Source:  t.source,
		Name:    filepath.Base(t.source),
		Limit:   l.inWords(t),
		From:    timeText(t.first(), t.subsecond),
		To:      timeText(t.last(), t.subsecond),
		Span:    brief(t.span()),
		OneNoun: t.noun(1),
		Noun:    t.noun(2),
		OneKey:  t.keyNoun(1),
		Keys:    t.keyNoun(2),
		Burst:   l.burst != l.rate.Events,
		Tiles:   tiles(t, outcomes),
		Read:    facts(t),
		Data:    newPageData(t, outcomes),
		CSS:     template.CSS(uPlotCSS + pageCSS),
		JS:      template.JS("/*\nuPlot\n\n" + uPlotLicense + "*/\n" + uPlotJS + pageJS),
	}
	for _, o := range outcomes {
		p.Rows = append(p.Rows, newRow(t, o))
		p.Code = append(p.Code, code{o.name, o.code})
		p.Denied = p.Denied || o.denied > 0
	}
	return pageTemplate.Execute(w, p)
}

func newRow(t *trace, o *outcome) row {
	r := row{
		Name:        o.name,
		Settings:    o.settings,
		About:       o.about,
		Allowed:     comma(o.allowed),
		Denied:      comma(o.denied),
		Percent:     percent(o.denied, t.total),
		DeniedWidth: template.CSS(fmt.Sprintf("%.2f%%", 100*float64(o.denied)/float64(t.total))),
		Limited:     comma(int64(o.limited)),
		Worst:       "–",
		Wait:        wait(o.longestWait),
	}
	if o.worst >= 0 {
		r.Worst = safeKey(t.keys[o.worst], 28)
		r.WorstFull = safeKey(t.keys[o.worst], 300)
		r.Worsts = comma(o.deniedOf[o.worst])
	}
	return r
}

func tiles(t *trace, outcomes []*outcome) []tile {
	offered := offeredByKey(t)
	busiest := 0
	for key, n := range offered {
		if n > offered[busiest] {
			busiest = key
		}
	}
	least, most := outcomes[0].denied, outcomes[0].denied
	limited := 0
	for _, o := range outcomes {
		least, most = min(least, o.denied), max(most, o.denied)
		limited = max(limited, o.limited)
	}
	denied := percent(least, t.total)
	if a, b := percent(least, t.total), percent(most, t.total); a != b {
		denied = a[:len(a)-len(" %")] + " – " + b
	}
	note := "by all of the algorithms"
	switch {
	case len(outcomes) == 1:
		note = "by the " + outcomes[0].name
	case least != most:
		note = "depending on the algorithm"
	}
	return []tile{
		{comma(t.total), t.noun(int(t.total)), "in " + brief(t.span())},
		{comma(int64(len(t.keys))), t.keyNoun(len(t.keys)), fmt.Sprintf("%s of them limited at least once", comma(int64(limited)))},
		{percent(offered[busiest], t.total), "from one " + t.keyNoun(1), safeKey(t.keys[busiest], 40)},
		{strings.Replace(denied, " %", "\u00a0%", 1), "would be denied", note}, // a line break is possible only at the dash
	}
}

func offeredByKey(t *trace) []int64 {
	offered := make([]int64, len(t.keys))
	for _, r := range t.requests {
		offered[r.key] += int64(r.n)
	}
	return offered
}

// facts describes what was read and what was skipped.
func facts(t *trace) []fact {
	fs := []fact{
		{"log", t.source},
		{"format", t.format},
		{"lines", comma(int64(t.lines))},
		{"used", fmt.Sprintf("%s, from %s to %s", comma(int64(len(t.requests))),
			timeText(t.first(), t.subsecond), timeText(t.last(), t.subsecond))},
	}
	for _, s := range t.skips {
		fs = append(fs, fact{"skipped", fmt.Sprintf("%s: %s (%s %d)", comma(int64(s.count)), s.reason, lineOrFirst(s.count), s.line)})
	}
	if len(t.skips) == 0 {
		fs = append(fs, fact{"skipped", "none"})
	}
	if t.names > 0 {
		fs = append(fs, fact{"no IP address", fmt.Sprintf("the client of %s: %s (%s %d)",
			count(t.names, t.noun), safeKey(t.name, 60), lineOrFirst(t.names), t.nameLine)})
	}
	if t.damage != nil {
		fs = append(fs, fact{"cut off", fmt.Sprintf("the compressed file is damaged or cut off after line %s (%v)", comma(int64(t.lines)), t.damage)})
	}
	if t.late > 0 {
		fs = append(fs, fact{"out of order", fmt.Sprintf("%s came after a later one and were sorted (%s %d)",
			comma(int64(t.late)), lineOrFirst(t.late), t.lateLine)})
	}
	return fs
}

func newPageData(t *trace, outcomes []*outcome) pageData {
	b := newBinning(t)
	keys := mostLimited(t, outcomes)
	all, some := timelines(t, outcomes, b, keys)
	factors := b.coarser()
	d := pageData{
		Start:   float64(b.first) * b.width.Seconds(),
		Step:    b.width.Seconds(),
		Bins:    b.count,
		Factors: factors,
		Noun:    t.noun(2),
		Key:     t.keyNoun(1),
		All:     all,
		Keys:    []keyOfPage{},
	}
	// The page needs Origin only to find where wider bins begin.
	common := int64(1)
	for _, f := range factors {
		common = lcm(common, int64(f))
	}
	d.Origin = int(((b.first % common) + common) % common)
	for _, o := range outcomes {
		d.Algorithms = append(d.Algorithms, pageAlg{o.name, o.settings, o.about})
	}
	offered := offeredByKey(t)
	for i, key := range keys {
		k := keyOfPage{
			Label:    safeKey(t.keys[key], 60),
			Full:     safeKey(t.keys[key], 300),
			timeline: some[i],
			Total:    offered[key],
		}
		for _, o := range outcomes {
			k.TotalDenied = append(k.TotalDenied, o.deniedOf[key])
		}
		d.Keys = append(d.Keys, k)
	}
	return d
}

func lcm(a, b int64) int64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// mostLimited returns the keys with the most denials by any algorithm or, if there are no
// denials, the busiest keys.
func mostLimited(t *trace, outcomes []*outcome) []int {
	offered := offeredByKey(t)
	denied := make([]int64, len(t.keys)) // by the strictest algorithm
	anything := false
	for _, o := range outcomes {
		for key, n := range o.deniedOf {
			denied[key] = max(denied[key], n)
			anything = anything || n > 0
		}
	}
	var keys []int
	for key := range t.keys {
		if denied[key] > 0 || !anything {
			keys = append(keys, key)
		}
	}
	slices.SortStableFunc(keys, func(a, b int) int {
		return cmp.Or(cmp.Compare(denied[b], denied[a]), cmp.Compare(offered[b], offered[a]))
	})
	return keys[:min(len(keys), topKeys)]
}
