package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A summary is the story so far.
type summary struct {
	out       io.Writer
	rate      ratelimit.Rate
	processes int

	begin   time.Time
	asked   time.Time // the last time
	last    report    // of all processes together
	epochs  []*epoch
	shared  *epoch          // of the states in Redis as it is now
	local   *epoch          // of those in the processes
	slowest []time.Duration // decision, in each part
}

// An epoch is a time in which decisions were made on the same states. A token bucket
// cannot allow more in it than its burst, and what is refilled meanwhile. A Redis
// that has lost its memory begins another one.
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

// bound returns the most that may have been allowed of a key in e.
func (s *summary) bound(e *epoch) int {
	return e.burst + int(float64(s.rate.Events)*e.length().Seconds()/s.rate.Per.Seconds())
}

func (e *epoch) length() time.Duration {
	if e.to.IsZero() {
		return time.Since(e.from)
	}
	return e.to.Sub(e.from)
}

// part begins a part of the story.
func (s *summary) part(format string, args ...any) {
	s.slowest = append(s.slowest, 0)
	fmt.Fprintf(s.out, "\n"+format+"\n\n", args...)
	fmt.Fprintln(s.out, "              ---- abuser ----  --- alice ---  ---- bob ----   Redis    denied     de-   slowest")
	fmt.Fprintln(s.out, "  time process    ok    denied     ok  denied     ok  denied   calls   locally  graded  decision")
}

// table prints what each process has reported, and the sum.
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
		if s.local == nil { // it began since they were asked
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
	var so []string
	for _, e := range s.epochs {
		so = append(so, fmt.Sprintf("%s %d (<= %d)", e.name, e.keys[0].Allowed, s.bound(e)))
	}
	fmt.Fprintf(s.out, "       abuser so far: %s\n", strings.Join(so, ", "))
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

// degraded returns how many decisions were the fallback's.
func (r *report) degraded() (n int) {
	for _, t := range r.Keys {
		n += t.Local.Allowed + t.Local.Denied
	}
	return n
}

// recovered says whether all decisions in the last table were shared ones.
func (s *summary) recovered() bool { return s.last.degraded() == 0 }

// held says whether no epoch allowed more than it may.
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

// print tells the end of the story.
func (s *summary) print() {
	fmt.Fprintf(s.out, "\nIn short: what each key got, and the most it may get, which is a burst and %v of refill\n\n", s.rate)
	fmt.Fprintln(s.out, "decided by        during   at most   abuser    alice (refused)      bob (refused)")
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
		end := "All decisions are shared ones again."
		if !s.recovered() {
			end = "NOT ALL decisions are shared ones again."
		}
		fmt.Fprintf(s.out, "The slowest decision took %s before, %s in, and %s after the outage.\n%s\n",
			brief(s.slowest[0]), brief(s.slowest[1]), brief(s.slowest[2]), end)
	}
	verdict := "The bound held"
	if !s.held() {
		verdict = "THE BOUND DID NOT HOLD"
	}
	fmt.Fprintf(s.out, "%s: %d processes let abuser through %d times, of at most %d.\n", verdict, s.processes, total, most)
}

// brief is d with few digits.
func brief(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%dµs", d.Microseconds())
}
