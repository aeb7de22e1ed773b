package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A plan is all that a seed decides before the run.
type plan struct {
	seed     uint64
	policy   string
	faults   []*fault
	requests []*request
	lasts    time.Duration
}

// The policies of limiters, by the names of the flag.
const (
	open     = "open"
	closed   = "closed"
	fallback = "fallback"
)

var policies = []string{open, closed, fallback}

// A fault has its kind, and when it begins and ends.
type fault struct {
	*kind
	begins, ends time.Duration
	share        float64       // of the commands that it concerns
	slot         int           // of the process that it concerns
	lag          time.Duration // of the replica that takes over
	by           time.Duration // how far a clock jumps, or how late commands arrive

	unreplicated int // events that the replica had not got, once the fault has ended
}

// A request of a client, and its answer.
type request struct {
	number int
	at     time.Duration // since the start
	slot   int           // of the process that is asked, if that is up
	n      int           // events
	holds  bool          // whether it is a Hold, which is settled
	used   int           // the events that are settled
	ends   time.Duration // when they are

	answer
}

// The requests of a run come in cycles: more than the limit allows, and then next to none, so that
// the bucket is full again. The first cycle has no fault, so that a run without one is judged, too.
const (
	cycle = 12 * time.Second
	busy  = 8 * time.Second
)

func (f *fault) String() string { return f.name }

// newPlan returns the plan of a run with five faults.
func newPlan(seed uint64, policy, only string) *plan {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := &plan{seed: seed, policy: policy, lasts: 6 * cycle}
	if policy == "" {
		p.policy = policies[rng.IntN(len(policies))]
	}
	for i := range 5 {
		k := kindNamed(only)
		if k == nil {
			k = kinds[rng.IntN(len(kinds))]
		}
		p.addFault(rng, k, time.Duration(i+1)*cycle)
	}
	p.addRequests(rng)
	return p
}

// singlePlan returns the plan of a run with one fault. The i-th run has the i-th pair of a fault and
// a policy.
func singlePlan(seed uint64, i int, policy, only string) *plan {
	rng := rand.New(rand.NewPCG(seed, 2))
	p := &plan{seed: seed, policy: policy, lasts: 3 * cycle}
	if policy == "" {
		p.policy = policies[i/len(kinds)%len(policies)]
	}
	k := kindNamed(only)
	if k == nil {
		k = kinds[i%len(kinds)]
	}
	p.addFault(rng, k, cycle)
	p.addRequests(rng)
	return p
}

// addFault adds a fault that begins within a few seconds of from.
func (p *plan) addFault(rng *rand.Rand, k *kind, from time.Duration) {
	f := &fault{
		kind: k, share: 0.3 + 0.7*rng.Float64(), slot: rng.IntN(processes),
		lag: between(rng, 10*time.Millisecond, time.Second).Truncate(time.Microsecond),
	}
	f.begins = from + between(rng, time.Second, 4*time.Second)
	f.ends = f.begins
	if k.longest > 0 {
		f.ends += between(rng, k.longest/8, k.longest)
	}
	if k.by > 0 {
		f.by = between(rng, k.by/10, k.by).Truncate(time.Microsecond)
	}
	p.faults = append(p.faults, f)
}

// addRequests adds requests at random times.
func (p *plan) addRequests(rng *rand.Rand) {
	for at := time.Duration(0); at < p.lasts-cycle/4; {
		pause := time.Second
		if at%cycle < busy {
			pause = time.Second / 20
		}
		at += 1000 + time.Duration(rng.ExpFloat64()*float64(pause))
		r := &request{number: len(p.requests), at: at, slot: rng.IntN(processes), n: 1}
		r.holds = rng.IntN(6) == 0
		if r.holds {
			r.n = 3
			r.ends = at + between(rng, 500*time.Millisecond, 4*time.Second)
			r.used = rng.IntN(r.n + 1)
		}
		p.requests = append(p.requests, r)
	}
}

// between returns a random duration from a to b.
func between(rng *rand.Rand, a, b time.Duration) time.Duration {
	return a + time.Duration(rng.Int64N(int64(b-a)))
}

// An event is what the fleet does at an instant of the plan.
type event struct {
	at time.Duration
	do func()
}

// events returns what f does, in order.
func (f *fleet) events() []event {
	var all []event
	for _, r := range f.plan.requests {
		all = append(all, event{r.at, func() { f.ask(r) }})
		if r.holds {
			all = append(all, event{r.ends, func() { f.settle(r) }})
		}
	}
	for _, one := range f.plan.faults {
		all = append(all, event{one.begins, func() { one.begin(f, one) }})
		if one.end != nil {
			all = append(all, event{one.ends, func() { one.end(f, one) }})
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return int(a.at - b.at) })
	return all
}
