package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A verdict is what a run has shown.
type verdict struct {
	policy   string
	outcomes []*outcome // of each fault, until the next one begins
	broken   []string   // promises
}

// An outcome is what a fault has done.
type outcome struct {
	*fault
	policy  string
	beyond  time.Duration // the events granted beyond the limit, in time: an event is tokenTime
	stored  time.Duration // of these, what the store would have granted without the policy's grants
	failed  int           // requests that the policy decided
	denied  int           // requests that were denied although there was room
	recover time.Duration // from the end of the fault to the last decision that shows it
}

// events returns the events that a duration stands for, rounded up.
func events(d time.Duration) int { return int((d + tokenTime - 1) / tokenTime) }

// What happened to a request, or to its hold.
const (
	granted = iota // by the store
	denied         // by the store
	decided        // by the policy
	maybe          // spent by the store, although nobody was told
	settled        // for fewer events than were held
	charged        // what FailOpen had granted to a hold, which the store learns when that is settled
	setBack        // the clock of the server
)

// A happening is one of these, when it happened by the clock of the bubble.
type happening struct {
	at   time.Time
	what int
	r    *request
	of   *fault // for setBack
}

// happenings returns what happened, in the order of the server.
func (f *fleet) happenings() (all []happening) {
	for _, r := range f.plan.requests {
		switch {
		case r.answered.IsZero():
		case r.decision.Degraded:
			all = append(all, happening{r.answered, decided, r, nil})
		case r.executed.IsZero(): // a cached denial, which others may have made too old
		case r.decision.Allowed:
			all = append(all, happening{r.executed, granted, r, nil})
		default:
			all = append(all, happening{r.executed, denied, r, nil})
		}
		if !r.executed.IsZero() && (r.answered.IsZero() || r.decision.Degraded) {
			all = append(all, happening{r.executed, maybe, r, nil})
		}
		if !r.settled.IsZero() {
			what, at := settled, r.settled // the client is done with it, whatever the server knows
			isOfFallback := r.decision.Degraded && f.plan.policy == fallback
			if r.decision.Degraded && !isOfFallback {
				what = charged
			}
			if !r.settleExecuted.IsZero() && !isOfFallback {
				at = r.settleExecuted
			}
			all = append(all, happening{at, what, r, nil})
		}
	}
	for _, of := range f.plan.faults {
		if of.behind {
			all = append(all, happening{f.start.Add(of.ends), setBack, nil, of})
		}
	}
	slices.SortStableFunc(all, func(a, b happening) int { return a.at.Compare(b.at) })
	return all
}

// happened returns the events of a granted request that have happened. A process that was killed
// with an open hold has settled nothing, so that all count as used.
func (r *request) happened() time.Duration {
	if !r.settled.IsZero() {
		return time.Duration(r.used) * tokenTime
	}
	return r.wanted()
}

func (r *request) wanted() time.Duration { return time.Duration(r.n) * tokenTime }

// judge compares a run with what was promised.
func judge(f *fleet) *verdict {
	v := &verdict{policy: f.plan.policy}
	none := &outcome{fault: &fault{kind: &kind{name: "no fault yet"}}, policy: v.policy}
	for _, of := range f.plan.faults {
		v.outcomes = append(v.outcomes, &outcome{fault: of, policy: v.policy})
	}
	all, store, known, least := newBucket(f.start), newBucket(f.start), newModel(f.start), newBucket(f.start)
	for _, h := range f.happenings() {
		o := none
		for _, next := range v.outcomes {
			if !h.at.Before(f.start.Add(next.begins)) {
				o = next
			}
		}
		shows := h.what == decided
		switch h.what {
		case granted:
			o.beyond += all.take(h.at, h.r.happened())
			o.stored += store.take(h.at, h.r.happened())
			shows = known.grant(h) > 0
			least.refill(h.at)
			least.level = max(least.level, h.r.wanted()) - h.r.wanted()
		case denied:
			shows = known.deny(h) > 0
			if shows {
				o.denied++
			}
			least.refill(h.at)
			if least.level >= h.r.wanted() {
				v.breaks(f, h, "denied, although no failed request may have spent what was there")
			}
		case decided:
			o.failed++
			if h.r.decision.Allowed {
				o.beyond += all.take(h.at, h.r.happened())
			} else if known.bucket.refill(h.at); known.bucket.level >= h.r.wanted() {
				o.denied++
			}
			switch {
			case v.policy == open != h.r.decision.Allowed && v.policy != fallback:
				v.breaks(f, h, "the policy is %s, and has decided otherwise", v.policy)
			case !o.fails:
				v.breaks(f, h, "failed: %v", h.r.err)
			case h.at.After(f.start.Add(o.ends + time.Second)):
				v.breaks(f, h, "failed more than a second after the fault: %v", h.r.err)
			}
		case maybe:
			least.refill(h.at)
			least.level = max(least.level-h.r.wanted(), min(least.level, 0))
		case settled:
			if !h.r.decision.Degraded {
				known.settle(h)
			}
		case charged:
			if h.r.settleSucceeded {
				known.charge(h)
			}
			least.refill(h.at)
			least.level -= h.r.happened()
		case setBack:
			// A key of whose events the clock knows nothing yet may be denied until it does.
			least.refill(h.at.Add(h.of.by))
			least.level = min(least.level, 0)
		}
		if shows {
			o.recover = max(0, h.at.Sub(f.start.Add(o.ends)))
		}
	}
	v.checkBounds(none)
	v.checkShares(f)
	return v
}

// checkBounds checks what the store has granted beyond the limit.
func (v *verdict) checkBounds(none *outcome) {
	if none.stored > 0 || none.denied > 0 || none.failed > 0 {
		v.broken = append(v.broken, fmt.Sprintf("before any fault: %+v", *none))
	}
	for _, o := range v.outcomes {
		if o.stored > o.allowed() {
			v.broken = append(v.broken, fmt.Sprintf("%s: the store granted %.6f events beyond the limit: "+
				"at most %.6f were promised", o.fault, float64(o.stored)/float64(tokenTime),
				float64(o.allowed())/float64(tokenTime)))
		}
	}
}

// allowed returns what the store may grant beyond the limit.
func (o *outcome) allowed() time.Duration {
	if o.kind.beyond == nil {
		return 0
	}
	return o.kind.beyond(o.fault)
}

// checkShares checks that each fallback has granted no more than its share, by the clock of its
// process, which stands still while it is behind.
func (v *verdict) checkShares(f *fleet) {
	if v.policy != fallback {
		return
	}
	shares := map[*process]*bucket{}
	for _, h := range f.happenings() {
		var b *bucket
		if h.r != nil {
			b = shares[h.r.by]
		}
		switch {
		case h.what == settled && h.r.decision.Degraded:
			b.refill(h.r.settleClock) // the limiter has seen this time
			continue
		case h.what != decided:
			continue
		}
		if b == nil {
			b = &bucket{level: burst * tokenTime, last: h.r.clock, inNano: true}
			shares[h.r.by] = b
		}
		b.refill(h.r.clock) // also by a denial, which may be the last reading before the clock is set back
		if h.r.decision.Allowed && b.take(h.r.clock, processes*h.r.happened()) > 0 {
			v.breaks(f, h, "the fallback of process %d granted more than its share", h.r.by.slot+1)
		}
	}
}

// breaks notes a promise that was broken.
func (v *verdict) breaks(f *fleet, h happening, format string, args ...any) {
	v.broken = append(v.broken, fmt.Sprintf("%s: ", f.since(h.at))+fmt.Sprintf(format, args...))
}

// err returns an error if a promise was broken.
func (v *verdict) err(p *plan) error {
	if len(v.broken) == 0 {
		return nil
	}
	return fmt.Errorf("seed %d broke %d promises:\n%s", p.seed, len(v.broken),
		strings.Join(v.broken[:min(len(v.broken), 20)], "\n"))
}

// A bucket is a token bucket of the limit, whose level is the time in which it was filled.
type bucket struct {
	level  time.Duration
	last   time.Time
	inNano bool // whether its clock has nanoseconds, and not microseconds, as that of the server
}

func newBucket(start time.Time) *bucket {
	return &bucket{level: burst * tokenTime, last: start}
}

// refill fills the bucket until an instant.
func (b *bucket) refill(at time.Time) {
	if !b.inNano {
		at = at.Truncate(time.Microsecond)
	}
	passed := max(0, at.Sub(b.last))
	b.last = b.last.Add(passed)
	b.level = min(burst*tokenTime, b.level+passed)
}

// take takes events, and returns by how much they are more than there was.
func (b *bucket) take(at time.Time, n time.Duration) (beyond time.Duration) {
	b.refill(at)
	b.level -= n
	beyond = max(0, -b.level)
	b.level += beyond
	return beyond
}

// A model knows the most that the server may have left, from what it has answered. So each surprise
// is one once.
type model struct {
	start  time.Time
	bucket *bucket
	past   []answered
}

// An answered request of the server.
type answered struct {
	happening
	n time.Duration // what it took, or less than what was there when it was denied
}

func newModel(start time.Time) *model { return &model{start: start, bucket: newBucket(start)} }

// grant returns by how much a grant is more than there was room for.
func (m *model) grant(h happening) time.Duration {
	m.past = append(m.past, answered{h, h.r.wanted()})
	return m.bucket.take(h.at, h.r.wanted())
}

// deny returns by how much there was more than a denial says.
func (m *model) deny(h happening) time.Duration {
	one := answered{h, h.r.wanted() - time.Microsecond}
	m.past = append(m.past, one)
	return m.apply(one)
}

// charge counts what the server was told after the fact.
func (m *model) charge(h happening) {
	one := answered{h, h.r.happened()}
	m.past = append(m.past, one)
	m.apply(one)
}

func (m *model) apply(one answered) (surprise time.Duration) {
	m.bucket.refill(one.at)
	switch one.what {
	case granted:
		return m.bucket.take(one.at, one.n)
	case charged:
		m.bucket.level -= one.n
		return 0
	}
	surprise = max(0, m.bucket.level-one.n)
	m.bucket.level -= surprise
	return surprise
}

// settle makes the past what it would have been if a hold had been of what was used. What the denials
// since then say, they say of a bucket without these events.
func (m *model) settle(h happening) {
	back := h.r.wanted() - h.r.happened()
	i := slices.IndexFunc(m.past, func(one answered) bool { return one.r == h.r })
	m.past[i].n -= back
	m.bucket = newBucket(m.start)
	for j := range m.past {
		if j > i && m.past[j].what == denied {
			m.past[j].n += back
		}
		m.apply(m.past[j])
	}
	m.bucket.refill(h.at)
}
