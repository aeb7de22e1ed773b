package rules

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

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

// perHour returns what a rule allows in the long run.
func perHour(r Rule) float64 {
	switch {
	case r.Shadow, r.Algorithm == "unlimited":
		return math.Inf(1)
	case r.Algorithm == "blocked":
		return 0
	}
	return float64(r.Limit) / r.Window.Hours()
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
						require.True(t, load > 0 || perHour(h) <= perHour(c.Rule), "the strictest: %s", says)
					}
				}
			}
			for p, old := range was {
				of := rowsOf[old.ID]
				switch {
				case len(of) > 1, len(of) == 1 && of[0] == nil:
					require.Equal(t, old, is[p], "the last valid version: %s", says)
				case len(of) == 1 && !of[0].Disabled && slices.Contains(of[0].call.places(), p):
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
