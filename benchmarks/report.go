package main

import (
	_ "embed"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/template"
	"time"

	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

//go:embed report.md.tmpl
var reportText string

// A report is the data of the report's template.
type report struct {
	Command string
	Date    string
	Took    time.Duration
	Machine machine
	Plot    string // the path of the plot relative to the report, or ""
	Quick   bool
	Partial bool
	Redis   redisReport

	// Tables in Markdown.
	Overview   string // every algorithm in usual scenarios
	Targets    string // the token bucket, limits of keys' own, and calls other than Allow
	Algorithms string // the other algorithms

	Tables  []reportTable
	Setups  string
	LeftOut []string
	Sizes   reportSizes
}

// A reportTable is the table of one scenario.
type reportTable struct {
	ID, Title, Unit, Table string
}

// reportSizes are the numbers in the text of the report.
type reportSizes struct {
	Alone, AloneBatches, Together, TogetherBatches string
	Live, Mixed, Table, Many                       string
	KeyLength, UUIDLength, Ahead, HotKeys, Workers int
	EachKeys, EachInRedis, EachPasses              int
	HotPasses, ManyPasses, BigPasses, Collections  int
	MillionPasses, MixedPasses, IdleRounds         int
	Few, FloodRate                                 string
	Crowd, Oversized                               int
	GoOn                                           int
	Flood, Bound, Exhausted                        string
	Callers, Span, Spans, KeysPasses, KeyPasses    int
	Handlers, Busy, AwayPasses                     int
	ManyCallers                                    string
	RoundTrip, Work                                time.Duration
}

// A redisReport is the data of the report on limiters in Redis. It is zero if none was
// measured or left out.
type redisReport struct {
	Version string // of the server
	Missing string // why there was no server
	GoRedis string // the version of go-redis
	Rueidis string // the version of rueidis
	Targets string // a table in Markdown
}

// summary returns the text for the terminal when the report is written to a file.
func (r redisReport) summary() string {
	if r.Missing != "" {
		return "What is in Redis was left out: " + r.Missing + ".\n"
	}
	return r.Targets
}

// write writes the report in Markdown.
func (r report) write(w io.Writer) error {
	t, err := template.New("report").Parse(reportText)
	if err != nil {
		return err
	}
	return t.Execute(w, r)
}

// tables fills in the fields that depend on the results.
func (r *report) tables(s sizes, res *results, all []contenders.Contender) {
	n := message.NewPrinter(language.English)
	of := func(id string) []entry { return res.of(id, all) }
	r.Overview = overviewTable(of, all)
	r.Targets = targetTable(s, of)
	r.Algorithms = algorithmTable(s, of)
	if v := res.server; v.version != "" || v.missing != "" {
		built := versions()
		r.Redis = redisReport{
			Version: v.version, Missing: v.missing,
			GoRedis: built[contenders.GoRedisModule], Rueidis: built[contenders.RueidisModule],
			Targets: redisTable(s, of),
		}
	}
	for _, sc := range scenarios(s) {
		if entries := of(sc.id); len(entries) > 0 {
			r.Tables = append(r.Tables, reportTable{sc.id, sc.title, string(sc.unit), scenarioTable(sc, entries)})
		}
	}
	r.Setups = setupTable(all)
	r.LeftOut = contenders.LeftOut()
	r.Sizes = reportSizes{
		Alone: n.Sprint(s.alone), AloneBatches: n.Sprint(s.aloneBatches),
		Together: n.Sprint(s.together), TogetherBatches: n.Sprint(s.togetherBatches),
		Live: n.Sprint(s.live), Mixed: n.Sprint(s.mixed), Table: n.Sprint(s.table), Many: n.Sprint(s.many),
		KeyLength: keyLength, UUIDLength: uuidLength, Ahead: ahead, HotKeys: hotKeys, Workers: max(2, r.Machine.Procs),
		EachKeys: eachKeys, EachInRedis: eachInRedis, EachPasses: passesOf("RE100", s),
		HotPasses: passesOf("S1", s), ManyPasses: passesOf("S4", s), BigPasses: passesOf("gc", s), Collections: collections,
		MillionPasses: passesOf("I1M", s), MixedPasses: passesOf("mixed-p50", s), IdleRounds: idleRounds,
		Few: n.Sprint(few), FloodRate: n.Sprint(floodRate), Crowd: crowd, Oversized: oversized,
		GoOn:  goOn,
		Flood: n.Sprint(s.flood), Bound: n.Sprint(s.bound), Exhausted: n.Sprint(s.exhausted),
		Callers: callers, Span: s.span, Spans: s.spans, KeysPasses: passesOf("R1", s), KeyPasses: passesOf("R2", s),
		Handlers: handlers, Busy: s.busy, AwayPasses: passesOf(away("R1", callers, p50), s),
		ManyCallers: n.Sprint(slices.Max(awayCallers)), RoundTrip: 2 * oneWay, Work: work,
	}
}

// passesOf returns the number of passes of a scenario.
func passesOf(id string, s sizes) int {
	return s.passes(groupOf(id))
}

// ownLimits is the column of the overview for limits of keys' own. Its figures are compared
// with the best peer that has one limit for all keys, because a limit for each key would cost
// a peer that has a limiter for each key nothing.
const ownLimits = "S3-own"

// overviewTable shows every algorithm, and the best peers, in the usual scenarios.
func overviewTable(of func(id string) []entry, all []contenders.Contender) string {
	columns := []struct{ id, title, beside string }{
		{"I1k", "I1k", "I1k"},
		{"I100k", "I100k", "I100k"},
		{"S2", "S2", "S2"},
		{"S7", "S7", "S7"},
		{ownLimits, "limits of keys' own", "S3"},
	}
	headers := []string{""}
	best := []string{"best peer"}
	for _, c := range columns {
		headers = append(headers, c.title)
		cell := ""
		if peer, ok := first(of(c.beside), contenders.Peer); ok {
			cell = fmt.Sprintf("%s (%s)", amount(peer.median(), nanoseconds), peer.Name)
		}
		best = append(best, cell)
	}
	t := newTable(headers...)
	for _, c := range all {
		if c.Own == nil {
			continue
		}
		cells, measured := []string{c.Name}, false
		for _, column := range columns {
			cell := ""
			if e, ok := named(of(column.id), c.Name); ok {
				measured = true
				cell = amount(e.median(), nanoseconds)
				if peer, ok := first(of(column.beside), contenders.Peer); ok {
					cell += ", " + quotient(e.median(), peer.median())
				}
			}
			cells = append(cells, cell)
		}
		if measured {
			t.row(cells...)
		}
	}
	t.row(best...)
	return t.String()
}

// targetTable compares this library's token bucket, and other ways to call it, with the best
// peer of each scenario, with the lower bound of every exact limiter, and with its targets.
func targetTable(s sizes, of func(id string) []entry) string {
	t := newTable("", "scenario", "ratelimit", "beside", "ratio", "lower bound", "target", "met")
	for _, sc := range scenarios(s) {
		if groupOf(sc.id).redis {
			continue
		}
		for _, target := range asked(sc.id) {
			if target.algorithm() {
				continue
			}
			if cells, ok := target.cells(sc, of); ok {
				t.row(cells...)
			}
		}
	}
	known, unseen := allocations(s, of)
	if len(known) > 0 {
		t.row("", "allocations per decision on a known key, the maximum of all scenarios in memory", fmt.Sprintf("%.3f", slices.Max(known)), "", "", "", "0", yesNo(slices.Max(known) <= allocsKnown))
	}
	if len(unseen) > 0 {
		t.row("", "allocations per new key (S7), all of them for growing tables", fmt.Sprintf("%.3f", slices.Max(unseen)), "", "", "", "0, except amortised growth", yesNo(slices.Max(unseen) <= allocsUnseen))
	}
	return t.String()
}

// algorithmTable compares the other algorithms with the best peer, and with the best of the
// peers that are most like them.
func algorithmTable(s sizes, of func(id string) []entry) string {
	t := newTable("", "", "ratelimit", "best peer", "ratio", "nearest peer", "ratio", "target", "met")
	for _, a := range algorithms {
		for _, sc := range scenarios(s) {
			for _, target := range asked(sc.id) {
				if target.who != a.who {
					continue
				}
				own, ok := target.own(of(sc.id))
				if !ok {
					continue
				}
				cells := []string{a.who, sc.id}
				best, _ := target.cells(sc, of)
				near, ratio := "", ""
				if peer, ok := named(of(sc.id), own.Like...); ok {
					near, ratio = fmt.Sprintf("%s (%s)", amount(peer.median(), sc.unit), peer.Name), quotient(own.median(), peer.median())
				}
				t.row(append(cells, best[2], best[3], best[4], near, ratio, best[6], best[7])...)
			}
		}
	}
	return t.String()
}

// redisTable is like targetTable for limiters in Redis, for which there is no lower bound.
func redisTable(s sizes, of func(id string) []entry) string {
	const noLessThan = 5 // the column
	t := newTable("", "scenario", "ratelimit", "beside", "ratio", "target", "met")
	for _, sc := range scenarios(s) {
		if !groupOf(sc.id).redis {
			continue
		}
		for _, target := range asked(sc.id) {
			if cells, ok := target.cells(sc, of); ok {
				t.row(slices.Delete(cells, noLessThan, noLessThan+1)...)
			}
		}
	}
	return t.String()
}

// asked returns the targets of a scenario. The first one is that of this library as compared
// with the peers, even if there is no target for it.
func asked(id string) (found []target) {
	for _, t := range targets() {
		if t.scenario == id {
			found = append(found, t)
		}
	}
	if len(found) == 0 || found[0].who != "" {
		found = append([]target{{scenario: id, of: nothingAsked}}, found...)
	}
	return found
}

// cells returns the table row of a target. of returns the entries of a scenario. ok is false
// if the target's contender is not among them.
func (t target) cells(sc scenario, of func(id string) []entry) (cells []string, ok bool) {
	own, ok := t.own(of(sc.id))
	if !ok {
		return nil, false
	}
	title := sc.title
	if t.who != "" {
		title += ": " + t.who
	}
	beside, ratio, bound := "", "", ""
	if other, ok := t.beside(own, of); ok {
		name := strings.Trim(other.Name, "()")
		switch t.of {
		case timesScenario, aboveScenario, besideScenario:
			name = t.than
		}
		beside, ratio = fmt.Sprintf("%s (%s)", amount(other.median(), sc.unit), name), quotient(own.median(), other.median())
		if b, ok := t.lowerBound(of(sc.id)); ok && t.bounded(other) {
			bound = fmt.Sprintf("%s, %.2f", amount(b.median(), sc.unit), b.median()/other.median())
			if from, ok := first(of(t.than), contenders.Bound); ok && t.of == aboveScenario {
				bound = fmt.Sprintf("%s, %+.1f ns", amount(b.median(), sc.unit), b.median()-from.median())
			}
		}
	}
	ask, met := "", ""
	if t.asks() {
		ask, met = t.words(sc.unit), "not known"
		if ok, known := t.met(of); known {
			met = yesNo(ok)
		}
	}
	return []string{sc.id, title, amount(own.median(), sc.unit), beside, ratio, bound, ask, met}, true
}

// lowerBound returns the entry of the lower bound, if it took part.
func (t target) lowerBound(entries []entry) (entry, bool) {
	if t.bound != "" {
		return named(entries, t.bound)
	}
	return first(entries, contenders.Bound)
}

// bounded reports whether the lower bound is shown beside other: where that is the best peer,
// or if there is no such row for the scenario, or if the target is about what is added to
// another scenario, which the bound adds, too.
func (t target) bounded(other entry) bool {
	if t.of == aboveScenario || t.bound != "" {
		return true
	}
	if t.who != "" || t.of == timesOther {
		return false
	}
	ofPeers := func(also target) bool { return also.scenario == t.scenario && also.of == bestPeer }
	return other.Role == contenders.Peer || t.of == timesScenario && !slices.ContainsFunc(targets(), ofPeers)
}

// allocations returns the allocations per decision of this library's token bucket in each
// scenario: on known keys, and on new ones.
func allocations(s sizes, of func(id string) []entry) (known, unseen []float64) {
	for _, sc := range scenarios(s) {
		own, ok := first(of(sc.id), contenders.Main)
		switch {
		case !ok || own.HTTP || own.Wire || own.Rules || own.Dial != nil || len(own.allocs) == 0:
		case sc.id == "S7":
			unseen = append(unseen, median(own.allocs))
		default:
			known = append(known, median(own.allocs))
		}
	}
	return known, unseen
}

func yesNo(ok bool) string {
	if ok {
		return "yes"
	}
	return "**no**"
}

// scenarioTable lists the contenders of a scenario, the fastest first.
func scenarioTable(sc scenario, entries []entry) string {
	headers := []string{"", "median", "min – max"}
	counted := len(entries[0].allocs) > 0
	if counted {
		headers = append(headers, "allocations")
	}
	peer, hasPeer := first(entries, contenders.Peer)
	if hasPeer {
		headers = append(headers, "÷ best peer")
	}
	t := newTable(headers...)
	for _, e := range entries {
		name := e.Name
		if e.Role == contenders.Main {
			name = "**" + name + "**"
		}
		if e.wrong > 0 {
			name += fmt.Sprintf(", **%d wrong answers**", e.wrong)
		}
		cells := []string{name, number(e.median(), sc.unit), number(e.min(), sc.unit) + " – " + number(e.max(), sc.unit)}
		if counted {
			cells = append(cells, fmt.Sprintf("%.2f", median(e.allocs)))
		}
		if hasPeer {
			ratio := ""
			if e.Role != contenders.Floor && e.Role != contenders.Bound {
				ratio = quotient(e.median(), peer.median())
			}
			cells = append(cells, ratio)
		}
		t.row(cells...)
	}
	return t.String()
}

func setupTable(all []contenders.Contender) string {
	built := versions()
	t := newTable("contender", "module", "version", "configured as")
	for _, c := range all {
		version := built[c.Module]
		if c.Module == contenders.ModulePath {
			version = "this tree"
		}
		t.row(c.Name, c.Module, version, c.Setup)
	}
	return t.String()
}

// quotient formats a ÷ b, or nothing if b is 0.
func quotient(a, b float64) string {
	if b == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", a/b)
}

// amount formats a figure with its unit.
func amount(v float64, u unit) string { return number(v, u) + " " + string(u) }

// number formats a figure with three digits, or with all digits before the point if these are
// more.
func number(v float64, u unit) string {
	digits := 0
	switch a := math.Abs(v); {
	case a < 1:
		digits = 2
		if u == milliseconds {
			digits = 3
		}
	case a < 10:
		digits = 2
	case a < 100:
		digits = 1
	}
	return message.NewPrinter(language.English).Sprintf("%.*f", digits, v)
}

// A table is a table in Markdown.
type table struct {
	strings.Builder
}

func newTable(headers ...string) *table {
	t := &table{}
	t.row(headers...)
	t.row(strings.Split(strings.Repeat("---,", len(headers)-1)+"---", ",")...)
	return t
}

func (t *table) row(cells ...string) {
	t.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
