package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A summary has the results so far.
type summary struct {
	out       io.Writer
	rate      ratelimit.Rate
	processes int

	begin   time.Time
	asked   time.Time // when the processes reported last
	last    report    // the last reports, added up
	epochs  []*epoch
	shared  *epoch          // of the states in the current Redis
	local   *epoch          // of the states in the processes
	slowest []time.Duration // the slowest decision of each part
}

// An epoch is a time in which decisions were based on the same states. In an epoch, a
// token bucket allows at most its burst plus the tokens refilled since its start. A Redis
// server that has lost its data begins a new epoch.
type epoch struct {
	name     string
	burst    int
	from, to time.Time // to is zero while it lasts
	keys     [len(keys)]count
}

func newSummary(out io.Writer, rate ratelimit.Rate, processes int) *summary {
	s := &summary{out: out, rate: rate, processes: processes, begin: time.Now()}
	s.asked = s.begin
	s.serverBegins("Redis")
	return s
}

func (s *summary) serverBegins(name string) {
	s.shared = &epoch{name: name, burst: s.rate.Events, from: time.Now()}
	s.epochs = append(s.epochs, s.shared)
}

func (s *summary) serverEnds() { s.shared.to = time.Now() }

// bound returns the most requests of a key that may be allowed in e.
func (s *summary) bound(e *epoch) int {
	return e.burst + int(float64(s.rate.Events)*e.length().Seconds()/s.rate.Per.Seconds())
}

func (e *epoch) length() time.Duration {
	if e.to.IsZero() {
		return time.Since(e.from)
	}
	return e.to.Sub(e.from)
}

// part begins a part of the demonstration.
func (s *summary) part(format string, args ...any) {
	s.slowest = append(s.slowest, 0)
	fmt.Fprintf(s.out, "\n"+format+"\n\n", args...)
	fmt.Fprintln(s.out, "              ---- abuser ----  --- alice ---  ---- bob ----   Redis    denied     de-   slowest")
	fmt.Fprintln(s.out, "  time process    ok    denied     ok  denied     ok  denied   calls   locally  graded  decision")
}

// table prints the report of each process and the sum.
func (s *summary) table(reports []report) {
	now := time.Now()
	stamp := fmt.Sprintf("%.1fs", now.Sub(s.begin).Seconds())
	var all report
	for i, r := range reports {
		s.row(stamp, fmt.Sprint(i+1), r)
		stamp = ""
		all.add(r)
	}
	s.row("", "all", all)
	s.last = all
	s.slowest[len(s.slowest)-1] = max(s.slowest[len(s.slowest)-1], all.Slowest)

	if all.degraded() > 0 {
		if s.local == nil { // it began since the last report
			s.local = &epoch{name: "fallbacks", burst: s.processes * max(1, s.rate.Events/s.processes), from: s.asked}
			s.epochs = append(s.epochs, s.local)
		}
		s.local.to = now
	}
	s.asked = now
	for k, tally := range all.Keys {
		s.shared.keys[k].add(tally.Shared)
		if s.local != nil {
			s.local.keys[k].add(tally.Local)
		}
	}
	var soFar []string
	for _, e := range s.epochs {
		soFar = append(soFar, fmt.Sprintf("%s %d (<= %d)", e.name, e.keys[0].Allowed, s.bound(e)))
	}
	fmt.Fprintf(s.out, "       abuser so far: %s\n", strings.Join(soFar, ", "))
}

func (s *summary) row(stamp, process string, r report) {
	fmt.Fprintf(s.out, "%6s %-5s", stamp, process)
	for k, width := range []int{10, 8, 8} {
		t := r.Keys[k]
		fmt.Fprintf(s.out, "%7d%*d", t.Shared.Allowed+t.Local.Allowed, width, t.Shared.Denied+t.Local.Denied)
	}
	fmt.Fprintf(s.out, "%8d%10d%8d%10s\n", r.Calls, r.Cached, r.degraded(), brief(r.Slowest))
}

func (r *report) add(o report) {
	for k := range r.Keys {
		r.Keys[k].Shared.add(o.Keys[k].Shared)
		r.Keys[k].Local.add(o.Keys[k].Local)
	}
	r.Calls += o.Calls
	r.Cached += o.Cached
	r.Slowest = max(r.Slowest, o.Slowest)
}

func (c *count) add(o count) {
	c.Allowed += o.Allowed
	c.Denied += o.Denied
}

// degraded returns how many decisions the fallback made.
func (r *report) degraded() (n int) {
	for _, t := range r.Keys {
		n += t.Local.Allowed + t.Local.Denied
	}
	return n
}

// recovered reports whether all decisions in the last table were shared ones.
func (s *summary) recovered() bool { return s.last.degraded() == 0 }

// held reports whether no epoch allowed more than its bound.
func (s *summary) held() bool {
	for _, e := range s.epochs {
		for _, c := range e.keys {
			if c.Allowed > s.bound(e) {
				return false
			}
		}
	}
	return true
}

// print prints the final summary.
func (s *summary) print() {
	fmt.Fprintf(s.out, "\nSummary: what each key got, and the most that it may get, which is a burst plus a refill of %v\n\n", s.rate)
	fmt.Fprintln(s.out, "decided by           for   at most   abuser    alice (refused)      bob (refused)")
	var total, most int
	for _, e := range s.epochs {
		bound := s.bound(e)
		a := e.keys
		fmt.Fprintf(s.out, "%-14s%10s%10d%9d%9d %9s%9d %9s\n", e.name, brief(e.length()), bound, a[0].Allowed,
			a[1].Allowed, fmt.Sprintf("(%d)", a[1].Denied), a[2].Allowed, fmt.Sprintf("(%d)", a[2].Denied))
		total, most = total+a[0].Allowed, most+bound
	}
	fmt.Fprintln(s.out)
	if len(s.slowest) == 3 {
		end := "All decisions are shared again."
		if !s.recovered() {
			end = "NOT ALL decisions are shared again."
		}
		fmt.Fprintf(s.out, "The slowest decision took %s before, %s during and %s after the outage.\n%s\n",
			brief(s.slowest[0]), brief(s.slowest[1]), brief(s.slowest[2]), end)
	}
	verdict := "The bound held"
	if !s.held() {
		verdict = "THE BOUND DID NOT HOLD"
	}
	fmt.Fprintf(s.out, "%s: %d processes allowed %d requests of abuser; the bound is %d.\n", verdict, s.processes, total, most)
}

// brief formats d with few digits.
func brief(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%dµs", d.Microseconds())
}
