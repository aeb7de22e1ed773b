package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSameSeed runs each seed twice, and compares all that is printed.
func TestSameSeed(t *testing.T) {
	for seed := range 10 {
		var first, second strings.Builder
		require.NoError(t, run(t, []string{"-seed", fmt.Sprint(seed), "-v"}, &first))
		require.NoError(t, run(t, []string{"-seed", fmt.Sprint(seed), "-v"}, &second))
		require.Equal(t, first.String(), second.String())
		require.Contains(t, first.String(), "broken promises: 0")
	}
}

// TestPromises: as many runs as there are pairs of a fault and a policy break no promise, and each
// fault is among them.
func TestPromises(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t, []string{"-seeds", fmt.Sprint(len(kinds) * len(policies)), "-table"}, &out))
	t.Log(out.String())
	for _, k := range kinds {
		assert.Contains(t, out.String(), "| "+k.name+" | ")
	}
}

// TestBroken changes what happened in a run, or what was promised. The judge notices each change.
func TestBroken(t *testing.T) {
	first := func(f *fleet, after time.Duration, is func(r *request) bool) *request {
		i := slices.IndexFunc(f.plan.requests, func(r *request) bool { return r.at > after && is(r) })
		require.GreaterOrEqual(t, i, 0, "the run has no such request")
		return f.plan.requests[i]
	}
	byStore := func(r *request) bool { return !r.executed.IsZero() && !r.decision.Degraded }
	for _, test := range []struct {
		want, fault, policy string
		change              func(f *fleet)
	}{
		{"before any fault", "restart with data", closed, func(f *fleet) {
			first(f, 5*time.Second, func(r *request) bool { return byStore(r) && !r.decision.Allowed }).decision.Allowed = true
		}},
		{"the store granted", "restart with data", closed, func(f *fleet) {
			first(f, 18*time.Second, func(r *request) bool { return byStore(r) && !r.decision.Allowed }).decision.Allowed = true
		}},
		{"the store granted", "restart without data", closed, func(f *fleet) { f.forget("beyond") }},
		{"the store granted", "a replica takes over, its clock ahead", closed, func(f *fleet) { f.forget("beyond") }},
		{"denied, although", "a process is killed", closed, func(f *fleet) {
			first(f, 24*time.Second, byStore).decision.Allowed = false
		}},
		{"decided otherwise", "restart with data", closed, func(f *fleet) {
			first(f, cycle, func(r *request) bool { return r.decision.Degraded }).decision.Allowed = true
		}},
		{"decided otherwise", "restart with data", open, func(f *fleet) {
			first(f, cycle, func(r *request) bool { return r.decision.Degraded }).decision.Allowed = false
		}},
		{"than its share", "replies lost", fallback, func(f *fleet) {
			first(f, cycle, func(r *request) bool { return r.decision.Degraded && !r.decision.Allowed }).decision.Allowed = true
		}},
		{"failed", "replies lost", fallback, func(f *fleet) { f.forget("fails") }},
		{"more than a second after", "replies lost", fallback, func(f *fleet) { f.plan.faults[0].ends = f.plan.faults[0].begins - time.Second }},
	} {
		noticed := false
		for seed := uint64(0); seed < 10 && !noticed; seed++ {
			f := simulate(t, singlePlan(seed, 0, test.policy, test.fault))
			require.Empty(t, judge(f).broken)
			test.change(f)
			noticed = strings.Contains(strings.Join(judge(f).broken, "\n"), test.want)
		}
		assert.True(t, noticed, "%s, %s: want %q", test.fault, test.policy, test.want)
	}
}

// forget makes the fault of a run one of which less was said.
func (f *fleet) forget(what string) {
	changed := *f.plan.faults[0].kind
	switch what {
	case "beyond":
		changed.beyond = nil
	case "fails":
		changed.fails = false
	}
	f.plan.faults[0].kind = &changed
}

// TestDocumented: the page with the table names the command that makes it, and all faults.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/redis.md")
	require.NoError(t, err)
	assert.Contains(t, string(page), "go run ./examples/simulate -seeds 1000 -table")
	for _, k := range kinds {
		assert.Contains(t, string(page), "\n| "+k.name+" | ")
	}
}

func TestUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"unexpected argument": {"now"},
		"-seeds -1":           {"-seeds", "-1"},
		"-table needs -seeds": {"-table"},
		`-policy "x"`:         {"-policy", "x"},
		`-fault "x"`:          {"-fault", "x"},
	} {
		assert.ErrorContains(t, run(t, args, io.Discard), want)
	}
}
