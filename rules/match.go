package rules

import (
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A compiled rule is a valid rule with its parsed call and its algorithm.
type compiled struct {
	Rule
	alg  ratelimit.Algorithm
	call call
}

// flies reports whether the rule is in-flight.
func (c *compiled) flies() bool {
	_, ok := c.alg.(ratelimit.InFlight)
	return ok
}

// compile checks everything about r that does not depend on other rules.
func (r Rule) compile() (*compiled, error) {
	alg, err := r.algorithm()
	if err != nil {
		return nil, err
	}
	c, want := parseCall(r.Call)
	if want != "" {
		return nil, &FieldError{r.ID, "Call", r.Call, want}
	}
	r.Expires = r.Expires.Round(0).UTC() // so that equal rules compare equal with ==
	return &compiled{r, alg, c}, nil
}

// expired reports whether the rule has expired by now.
func (c *compiled) expired(now time.Time) bool {
	return !c.Expires.IsZero() && !now.Before(c.Expires)
}

// A tree finds the rule for a call, segment by segment. The most specific rule wins: at
// the first segment, from the left, in which two rules differ, a word precedes a number
// (#), a number precedes any segment ({name}), and that precedes everything below (**).
// Of two rules with the same path, the one that names the method wins.
//
// The time to find a rule depends on the length of the path, not on the number of
// rules. It grows by a factor of up to three for each segment in which rules have a
// word, a number and a placeholder as alternatives, because each is tried in turn.
type tree struct {
	words  map[string]*tree
	number *tree
	any    *tree
	here   methods // rules whose path ends here
	below  methods // rules whose path ends here with **
}

// methods are the rules of one path by method. "" is every method.
type methods map[string]*compiled

// at returns the node for a path, and creates it if necessary. The function as maps each
// word of the path to its spelling in the tree.
func (t *tree) at(segments []segment, as func(string) string) *tree {
	for _, s := range segments {
		next := &t.any
		switch s.kind {
		case number:
			next = &t.number
		case word:
			if t.words == nil {
				t.words = make(map[string]*tree)
			}
			w := as(s.word)
			if t.words[w] == nil {
				t.words[w] = &tree{}
			}
			t = t.words[w]
			continue
		}
		if *next == nil {
			*next = &tree{}
		}
		t = *next
	}
	return t
}

// add adds a rule to the tree, unless the tree already has a rule for the same path and
// one of its methods. Then it returns that one.
func (t *tree) add(c *compiled, as func(string) string) (other *compiled) {
	node := t.at(c.call.segments, as)
	to := &node.here
	if c.call.below {
		to = &node.below
	}
	for _, m := range c.call.methods {
		if other := (*to)[m]; other != nil {
			return other
		}
	}
	if *to == nil {
		*to = make(methods)
	}
	for _, m := range c.call.methods {
		(*to)[m] = c
	}
	return nil
}

// find returns the rule for a call, or nil.
func (t *tree) find(method string, segments []string, now time.Time) *compiled {
	if len(segments) == 0 {
		if c := t.here.find(method, now); c != nil {
			return c
		}
		return t.below.find(method, now)
	}
	s, rest := segments[0], segments[1:]
	if next := t.words[s]; next != nil {
		if c := next.find(method, rest, now); c != nil {
			return c
		}
	}
	if t.number != nil && isNumber(s) {
		if c := t.number.find(method, rest, now); c != nil {
			return c
		}
	}
	if t.any != nil {
		if c := t.any.find(method, rest, now); c != nil {
			return c
		}
	}
	return t.below.find(method, now)
}

func (m methods) find(method string, now time.Time) *compiled {
	if m == nil {
		return nil
	}
	if c := m[method]; c != nil && !c.expired(now) {
		return c
	}
	switch method {
	case "":
		return nil
	case "HEAD": // net/http routes HEAD to handlers for GET as well
		return m.find("GET", now)
	}
	return m.find("", now)
}

// An index has the rules of one load.
type index struct {
	folded tree            // words in lower case
	exact  tree            // words as written
	cased  bool            // whether folded and exact differ
	ends   bool            // whether a rule expires
	depth  int             // the largest number of segments of a rule
	rules  []*compiled     // in force, sorted by ID
	good   map[string]Rule // all valid rules, including disabled ones, by ID
}

// newIndex compiles rules. It leaves out those that are disabled or have expired by now.
// An invalid rule is replaced by the rule with the same ID in last, the valid rules of
// the previous load, if there is one. The error lists unread and the invalid rules.
func newIndex(rules []Rule, unread BadRules, last map[string]Rule, now time.Time) (*index, BadRules) {
	t := &index{good: make(map[string]Rule, len(rules))}
	bad := slices.Clone(unread)
	// Of two conflicting rules, the one that has not changed stays.
	var changed []*compiled
	add := func(c *compiled) {
		if err := t.add(c, now); err != nil {
			bad = append(bad, BadRule{c.ID, err})
		}
	}
	for _, r := range rules {
		c, err := r.compile()
		if err != nil {
			bad = append(bad, BadRule{r.ID, err})
			continue
		}
		if old, ok := last[r.ID]; ok && old == c.Rule {
			add(c)
		} else {
			changed = append(changed, c)
		}
	}
	for _, c := range changed {
		add(c)
	}
	t.keep(bad, last, now)
	slices.SortFunc(t.rules, func(a, b *compiled) int { return strings.Compare(a.ID, b.ID) })
	return t, bad
}

// keep adds the last valid versions of invalid rules.
func (t *index) keep(bad BadRules, last map[string]Rule, now time.Time) {
	for _, b := range bad {
		if b.ID == "" {
			// Any of the missing rules may be this one.
			for id := range last {
				t.keepOne(id, last, now)
			}
		}
		t.keepOne(b.ID, last, now)
	}
}

func (t *index) keepOne(id string, last map[string]Rule, now time.Time) {
	old, ok := last[id]
	if _, loaded := t.good[id]; loaded || !ok {
		return
	}
	if c, err := old.compile(); err == nil {
		_ = t.add(c, now) // fails if another rule now has the same call
	}
}

// add adds a rule, unless it conflicts with another one.
func (t *index) add(c *compiled, now time.Time) error {
	if _, ok := t.good[c.ID]; ok {
		return &FieldError{c.ID, "ID", c.ID, "unique, but another rule has it too"}
	}
	if !c.Disabled && !c.expired(now) {
		if other := t.folded.add(c, strings.ToLower); other != nil {
			return &FieldError{c.ID, "Call", c.Call, "a different call than that of rule " + quote(other.ID) + ", " + quote(other.Call)}
		}
		t.exact.add(c, func(w string) string { return w })
		t.ends = t.ends || !c.Expires.IsZero()
		t.depth = max(t.depth, len(c.call.segments))
		for _, s := range c.call.segments {
			t.cased = t.cased || s.word != strings.ToLower(s.word)
		}
		t.rules = append(t.rules, c)
	}
	t.good[c.ID] = c.Rule
	return nil
}
