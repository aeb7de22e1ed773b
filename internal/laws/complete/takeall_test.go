package complete_test

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// A pairOfKeys is what the definitions say of two keys at an instant.
type pairOfKeys struct {
	path
	keys   [2]definition
	states [2][]uint64 // of the kernels, to name the pair
	calls  []call      // that led to it
}

// A call takes events at an instant: of a key alone, for which the other number is 0, or of both.
type call struct {
	at int
	n  [2]int
}

// A pairWalk goes through all pairs of states of two keys to which any calls lead. A store in memory
// has no copies of its states, so that each call is made after all that led to it, on new keys.
type pairWalk struct {
	*testing.T
	frontier[*pairOfKeys]
	algorithms [2]ratelimit.Algorithm
	options    func() []ratelimit.Option
	oneByOne   bool // whether the keys are asked one after the other, until one refuses
	namers     [2]namer
	answers    int
}

func (w *pairWalk) run() int {
	for phase := range max(1, w.namers[0].grid) {
		p := &pairOfKeys{path: path{now: phase}}
		for i, of := range w.namers {
			p.keys[i], p.states[i] = of.definition, of.machine.NewState()
		}
		w.add(p)
	}
	for p, ok := w.next(); ok; p, ok = w.next() {
		for most, n := 2, 1; n < (most+1)*(most+1); n++ {
			w.call(p, call{p.now, [2]int{n / (most + 1), n % (most + 1)}})
		}
		if next, goesOn := p.wait(p.keys[0].counts(p.now) || p.keys[1].counts(p.now)); goesOn {
			w.add(&pairOfKeys{path: next, keys: p.keys, states: p.states, calls: p.calls})
		}
		require.Less(w, len(w.seen), mostStates, "is a state named wrongly?")
	}
	return len(w.seen)
}

func (w *pairWalk) add(p *pairOfKeys) {
	var name []byte
	for i, of := range w.namers {
		st := of.machine.Pack(append([]uint64(nil), p.states[i]...))
		name = append(name, of.name(p.keys[i].key(p.now), &p.path, st, nil)...)
	}
	w.frontier.add(name, p)
}

// call makes a call, compares the answer and what it leaves in both keys, and goes on.
func (w *pairWalk) call(p *pairOfKeys, c call) {
	w.answers++
	clk := stepclock.New()
	options := append(w.options(), ratelimit.WithClock(clk))
	var of [2]ratelimit.Limiter
	for i, alg := range w.algorithms {
		of[i] = ratelimit.Must(ratelimit.New(alg, append(options, ratelimit.WithName(fmt.Sprint(i)))...))
	}
	for _, before := range p.calls {
		w.make(of, clk, before)
	}
	got := w.make(of, clk, c)
	after, want := w.decided(p, c, got.Part)
	what := fmt.Sprintf("take %d and %d", c.n[0], c.n[1])
	if w.oneByOne && !want.Allowed { // the Decision may tell only of the first
		got = ratelimit.Decision{Allowed: got.Allowed}
		want = ratelimit.Decision{}
	}
	require.Equal(w, want, got, "%v and %v: %s at %d, after\n%s", w.algorithms[0], w.algorithms[1], what, c.at, &p.path)
	for i, l := range of {
		d, err := l.Peek(w.Context(), "key")
		require.NoError(w, err)
		require.Equal(w, max(0, after.keys[i].room(c.at)), d.Remaining,
			"%v and %v: what %s at %d leaves in %v, after\n%s", w.algorithms[0], w.algorithms[1], what, c.at,
			w.algorithms[i], &p.path)
	}
	after.path = p.after(what)
	w.add(after)
}

// make makes a call.
func (w *pairWalk) make(of [2]ratelimit.Limiter, clk *stepclock.Clock, c call) (d ratelimit.Decision) {
	clk.Set(time.Unix(0, bases[1]+int64(c.at)))
	var err error
	switch {
	case c.n[1] == 0:
		d, err = of[0].Take(w.Context(), "key", c.n[0])
	case c.n[0] == 0:
		d, err = of[1].Take(w.Context(), "key", c.n[1])
	case c.n[0] == c.n[1]:
		d, err = ratelimit.TakeAll(w.Context(), c.n[0], ratelimit.For(of[0], "key"), ratelimit.For(of[1], "key"))
	default:
		d, err = ratelimit.TakeAll(w.Context(), 1, ratelimit.For(of[0], "key").N(c.n[0]), ratelimit.For(of[1], "key").N(c.n[1]))
	}
	if d.Allowed {
		require.NoError(w, err)
	}
	return d
}

// decided returns the keys after a call, and the decision: docs/algorithms.md, "Several keys for one
// event". That does not say which key is the Part if neither decides more than the other.
func (w *pairWalk) decided(p *pairOfKeys, c call, part int) (after *pairOfKeys, want ratelimit.Decision) {
	after = &pairOfKeys{keys: p.keys, states: p.states, calls: append(p.calls[:len(p.calls):len(p.calls)], c)}
	want.Allowed = true
	for i, key := range p.keys {
		want.Allowed = want.Allowed && max(0, key.room(c.at)) >= c.n[i] // room may be less than 0 after denials
	}
	var limits, remaining, retry []int
	for i, key := range p.keys {
		if c.n[i] == 0 {
			continue
		}
		now, st := kernel.Instant(bases[1]+int64(c.at)), append([]uint64(nil), p.states[i]...)
		wait := 0
		if want.Allowed {
			if q, ok := key.(queue); ok {
				want.Delay = max(want.Delay, time.Duration(q.delay(c.at)))
			}
			after.keys[i], after.states[i] = key.take(c.at, c.n[i]), w.namers[i].machine.Spend(st, now, c.n[i])
		} else {
			if d, ok := key.(denialCounter); ok {
				key = d.deny(c.at, c.n[i])
				after.keys[i] = key
				after.states[i], _ = w.namers[i].machine.Refuse(st, now, c.n[i], 0)
			}
			wait = first(c.at, func(t int) bool { return key.room(t) >= c.n[i] }) - c.at
		}
		retry = append(retry, wait)
		want.RetryAfter = max(want.RetryAfter, time.Duration(wait))
		limits = append(limits, w.namers[i].machine.Limit())
		remaining = append(remaining, max(0, after.keys[i].room(c.at)))
		resets := first(c.at, func(t int) bool { return !after.keys[i].counts(t) })
		want.ResetAfter = max(want.ResetAfter, time.Duration(resets-c.at))
	}
	if len(limits) == 1 {
		want.Limit, want.Remaining = limits[0], remaining[0]
		return after, want
	}
	order := cmp.Compare(retry[1], retry[0]) // which refuses for longer
	if want.Allowed {
		order = cmp.Compare(remaining[0], remaining[1]) // or has less room
		if c.n[0] != c.n[1] {
			order = cmp.Compare(remaining[0]/c.n[0], remaining[1]/c.n[1])
		}
	}
	switch {
	case order < 0:
		want.Part = 0
	case order > 0:
		want.Part = 1
	default:
		want.Part = part
	}
	if c.n[0] == c.n[1] {
		want.Limit, want.Remaining = min(limits[0], limits[1]), min(remaining[0], remaining[1])
	} else {
		want.Limit, want.Remaining = limits[want.Part], remaining[want.Part]
	}
	return after, want
}

// TestComplete_TakeAll: TakeAll takes events of two keys, or of none, in every pair of their states.
func TestComplete_TakeAll(t *testing.T) {
	of := map[string]struct {
		algorithm ratelimit.Algorithm
		requested
	}{
		"TokenBucket": {ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1, Per: 2}, Burst: 2}, requestedLimits["TokenBucket, held from a turn on"]},
		"FixedWindow": {ratelimit.FixedWindow{Limit: 2, Window: 2}, requestedLimits["FixedWindow"]},
		"LeakyBucket": {ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 1, Per: 2}, Capacity: 2}, requestedLimits["LeakyBucket"]},
		"SlidingLog":  {ratelimit.SlidingLog{Limit: 2, Window: 2}, requestedLimits["SlidingLog"]},
		"CountDenied": {ratelimit.SlidingLog{Limit: 2, Window: 2, CountDenied: true}, requested{
			spec:  numbers(limit.SlidingLog, 2, 2, 1),
			small: small{definition: countingLog{slidingLog: slidingLog{limit: 2, window: 2}}, memory: 2},
		}},
	}
	for _, names := range [][2]string{
		{"FixedWindow", "TokenBucket"}, {"SlidingLog", "LeakyBucket"}, {"TokenBucket", "SlidingLog"}, {"LeakyBucket", "LeakyBucket"},
		{"TokenBucket", "CountDenied"},
	} {
		t.Run(names[0]+" and "+names[1], func(t *testing.T) {
			t.Parallel()
			states, answers := 0, 0
			for keeping, options := range fakes.Keepings {
				if keeping == "bytes" && names[1] == "CountDenied" {
					continue // it counts no denial of a key in another group
				}
				w := pairWalk{T: t, options: options, oneByOne: keeping == "bytes"}
				for i, name := range names {
					l, err := limit.New(of[name].spec, kernel.InMemory, nil)
					require.NoError(t, err)
					w.algorithms[i] = of[name].algorithm
					w.namers[i] = namer{machine: l.Machine, small: of[name].small, base: bases[1]}
				}
				states += w.run()
				answers += w.answers
			}
			t.Logf("complete: %d states, %d answers", states, answers)
		})
	}
}
