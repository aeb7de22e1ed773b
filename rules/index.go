package rules

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// An index has the rules of one load.
type index struct {
	folded tree // words folded by fold
	exact  tree // words as written
	cased  bool // whether folded and exact differ
	ends   bool // whether a rule expires
	depth  int  // the largest number of segments of a rule
	// The length of the longest word of a rule, folded.
	longest int
	rules   []*compiled // in force, sorted by ID
	// The last valid version of each rule, by ID; some are disabled or have expired.
	valid map[string]*compiled
}

// newIndex returns an index of rules. Those that are disabled or have expired by now are not
// in force. An invalid rule, and one of several with the same ID, is replaced by the rule with
// that ID in last, the index of the previous load, if there is one. The error lists unread and
// the invalid rules. The index does not depend on the order of the rules.
//
// Of rules that conflict, because they have a path and a method in common, one is in force for
// them: the one that is in force for them in last, or else the one with the lowest ID. The others
// are invalid.
func newIndex(rules []Rule, unread BadRules, last *index, now time.Time) (*index, BadRules) {
	if last == nil {
		last = new(index)
	}
	t := &index{valid: make(map[string]*compiled, len(rules))}
	bad := slices.Clone(unread)
	var read []*compiled
	for _, r := range rules {
		if c, err := r.compile(); err == nil {
			read = append(read, c)
		} else {
			bad = append(bad, BadRule{r.ID, err})
		}
	}
	slices.SortFunc(read, byIDAndStrictness)
	for _, c := range read {
		if t.valid[c.ID] == nil {
			t.valid[c.ID] = c
		} else {
			bad = append(bad, BadRule{c.ID, &FieldError{c.ID, "ID", c.ID, "unique, but another rule has it too"}})
		}
	}
	for _, b := range bad {
		if old := last.valid[b.ID]; old != nil {
			t.valid[b.ID] = old
		}
		if b.ID == "" { // any of the missing rules may be this one
			for id, old := range last.valid {
				if t.valid[id] == nil {
					t.valid[id] = old
				}
			}
		}
	}
	bad = t.settle(bad, last, now)
	for _, c := range t.valid {
		if c.counts(now) {
			t.rules = append(t.rules, c)
		}
	}
	slices.SortFunc(t.rules, func(a, b *compiled) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range t.rules {
		t.folded.add(c, fold)
		t.exact.add(c, func(w string) string { return w })
		t.ends = t.ends || !c.Expires.IsZero()
		t.depth = max(t.depth, len(c.call.segments))
		for _, s := range c.call.segments {
			t.cased = t.cased || s.word != fold(s.word)
			t.longest = max(t.longest, len(fold(s.word)))
		}
	}
	return t, bad
}

// dropped returns how many of the rules in last are missing from the load of t, in which bad are
// invalid.
func (t *index) dropped(last *index, bad BadRules) (n int) {
	if last == nil {
		return 0
	}
	invalid := make(map[string]bool, len(bad))
	for _, b := range bad {
		invalid[b.ID] = true
	}
	for id := range last.valid {
		if t.valid[id] == nil && !invalid[id] {
			n++
		}
	}
	return n
}

// A place is a path and a method, for which one rule can be in force.
type place struct{ path, method string }

// places returns the places of a call. Paths that only differ in case, or in the names of
// segments, are the same.
func (c *call) places() (all []place) {
	var path strings.Builder
	for _, s := range c.segments {
		path.WriteString(
			[...]string{word: "/" + url.PathEscape(fold(s.word)), number: "/#", wildcard: "/{}"}[s.kind],
		)
	}
	if c.below {
		path.WriteString("/**")
	}
	for _, m := range c.methods {
		all = append(all, place{path.String(), m})
	}
	return all
}

// settle decides which of the rules that conflict are in force, and adds the others to bad. A rule
// keeps the places that it has in last. Rules take the other places in the order of their IDs. A
// rule that does not get all of its places is replaced by its version in last, or is not in force
// if that one conflicts as well.
func (t *index) settle(bad BadRules, last *index, now time.Time) BadRules {
	taken := make(map[place]*compiled)
	for _, old := range last.rules {
		c := t.valid[old.ID]
		if c == nil || !c.counts(now) {
			continue
		}
		places := c.call.places()
		for _, p := range old.call.places() {
			if slices.Contains(places, p) {
				taken[p] = c
			}
		}
	}
	// take takes the places of c, if no other rule has one of them, or else returns that rule.
	take := func(c *compiled) (other *compiled) {
		if !c.counts(now) {
			return nil // it needs no place
		}
		places := c.call.places()
		for _, p := range places {
			if other := taken[p]; other != nil && other.ID != c.ID {
				return other
			}
		}
		for _, p := range places {
			taken[p] = c
		}
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(t.valid)) {
		c := t.valid[id]
		other := take(c)
		if other == nil {
			continue
		}
		want := "a different call than that of rule " + quote(other.ID) + ", " + quote(other.Call)
		bad = append(bad, BadRule{id, &FieldError{id, "Call", c.Call, want}})
		old := last.valid[id]
		if old == nil || take(old) != nil {
			delete(t.valid, id)
		} else {
			t.valid[id] = old
		}
	}
	return bad
}

// counts reports whether the rule is neither disabled nor expired.
func (c *compiled) counts(now time.Time) bool { return !c.Disabled && !c.expired(now) }

// byIDAndStrictness compares rules by their IDs. Rules with the same ID are compared by what they
// allow: in the long run, then at once, and then by how long they lock out. Those that allow the
// same are in some order. Few rules have the same ID, so that the comparison may take long.
func byIDAndStrictness(a, b *compiled) int {
	if n := strings.Compare(a.ID, b.ID); n != 0 {
		return n
	}
	aHigh, aLow := bits.Mul64(uint64(a.Limit), uint64(b.span()))
	bHigh, bLow := bits.Mul64(uint64(b.Limit), uint64(a.span()))
	if n := cmp.Or(
		cmp.Compare(a.leniency(), b.leniency()),
		cmp.Compare(aHigh, bHigh),
		cmp.Compare(aLow, bLow),
		cmp.Compare(cmp.Or(a.Burst, a.Limit), cmp.Or(b.Burst, b.Limit)),
		-cmp.Compare(a.FirstLockout, b.FirstLockout),
		-cmp.Compare(a.LongestLockout, b.LongestLockout),
	); n != 0 {
		return n
	}
	return strings.Compare(fmt.Sprint(a.Rule), fmt.Sprint(b.Rule))
}

// leniency is 0 for a rule that allows nothing, 1 for a limit, and 2 for a rule that refuses
// nothing.
func (c *compiled) leniency() int {
	switch {
	case c.Shadow || c.alg == ratelimit.Algorithm(ratelimit.Unlimited{}):
		return 2
	case c.alg == ratelimit.Algorithm(ratelimit.Blocked{}):
		return 0
	}
	return 1
}
