package linear_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/ratelimit-go/ratelimit"
)

// A decision is what an observer is told of a call, as far as a history knows it.
type decision struct {
	key      string
	call     ratelimit.Call
	n        int
	outcome  ratelimit.Outcome
	decision ratelimit.Decision // zero of Allow and TakeAll
}

// withoutDetails returns d without what the caller of Allow or TakeAll is not told: whether it has
// to wait, or which key of several has refused.
func (d decision) withoutDetails() decision {
	d.decision = ratelimit.Decision{}
	switch d.outcome {
	case ratelimit.Delayed:
		d.outcome = ratelimit.Granted
	case ratelimit.Withheld:
		d.outcome = ratelimit.Denied
	}
	return d
}

// A tally is an observer that counts equal decisions on some keys.
type tally struct {
	keys   []string
	mu     sync.Mutex // protects counts
	counts map[decision]int
}

func newTally(keys ...string) *tally { return &tally{keys: keys, counts: make(map[decision]int)} }

// Observe implements ratelimit.Observer.
func (a *tally) Observe(_ context.Context, o ratelimit.Observation) {
	if !slices.Contains(a.keys, o.Key) {
		return
	}
	d := decision{o.Key, o.Call, o.N, o.Outcome, o.Decision}
	if d.call == ratelimit.CallAllow || d.call == ratelimit.CallTakeAll {
		d = d.withoutDetails()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[d]++
}

// check fails the test for each of the differences.
func (a *tally) check(t *testing.T, seed uint64, history []porcupine.Operation) {
	t.Helper()
	for d, more := range a.differences(history) {
		t.Errorf("seed %d: the observer was told of %+v %+d times too often", seed, d, more)
	}
}

// differences returns how the tally differs from the calls in a history: how often it has each
// decision more often.
func (a *tally) differences(history []porcupine.Operation) map[decision]int {
	more := maps.Clone(a.counts)
	for _, op := range history {
		result := op.Output.(ratelimit.Decision)
		switch c := op.Input.(type) {
		case call:
			if d, ok := decisionOf(c, result); ok {
				more[d]--
			}
		case jointCall:
			for _, d := range c.decisions(result) {
				more[d]--
			}
		}
	}
	maps.DeleteFunc(more, func(_ decision, n int) bool { return n == 0 })
	return more
}

// decisions returns what an observer is to be told of a call with a result: one decision for
// each key.
func (c jointCall) decisions(result ratelimit.Decision) (all []decision) {
	if !c.together() {
		if d, ok := decisionOf(call{op: c.op, key: jointNames[c.keys[0]], n: c.n}, result); ok {
			all = append(all, d)
		}
		return all
	}
	for key, name := range jointNames {
		d := decision{key: name, call: ratelimit.CallTakeAll}
		for _, k := range c.keys {
			if k == key {
				d.n += c.n
			}
		}
		if !result.Allowed {
			d.outcome = ratelimit.Denied
		}
		if d.n > 0 {
			all = append(all, d)
		}
	}
	return all
}

// decisionOf returns what an observer is to be told of a call with a result, if anything.
func decisionOf(c call, result ratelimit.Decision) (d decision, ok bool) {
	d = decision{key: c.key, n: c.n, decision: result}
	switch c.op {
	case "take":
		d.call = ratelimit.CallTake
	case "up to":
		d.call = ratelimit.CallTakeUpTo
	case "allow":
		d.call = ratelimit.CallAllow
	case "hold":
		d.call = ratelimit.CallHold
	case "charge":
		d.call, d.outcome = ratelimit.CallCharge, ratelimit.Counted
		return d, true
	case "settle":
		d.call, d.outcome = ratelimit.CallSettle, ratelimit.Counted
		return d, result != ratelimit.Decision{} // of a hold that was denied, there is nothing to settle
	default:
		return d, false
	}
	switch {
	case !result.Allowed:
		d.outcome = ratelimit.Denied
	case result.Delay > 0:
		d.outcome = ratelimit.Delayed
	}
	if d.call == ratelimit.CallAllow {
		d = d.withoutDetails()
	}
	return d, true
}

// TestTallyNoticesEachDecision: one decision more or less is a difference.
func TestTallyNoticesEachDecision(t *testing.T) {
	history := []porcupine.Operation{
		{Input: call{op: "take", key: "a", n: 1}, Output: ratelimit.Decision{Allowed: true}},
		{Input: call{op: "allow", key: "a", n: 1}, Output: ratelimit.Decision{}},
		{Input: call{op: "peek", key: "a", n: 1}, Output: ratelimit.Decision{Allowed: true}},
	}
	granted := ratelimit.Observation{Key: "a", Call: ratelimit.CallTake, N: 1, Decision: ratelimit.Decision{Allowed: true}}
	denied := ratelimit.Observation{Key: "a", Call: ratelimit.CallAllow, N: 1, Outcome: ratelimit.Denied}
	for _, tt := range []struct {
		told []ratelimit.Observation
		ok   bool
	}{
		{[]ratelimit.Observation{granted, denied}, true},
		{[]ratelimit.Observation{granted}, false},
		{[]ratelimit.Observation{granted, granted, denied}, false},
		{[]ratelimit.Observation{granted, denied, {Key: "a", Call: ratelimit.CallWait}}, false},
	} {
		a := newTally("a")
		for _, o := range tt.told {
			a.Observe(t.Context(), o)
		}
		if ok := len(a.differences(history)) == 0; ok != tt.ok {
			t.Errorf("%+v equals the history: %v", tt.told, ok)
		}
	}
}
