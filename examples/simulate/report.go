package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// since returns how long after the start an instant is.
func (f *fleet) since(at time.Time) string { return fmt.Sprintf("%.6fs", at.Sub(f.start).Seconds()) }

// A line of the trace is written when its time has come.
type line struct {
	at   time.Duration
	text string
	r    *request // if the line is its
}

// writeTrace writes what happened, what was promised and what was kept.
func writeTrace(out io.Writer, f *fleet, v *verdict, verbose bool) {
	fmt.Fprintf(out, "Seed %d: %d processes, %v and a burst of %d, policy %s.\n\n"+
		"%8s %6s %8s %8s   decided by the policy\n", f.plan.seed, processes, limit.Rate, burst,
		v.policy, "second", "asked", "granted", "denied")
	var count counts
	second := time.Duration(0)
	for _, l := range f.lines() {
		for l.at >= second+time.Second {
			count.write(out, second)
			count, second = counts{}, second+time.Second
		}
		count.add(l.r)
		if l.r == nil || verbose {
			fmt.Fprintf(out, "%12.6f  %s\n", l.at.Seconds(), l.text)
		}
	}
	count.write(out, second)
	for _, o := range v.outcomes {
		o.write(out)
	}
	fmt.Fprintf(out, "\nbroken promises: %d\n", len(v.broken))
}

// counts are those of decisions.
type counts struct{ asked, granted, denied, policyGranted, policyDenied int }

func (c *counts) add(r *request) {
	if r == nil {
		return
	}
	c.asked++
	switch {
	case r.answered.IsZero():
	case r.decision.Degraded && r.decision.Allowed:
		c.policyGranted++
	case r.decision.Degraded:
		c.policyDenied++
	case r.decision.Allowed:
		c.granted++
	default:
		c.denied++
	}
}

func (c *counts) write(out io.Writer, second time.Duration) {
	fmt.Fprintf(out, "%7.0fs %6d %8d %8d", second.Seconds(), c.asked, c.granted, c.denied)
	if c.policyGranted+c.policyDenied > 0 {
		fmt.Fprintf(out, "   %d granted, %d denied", c.policyGranted, c.policyDenied)
	}
	fmt.Fprintln(out)
}

// lines returns the lines of the trace, in order.
func (f *fleet) lines() (lines []line) {
	for _, r := range f.plan.requests {
		at := r.answered
		if at.IsZero() {
			at = r.asked
		}
		lines = append(lines, line{at.Sub(f.start), r.String(), r})
	}
	for _, of := range f.plan.faults {
		lines = append(lines, line{of.begins, "-- " + of.describe(), nil})
		if of.end != nil {
			lines = append(lines, line{of.ends, "-- end of: " + of.name, nil})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	return lines
}

// String says what was asked and answered.
func (r *request) String() string {
	asks := "take"
	if r.holds {
		asks = "hold"
	}
	text := fmt.Sprintf("process %d: %s %d: ", r.by.slot+1, asks, r.n)
	switch d := r.decision; {
	case r.answered.IsZero():
		return text + "no answer, because the process was killed"
	case d.Allowed:
		text += fmt.Sprintf("granted, %d remain", d.Remaining)
	default:
		text += fmt.Sprintf("denied, retry after %v", d.RetryAfter)
	}
	if r.decision.Degraded {
		text += fmt.Sprintf(", by the policy: %v", r.err)
	}
	if !r.settled.IsZero() {
		text += fmt.Sprintf("; later settled for %d", r.used)
	}
	return text
}

// describe says what a fault does.
func (of *fault) describe() string {
	text := of.name
	switch {
	case of.name == "replies lost", of.name == "answers late":
		text += fmt.Sprintf(": of %.0f %% of the commands", 100*of.share)
	case of.end != nil && of.longest > 0 && !of.fails:
		text += fmt.Sprintf(": process %d", of.slot+1)
	}
	if of.by > 0 {
		text += fmt.Sprintf(", by %v", of.by)
	}
	return text
}

// write writes what a fault has done.
func (o *outcome) write(out io.Writer) {
	fmt.Fprintf(out, "\n%s, from %.1fs to %.1fs\n  promised: %s\n", o.name, o.begins.Seconds(),
		o.ends.Seconds(), o.promise)
	fmt.Fprintf(out, "  measured: %d events beyond the limit, %d of them by the store, which may grant %d;\n"+
		"            %d requests failed, %d were denied although there was room;\n"+
		"            %.2fs until decisions were those of an undisturbed limit\n",
		events(o.beyond), events(o.stored), events(o.allowed()), o.failed, o.denied, o.recover.Seconds())
}

// writeTable writes a line for each fault and policy, or one for all policies if they do not matter.
func writeTable(out io.Writer, found []*verdict, markdown bool) {
	format := "%-42s %-11s %5d %8s %8s %11s\n"
	if markdown {
		format = "| %s | %s | %d | %s | %s | %s |\n"
		fmt.Fprint(out, "| fault | policy | runs | events beyond the limit | requests denied although "+
			"there was room | seconds to recover |\n|---|---|---|---|---|---|\n")
	} else {
		fmt.Fprintf(out, "%-42s %-11s %5s %8s %8s %11s\n", "fault", "policy", "runs", "beyond",
			"denied", "recovered")
	}
	for _, k := range kinds {
		byPolicy := map[string][]*outcome{}
		for _, v := range found {
			for _, o := range v.outcomes {
				if o.kind == k {
					policy := policyNames[o.policy]
					if !k.fails {
						policy = "any"
					}
					byPolicy[policy] = append(byPolicy[policy], o)
				}
			}
		}
		for _, policy := range slices.Sorted(maps.Keys(byPolicy)) {
			its := byPolicy[policy]
			beyond := sorted(its, func(o *outcome) int { return events(o.beyond) })
			denied := sorted(its, func(o *outcome) int { return o.denied })
			took := sorted(its, func(o *outcome) time.Duration { return o.recover })
			fmt.Fprintf(out, format, k.name, policy, len(its), spread(beyond), spread(denied),
				fmt.Sprintf("%.1f, %.1f", middle(took).Seconds(), took[len(took)-1].Seconds()))
		}
	}
}

// policyNames are those of package ratelimit.
var policyNames = map[string]string{open: "FailOpen", closed: "FailClosed", fallback: "Fallback"}

// sorted returns the values of a field of outcomes in order.
func sorted[T cmp.Ordered](all []*outcome, field func(*outcome) T) []T {
	values := make([]T, len(all))
	for i, o := range all {
		values[i] = field(o)
	}
	slices.Sort(values)
	return values
}

func middle[T any](inOrder []T) T { return inOrder[len(inOrder)/2] }

// spread returns the median and the most of numbers in order.
func spread(numbers []int) string {
	return fmt.Sprintf("%d, %d", middle(numbers), numbers[len(numbers)-1])
}
