package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// A series has the measurements of one contender in one scenario.
type series struct {
	values []float64
	allocs []float64 // per operation; empty if not counted
	wrong  int       // the number of wrong answers
}

func (s *series) median() float64 { return median(s.values) }
func (s *series) min() float64    { return slices.Min(s.values) }
func (s *series) max() float64    { return slices.Max(s.values) }

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// results are the series of a run.
type results struct {
	series map[string]map[string]*series // by scenario and contender
	server struct {
		version string // of the Redis server
		missing string // why there was no server
	}
}

func newResults() *results {
	return &results{series: make(map[string]map[string]*series)}
}

func (r *results) at(id, contender string) *series {
	byContender := r.series[id]
	if byContender == nil {
		byContender = make(map[string]*series)
		r.series[id] = byContender
	}
	s := byContender[contender]
	if s == nil {
		s = &series{}
		byContender[contender] = s
	}
	return s
}

func (r *results) add(id, contender string, value float64, wrong int) {
	s := r.at(id, contender)
	s.values = append(s.values, value)
	s.wrong += wrong
}

func (r *results) addAllocs(id, contender string, allocs float64) {
	s := r.at(id, contender)
	s.allocs = append(s.allocs, allocs)
}

// addWrong records wrong answers in a preparation or a check.
func (r *results) addWrong(id, contender string, wrong int) {
	r.at(id, contender).wrong += wrong
}

// An entry is a contender with its series.
type entry struct {
	contenders.Contender
	*series
}

// of returns the entries of scenario id, the lowest median first.
func (r *results) of(id string, all []contenders.Contender) []entry {
	var entries []entry
	for _, c := range all {
		if s := r.series[id][c.Name]; s != nil && len(s.values) > 0 {
			entries = append(entries, entry{c, s})
		}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.median(), b.median()) })
	return entries
}

// first returns the first entry of a role without a wrong answer, if any.
func first(entries []entry, role contenders.Role) (entry, bool) {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.Role == role && e.wrong == 0 })
	if i < 0 {
		return entry{}, false
	}
	return entries[i], true
}

// goOn is how many of the best peers continue after the first pass of a heavy group. One
// would be enough if nothing else ran on the machine.
const goOn = 2

// goesOn reports whether c continues after the first pass of a group with scenarios ids: this
// library, no limiter, and the best peers do.
func (r *results) goesOn(ids []string, c contenders.Contender, all []contenders.Contender) bool {
	switch c.Role {
	case contenders.Main, contenders.Floor:
		return true
	case contenders.Variant, contenders.Bound:
		return false
	}
	for _, id := range ids {
		better := 0
		for _, e := range r.of(id, all) {
			if e.Name == c.Name && better < goOn {
				return true
			}
			if e.Role == contenders.Peer {
				better++
			}
		}
	}
	return false
}

// check returns an error that names every contender that gave wrong answers.
func (r *results) check(all []scenario) error {
	var lines []string
	for _, s := range all {
		for name, got := range r.series[s.id] {
			if got.wrong > 0 {
				lines = append(lines, fmt.Sprintf("%s: %s: %d wrong answers", s.id, name, got.wrong))
			}
		}
	}
	if lines == nil {
		return nil
	}
	slices.Sort(lines)
	return fmt.Errorf("limiters with wrong answers are not measured. Find the cause, or correct their configuration in benchmarks/contenders:\n\t%s", strings.Join(lines, "\n\t"))
}
