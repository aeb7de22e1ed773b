package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// printHead prints the head of a table in Markdown.
func printHead(out io.Writer, columns []string) {
	printLine(out, "callers, away", "", columns)
	fmt.Fprintf(out, "|---|---|%s\n", strings.Repeat("--:|", len(columns)))
}

// printLine prints a line of the table. Cells are as wide as most names of columns.
func printLine(out io.Writer, name, unit string, cells []string) {
	fmt.Fprintf(out, "| %-13s | %-14s |", name, unit)
	for _, cell := range cells {
		fmt.Fprintf(out, " %11s |", cell)
	}
	fmt.Fprintln(out)
}

// printRow prints the medians of a set-up: a group of lines. The second one has the machine's load, if it
// is known, because other programs disturb a measurement. The third and fourth one have the pool and the
// traffic if they are not the default.
func printRow(out io.Writer, u setUp, results []*result) {
	name := fmt.Sprintf("%d, %gms", u.callers, u.away.Seconds()*1000)
	pool, kind := "", ""
	if u.pool != "callers" {
		pool = u.pool + " pool"
	}
	if u.traffic.name != "many" {
		kind = u.traffic.name
	}
	line := func(name, unit string, cell func(*result) string) {
		var cells []string
		for _, r := range results {
			if r == nil {
				cells = append(cells, "–")
				continue
			}
			cells = append(cells, cell(r))
		}
		printLine(out, name, unit, cells)
	}
	line(name, "µs", func(r *result) string { return micros(r.median(each)) })
	line(load(), "p50, p99 ms", func(r *result) string {
		return millis(r.median(p50)) + ", " + millis(r.median(p99))
	})
	line(pool, "CPU µs", func(r *result) string {
		return micros(r.median(client)) + " + " + micros(r.median(servers))
	})
	line(kind, "allocations", func(r *result) string { return digits(r.median(allocs)) })
	line("", "bytes of a key", func(r *result) string { return fmt.Sprint(r.perKey) })
}

// The figures of a round, as numbers: times are in nanoseconds.
func each(f figures) float64    { return float64(f.each) }
func p50(f figures) float64     { return float64(f.p50) }
func p99(f figures) float64     { return float64(f.p99) }
func client(f figures) float64  { return float64(f.client) }
func servers(f figures) float64 { return float64(f.server) }
func allocs(f figures) float64  { return f.allocs }

// median returns the median of a figure of all rounds.
func (r *result) median(of func(figures) float64) float64 {
	var all []float64
	for _, f := range r.rounds {
		all = append(all, of(f))
	}
	slices.Sort(all)
	middle := len(all) / 2
	if len(all)%2 == 0 {
		return (all[middle-1] + all[middle]) / 2
	}
	return all[middle]
}

func micros(nanoseconds float64) string { return digits(nanoseconds / float64(time.Microsecond)) }
func millis(nanoseconds float64) string { return digits(nanoseconds / float64(time.Millisecond)) }

// digits rounds to two digits, or to all before the point.
func digits(v float64) string {
	switch {
	case v >= 10:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2g", v)
	}
}

// load returns the machine's load average of the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg") // which is there on Linux
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), " ")
	return "load " + first
}

// printRounds prints each round of a set-up in the format of Go benchmarks.
func printRounds(out io.Writer, u setUp, columns []string, results []*result) {
	for i, r := range results {
		if r == nil {
			continue
		}
		for _, f := range r.rounds {
			fmt.Fprintf(out, "BenchmarkRedis/%v/column=%s %d %d ns/op %.3f p50-ms %.3f p99-ms %d client-ns/op %d server-ns/op %.1f allocs/op\n",
				u, columns[i], f.decisions, f.each, f.p50.Seconds()*1000, f.p99.Seconds()*1000, f.client, f.server, f.allocs)
		}
	}
}
