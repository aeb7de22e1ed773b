package rules

import (
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ascii"
)

// A compiled rule is one that is in force.
type compiled struct {
	Rule
	alg ratelimit.Algorithm
}

// expired reports whether the rule has ended.
func (c *compiled) expired(now func() time.Time) bool {
	return !c.Expires.IsZero() && !now().Before(c.Expires)
}

// A tree finds the rule for a call, segment by segment. The most specific rule
// wins: where two differ first, from the left, a word comes before a number (#),
// that before any segment ({name}), and that before all below (**). Of two rules
// with the same path, the one with the method wins.
//
// The time to find it depends on the length of the path and not on the number of
// rules, as long as few of them have words and placeholders in the same places: a
// segment is tried as each of what rules have there, so it may be up to three times
// as long for each such place.
type tree struct {
	words  map[string]*tree
	number *tree
	any    *tree
	here   methods // rules that end here
	below  methods // rules that end with ** here
}

// methods are the rules of one path, by method; "" is every method.
type methods map[string]*compiled

// newTree compiles rules: those that are disabled, or have expired by now, do not
// count.
func newTree(rules []Rule, now time.Time) (*tree, []*compiled, error) {
	t := &tree{}
	var all []*compiled
	ids := make(map[string]bool)
	for _, r := range rules {
		alg, err := r.algorithm()
		if err != nil {
			return nil, nil, err
		}
		if ids[r.ID] {
			return nil, nil, &FieldError{r.ID, "ID", r.ID, "a name of its own, and another rule has it"}
		}
		ids[r.ID] = true
		method, segments, below, err := r.parse()
		if err != nil {
			return nil, nil, err
		}
		r.Expires = r.Expires.Round(0).UTC() // to be compared
		c := &compiled{r, alg}
		if r.Disabled || c.expired(func() time.Time { return now }) {
			continue
		}
		if other := t.add(method, segments, below, c); other != nil {
			return nil, nil, &FieldError{r.ID, "Call", r.Call, "another call than that of rule " + quote(other.ID) + ", " + quote(other.Call)}
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *compiled) int { return strings.Compare(a.ID, b.ID) })
	return t, all, nil
}

func quote(s string) string { return `"` + s + `"` }

// parse takes a call apart.
func (r *Rule) parse() (method string, segments []string, below bool, err error) {
	wrong := func(want string) error { return &FieldError{r.ID, "Call", r.Call, want} }
	p := strings.TrimSpace(r.Call)
	if before, after, ok := strings.Cut(p, " "); ok && !strings.HasPrefix(before, "/") {
		method, p = strings.ToUpper(before), strings.TrimSpace(after)
	}
	if !utf8.ValidString(p) {
		return "", nil, false, wrong("valid UTF-8")
	}
	if !strings.HasPrefix(p, "/") {
		return "", nil, false, wrong(`a path such as "/user/#", or a method and a path, "GET /user/#"`)
	}
	if p, below = strings.CutSuffix(p, "/**"); !below && p != "/" {
		if p, below = strings.CutSuffix(p, "/"); !below && strings.HasSuffix(p, "...}") && strings.HasPrefix(path.Base(p), "{") {
			p, below = path.Dir(p), true
		}
	}
	p = strings.TrimSuffix(p, "/{$}")
	if p = path.Clean("/" + p); p == "/" {
		return method, nil, below, nil
	}
	for s := range strings.SplitSeq(p[1:], "/") {
		switch {
		case s == "**" || s == "{$}" || strings.HasSuffix(s, "...}"):
			return "", nil, false, wrong("a call with ** at its end only")
		case strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}") && len(s) > 2:
			s = "{}"
		case strings.ContainsAny(s, "{}*"):
			return "", nil, false, wrong("a call whose segments are words, # or {name}")
		case ascii.IsNumber(s):
			s = "#" // as in the path of a request
		default:
			s = strings.ToLower(s)
		}
		segments = append(segments, s)
	}
	return method, segments, below, nil
}

// add puts a rule into the tree, unless another one is there.
func (t *tree) add(method string, segments []string, below bool, c *compiled) (other *compiled) {
	for _, s := range segments {
		next := &t.any
		switch s {
		case "{}":
		case "#":
			next = &t.number
		default:
			if t.words == nil {
				t.words = make(map[string]*tree)
			}
			if t.words[s] == nil {
				t.words[s] = &tree{}
			}
			t = t.words[s]
			continue
		}
		if *next == nil {
			*next = &tree{}
		}
		t = *next
	}
	to := &t.here
	if below {
		to = &t.below
	}
	if *to == nil {
		*to = make(methods)
	}
	if other = (*to)[method]; other == nil {
		(*to)[method] = c
	}
	return other
}

// find returns the rule for a call whose path is clean and in lower case, without
// its first slash, or nil.
func (t *tree) find(method, path string, now func() time.Time) *compiled {
	if path == "" {
		if c := t.here.find(method, now); c != nil {
			return c
		}
		return t.below.find(method, now)
	}
	segment, rest, _ := strings.Cut(path, "/")
	if next := t.words[segment]; next != nil {
		if c := next.find(method, rest, now); c != nil {
			return c
		}
	}
	if t.number != nil && ascii.IsNumber(segment) {
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

func (m methods) find(method string, now func() time.Time) *compiled {
	if m == nil {
		return nil
	}
	if c := m[method]; c != nil && !c.expired(now) {
		return c
	}
	switch method {
	case "":
		return nil
	case "HEAD": // which net/http routes as GET, too
		return m.find("GET", now)
	}
	return m.find("", now)
}

// escaped is normal for a path as it was sent, of which the segments are unescaped
// one by one, as net/http's ServeMux does it: a slash in one does not divide it.
func escaped(p string) string {
	if !strings.Contains(p, "%") {
		return normal(p)
	}
	segments := strings.Split(strings.TrimPrefix(path.Clean("/"+p), "/"), "/")
	for i, s := range segments {
		if plain, err := url.PathUnescape(s); err == nil {
			segments[i] = strings.ToLower(strings.ReplaceAll(plain, "/", "%2F"))
		}
	}
	return strings.Join(segments, "/")
}

// normal returns a path as find takes it.
func normal(p string) string {
	if p == "" || p[0] != '/' {
		p = "/" + p
	}
	return strings.ToLower(path.Clean(p))[1:]
}
