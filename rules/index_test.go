package rules

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// Random histories of these tests: 600 tables and 4000 paths in CI, and 3000 and 20,000 at night
// (RATELIMIT_NIGHTLY=1).

// held returns the rules of an index by the places for which they are in force.
func held(t *index) map[place]Rule {
	rules := make(map[place]Rule)
	for _, c := range t.rules {
		for _, p := range c.call.places() {
			rules[p] = c.Rule
		}
	}
	return rules
}

// keeps reports whether a rule must stay in force for p, a place of its last version: it still has p
// or, if rules have several places, its call is still the same.
func keeps(c *compiled, last Rule, p place, oneMethod bool) bool {
	return oneMethod && slices.Contains(c.call.places(), p) || c.Call == last.Call
}

// TestConflicts edits tables in which rules have each other's calls and IDs, or are invalid,
// and checks which of them are in force.
func TestConflicts(t *testing.T) {
	random := budget.Rand(t)
	now := time.Unix(1000, 0)
	for table := range budget.Histories(600, 3000) {
		oneMethod := table%2 == 0
		calls := []string{"/x", "/X", "GET /x", "POST /x", "/{a}", "/{b}", "/#", "/7", "/**", "/"}
		if !oneMethod {
			calls = append(calls, "GET,POST /x", "POST,PUT /x", "GET,PUT /X")
		}
		var rows []Rule
		last := new(index)
		for load := range 8 {
			for range random.IntN(5) {
				r := ruleFor(string('a'+rune(random.IntN(6))), calls[random.IntN(len(calls))])
				r.Limit = random.IntN(6) // 0 is invalid
				r.Window = []time.Duration{time.Minute, time.Hour}[random.IntN(2)]
				r.Algorithm = []string{"", "", "", "token-bucket", "blocked", "unlimited"}[random.IntN(6)]
				r.Shadow, r.Disabled = random.IntN(8) == 0, random.IntN(8) == 0
				switch i := slices.IndexFunc(rows, func(old Rule) bool { return old.ID == r.ID }); {
				case i < 0 || random.IntN(20) == 0:
					rows = append(rows, r)
				case random.IntN(3) == 0:
					rows = slices.Delete(rows, i, i+1)
				default:
					rows[i].Limit = r.Limit
					if random.IntN(2) == 0 {
						rows[i] = r
					}
				}
			}
			all, bad := newIndex(rows, nil, last, now)
			is, was := held(all), held(last)
			says := fmt.Sprintf("%v after %v: %v", rows, was, bad)

			other := slices.Clone(rows)
			random.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
			shuffled, badToo := newIndex(other, nil, last, now)
			require.Equal(t, is, held(shuffled), "the order of rows: "+says)
			require.ElementsMatch(t, bad, badToo, says)

			rowsOf := make(map[string][]*compiled)
			for _, r := range rows {
				c, _ := r.compile() // nil for an invalid row
				rowsOf[r.ID] = append(rowsOf[r.ID], c)
			}
			for id, of := range rowsOf {
				reported := slices.ContainsFunc(bad, func(b BadRule) bool { return b.ID == id })
				if len(of) > 1 || of[0] == nil {
					require.True(t, reported, says)
					continue
				}
				c := of[0]
				for _, p := range c.call.places() {
					if c.Disabled {
						require.NotEqual(t, id, is[p].ID, says)
						continue
					}
					require.True(t, reported || is[p] == c.Rule, "%v: %s", p, says)
					if h, ok := is[p]; oneMethod {
						require.True(t, ok, "%v: %s", p, says)
						require.True(t, load > 0 || h.ID <= id, "the lowest ID: %s", says)
					}
				}
			}
			for p, old := range was {
				of := rowsOf[old.ID]
				switch {
				case len(of) > 1, len(of) == 1 && of[0] == nil:
					require.Equal(t, old, is[p], "the last valid version: %s", says)
				case len(of) == 1 && !of[0].Disabled && keeps(of[0], old, p, oneMethod):
					require.Equal(t, old.ID, is[p].ID, "%v: what is in force stays: %s", p, says)
				}
			}
			if oneMethod {
				again, _ := newIndex(rows, nil, all, now)
				require.Equal(t, is, held(again), "again: "+says)
			}
			last = all
		}
	}
}

// TestConflictsInOrder follows rules that get each other's calls, one load after the other.
func TestConflictsInOrder(t *testing.T) {
	now := time.Unix(1000, 0)
	ended := ruleFor("a", "/x")
	ended.Expires = now
	off := ruleFor("a", "/x")
	off.Disabled = true
	for _, tt := range []struct {
		name  string
		loads [][]Rule
		want  map[string]string // the IDs of the rules in force after the last load, by call
		bad   []string          // their IDs
	}{
		{"at the start, the lower ID", [][]Rule{{ruleFor("b", "/x"), ruleFor("a", "/X")}}, map[string]string{"/X": "a"}, []string{"b"}},
		{"the one in force stays", [][]Rule{
			{ruleFor("b", "/x")},
			{ruleFor("b", "/x"), ruleFor("a", "/x")},
		}, map[string]string{"/x": "b"}, []string{"a"}},
		{"in a second load, too", [][]Rule{
			{ruleFor("b", "/x")},
			{ruleFor("b", "/x"), ruleFor("a", "/x")},
			{ruleFor("b", "/x"), ruleFor("a", "/x")},
		}, map[string]string{"/x": "b"}, []string{"a"}},
		{"one that has ended has no call", [][]Rule{{ended, ruleFor("b", "/x")}}, map[string]string{"/x": "b"}, nil},
		{"nor has one that is off", [][]Rule{{off, ruleFor("b", "/x")}}, map[string]string{"/x": "b"}, nil},
		{"one in force that is switched off", [][]Rule{
			{ruleFor("a", "/x")},
			{off, ruleFor("b", "/x")},
		}, map[string]string{"/x": "b"}, nil},
		{"two that change places", [][]Rule{
			{ruleFor("a", "/x"), ruleFor("b", "/y")},
			{ruleFor("a", "/y"), ruleFor("b", "/x")},
		}, map[string]string{"/y": "a", "/x": "b"}, nil},
		{"one that is refused keeps its call", [][]Rule{
			{ruleFor("a", "/x"), ruleFor("b", "/y")},
			{ruleFor("a", "/y"), ruleFor("b", "/y"), ruleFor("c", "/x")},
		}, map[string]string{"/x": "a", "/y": "b"}, []string{"a", "c"}},
		{"unless a lower ID has it by now", [][]Rule{
			{ruleFor("b", "/x"), ruleFor("c", "/y")},
			{ruleFor("b", "/y"), ruleFor("c", "/y"), ruleFor("a", "/x")},
		}, map[string]string{"/x": "a", "/y": "c"}, []string{"b"}},
		{"a method more", [][]Rule{
			{ruleFor("a", "GET /x"), ruleFor("b", "POST /x")},
			{ruleFor("a", "GET,POST /x"), ruleFor("b", "POST /x")},
		}, map[string]string{"GET /x": "a", "POST /x": "b"}, []string{"a"}},
		{"a method that others want", [][]Rule{
			{ruleFor("b", "GET /x")},
			{ruleFor("a", "POST /x"), ruleFor("b", "GET,POST /x"), ruleFor("0", "GET /x")},
		}, map[string]string{"POST /x": "a", "GET /x": "b"}, []string{"0", "b"}},
	} {
		last, bad := (*index)(nil), BadRules(nil)
		for _, rules := range tt.loads {
			last, bad = newIndex(rules, nil, last, now)
		}
		inForce := make(map[string]string)
		for _, c := range last.rules {
			inForce[c.Call] = c.ID
		}
		require.Equal(t, tt.want, inForce, tt.name)
		var ids []string
		for _, b := range bad {
			ids = append(ids, b.ID)
			require.ErrorContains(t, b.Err, "a different call than that of rule", tt.name)
		}
		require.Equal(t, tt.bad, ids, tt.name)
	}
}

// TestLoadOfRulesOfOneLimit checks that rules with the same limit and different IDs, as most tables
// have them, cost no more than others.
func TestLoadOfRulesOfOneLimit(t *testing.T) {
	const n = 1000
	allocs := func(limitOf func(i int) int) float64 {
		rules := make([]Rule, n)
		for i := range rules {
			rules[i] = ruleFor(fmt.Sprint("rule ", i), fmt.Sprint("/call/", i))
			rules[i].Limit = limitOf(i)
		}
		return testing.AllocsPerRun(1, func() { _, _ = newIndex(rules, nil, nil, time.Now()) })
	}
	different := allocs(func(i int) int { return i + 1 })
	// They differ by less than one allocation for each rule.
	assert.InDelta(t, different, allocs(func(int) int { return 1 }), n)
}
