package rules

import (
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
	if r.ID == "" {
		return nil, &FieldError{r.ID, "ID", r.ID, "a unique name"}
	}
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

// add adds a rule to the tree. The function as maps each word of its path to its spelling in
// the tree.
func (t *tree) add(c *compiled, as func(string) string) {
	for _, s := range c.call.segments {
		next := &t.any
		switch s.kind {
		case number:
			next = &t.number
		case word:
			w := as(s.word)
			if t.words == nil {
				t.words = make(map[string]*tree)
			}
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
	to := &t.here
	if c.call.below {
		to = &t.below
	}
	if *to == nil {
		*to = make(methods)
	}
	for _, m := range c.call.methods {
		(*to)[m] = c
	}
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
