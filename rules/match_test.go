package rules

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

func ruleFor(id, call string) Rule { return Rule{ID: id, Call: call, Limit: 1, Window: time.Minute} }

// matched returns the IDs of the matching rules.
func matched(t *index, method, path string) (ids []string) {
	for _, c := range t.match(nil, method, path, clock.New()) {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestMatch(t *testing.T) {
	var rules []Rule
	for i, call := range []string{
		"/user/#/photos/#", "GET /user/#/photos/#", "/user/{name}", "/user/me", "/user/#", "/user/**",
		"POST /user/**", "/", "/files/**", "/items/{id}/reviews", "GET /items/{id}/{$}", "/static/",
		"/docs/{path...}", "/Mixed/CASE", "/api/v1/**", "/api/{version}/status", "/n/7/x", "/deep/{a}/c", "/deep/b/d",
	} {
		rules = append(rules, ruleFor(call, call))
		rules[i].Limit = i + 1
	}
	tree, bad := newIndex(rules, nil, nil, time.Now())
	require.Empty(t, bad)
	require.Len(t, tree.rules, len(rules))
	for _, tt := range []struct{ method, path, want string }{
		{"GET", "/user/42/photos/7", "GET /user/#/photos/#"},
		{"HEAD", "/user/42/photos/7", "GET /user/#/photos/#"},
		{"POST", "/user/42/photos/7", "/user/#/photos/#"},
		{"", "/user/42/photos/7", "/user/#/photos/#"},
		{"GET", "/USER//42/./photos/7/", "/user/** | GET /user/#/photos/#"}, // to a handler that does not clean
		{"GET", "/user/42/../me", "/user/** | /user/me"},
		{"GET", "/user/me", "/user/me"},
		{"GET", "/user/7", "/user/#"},
		{"GET", "/user/ann", "/user/{name}"},
		{"GET", "/user", "/user/**"},
		{"POST", "/user/ann/x", "POST /user/**"},
		{"GET", "/user/ann/x", "/user/**"},
		{"POST", "/user/me", "/user/me"}, // the path counts before the method
		{"GET", "/", "/"},
		{"GET", "", "/"},
		{"GET", "/nothing", ""},
		{"GET", "/files", "/files/**"},
		{"GET", "/files/a/b/c", "/files/**"},
		{"GET", `/files\a`, "/files/**"}, // to a handler that takes \ for /
		{"GET", "/items/x/reviews", "/items/{id}/reviews"},
		{"GET", "/items/9/reviews", "/items/{id}/reviews"},
		{"GET", "/items/9", "GET /items/{id}/{$}"},
		{"PUT", "/items/9", ""},
		{"GET", "/static/a.css", "/static/"},
		{"GET", "/docs/a/b", "/docs/{path...}"},
		{"GET", "/mixed/case", "/Mixed/CASE"},
		{"GET", "/api/v1/status", "/api/v1/**"}, // the word counts before what follows
		{"GET", "/api/v2/status", "/api/{version}/status"},
		{"GET", "/n/7/x", "/n/7/x"},
		{"GET", "/n/12/x", ""},              // a literal is a literal
		{"GET", "/deep/b/c", "/deep/{a}/c"}, // not /deep/b, which leads nowhere
		{"GET", "/user/42/photos/7/x/y/z", "/user/**"},
	} {
		assert.Equal(t, tt.want, strings.Join(matched(tree, tt.method, tt.path), " | "), "%s %q", tt.method, tt.path)
	}
}

func TestBadRules(t *testing.T) {
	long := ruleFor("long", "/x")
	long.Limit, long.Window, long.Algorithm = 1, time.Nanosecond, "sliding-window"
	for want, rules := range map[string][]Rule{
		`rules: ID is "": it must be a unique name`: {ruleFor("", "/x")},
		`rule "a": ID is "a"`:                       {ruleFor("a", "/x"), ruleFor("a", "/y")},
		`rule "b": Call is "/USER/{id}/7": it must be a different call than that of rule "a"`: {ruleFor("a", "/user/{name}/7"), ruleFor("b", "/USER/{id}/7")},
		`Call is "x"`:                 {ruleFor("a", "x")},
		`Call is ""`:                  {ruleFor("a", "")},
		`Call is "/a/**/b"`:           {ruleFor("a", "/a/**/b")},
		`Call is "/a/b*"`:             {ruleFor("a", "/a/b*")},
		`Call is "/a/{b}c"`:           {ruleFor("a", "/a/{b}c")},
		`Call is "GET example.com/x"`: {ruleFor("a", "GET example.com/x")},
		"Limit is 0":                  {{ID: "a", Call: "/x", Window: 1}},
		`Window is "0s"`:              {{ID: "a", Call: "/x", Limit: 1}},
		`Algorithm is "magic": it must be one of ["sliding-log"`: {{ID: "a", Call: "/x", Limit: 1, Window: 1, Algorithm: "magic"}},
		`Algorithm is "lock-out": it must be one of ["sliding-log"`: {{
			ID: "a", Call: "/x", Limit: 1, Window: 1, Algorithm: "lock-out", FirstLockout: time.Minute,
		}},
		`Every is 9: it must be day, week, month, quarter or year, for a calendar-window`: {{ID: "a", Call: "/x", Limit: 1, Every: 9}},
		`Every is "day": it must be left out, except for a calendar-window`: {{
			ID: "a", Call: "/x", Limit: 1, Window: 1, Every: ratelimit.Day, Algorithm: "sliding-log",
		}},
		`FirstLockout is "0s": it must be longer than 0, for a lockout`: {{ID: "a", Call: "/x", Limit: 1, Window: 1, Algorithm: "lockout"}},
		`FirstLockout is "-1ns": it must be longer than 0, for a lockout`: {{
			ID: "a", Call: "/x", Limit: 1, Window: 1, Algorithm: "lockout", FirstLockout: -1,
		}},
		`LongestLockout is "1s": it must be at least as long as the first lockout, 1m0s`: {{
			ID: "a", Call: "/x", Limit: 1, Window: 1, Algorithm: "lockout", FirstLockout: time.Minute,
			LongestLockout: time.Second,
		}},
		`FirstLockout is "1s": it must be left out, unless the algorithm is lockout`: {{
			ID: "a", Call: "/x", Limit: 1, Window: 1, FirstLockout: time.Second,
		}},
		`LongestLockout is "1s": it must be left out, unless the algorithm is lockout`: {{
			ID: "a", Call: "/x", Algorithm: "unlimited", LongestLockout: time.Second,
		}},
		"Burst is -1": {{ID: "a", Call: "/x", Limit: 1, Window: 1, Burst: -1, Algorithm: "token-bucket"}},
		"Burst is 3":  {{ID: "a", Call: "/x", Limit: 1, Window: 1, Burst: 3}},
	} {
		_, bad := newIndex(rules, nil, nil, time.Now())
		assert.ErrorContains(t, bad, want)
	}
}

// TestEnds checks rules that are disabled or have expired.
func TestEnds(t *testing.T) {
	now := time.Unix(1000, 0)
	with := func(r Rule, f func(*Rule)) Rule { f(&r); return r }
	all, bad := newIndex([]Rule{
		with(ruleFor("ended", "/a"), func(r *Rule) { r.Expires = time.Unix(1000, 0) }),
		with(ruleFor("off", "/a"), func(r *Rule) { r.Disabled = true }),
		with(ruleFor("ends", "/a"), func(r *Rule) { r.Expires = time.Unix(1001, 0) }),
		ruleFor("below", "/**"),
	}, nil, nil, now)
	require.Empty(t, bad, "two that do not count may name the same call")
	require.Len(t, all.rules, 2)
	clk := clock.NewMock()
	find := func(at time.Time) string {
		clk.Set(at)
		return all.match(nil, "GET", "/a", clk)[0].ID
	}
	assert.Equal(t, "ends", find(now))
	assert.Equal(t, "ends", find(time.Unix(1001, -1)))
	assert.Equal(t, "below", find(time.Unix(1001, 0)), "then a less specific one")
}

// many returns rules for n calls of three segments each.
func many(n int) (rules []Rule) {
	for i := range n {
		rules = append(rules, ruleFor(fmt.Sprint(i), fmt.Sprintf("/service-%d/#/x%d", i%100, i)))
	}
	return rules
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		all, bad := newIndex(many(n), nil, nil, time.Now())
		require.Empty(b, bad)
		for name, path := range map[string]string{
			"throttled":   fmt.Sprintf("/service-%d/42/x%d", (n-1)%100, n-1),
			"unthrottled": "/another/42/x",
			"near miss":   fmt.Sprintf("/service-%d/42/nothing", (n-1)%100),
		} {
			b.Run(fmt.Sprintf("rules=%d/%s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				clk := clock.New()
				for b.Loop() {
					var buf [4]*compiled
					all.match(buf[:0], "GET", path, clk)
				}
			})
		}
	}
}

// BenchmarkLongPaths measures paths that have many readings.
func BenchmarkLongPaths(b *testing.B) {
	calls := []string{"/{x}/{y}/{z}/**", "/a/#", "/a/b/c/d/{e}", "/api/v1/users/#/photos/{id}"}
	var rules []Rule
	for _, call := range calls {
		rules = append(rules, ruleFor(call, call))
	}
	all, bad := newIndex(rules, nil, nil, time.Now())
	require.Empty(b, bad)
	for name, part := range map[string]string{
		"dots": "/%2e%2e", "slashes": "%2F", "mixed": "/%5C/..//a%2Fb", "capitals": "A%5C", "digits": "%31",
	} {
		for _, kB := range []int{8, 64} {
			path := "/a/b" + strings.Repeat(part, kB<<10/len(part))
			b.Run(fmt.Sprintf("%s/kB=%d", name, kB), func(b *testing.B) {
				b.ReportAllocs()
				clk := clock.New()
				for b.Loop() {
					all.match(nil, "GET", path, clk)
				}
			})
		}
	}
}

// BenchmarkRegexps measures the usual alternative: a regular expression for each rule,
// tried one after the other.
func BenchmarkRegexps(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		var all []*regexp.Regexp
		for _, r := range many(n) {
			all = append(all, regexp.MustCompile("^"+strings.ReplaceAll(regexp.QuoteMeta(r.Call), "#", "[0-9]+")+"$"))
		}
		b.Run(fmt.Sprintf("rules=%d/unthrottled", n), func(b *testing.B) {
			for b.Loop() {
				for _, re := range all {
					if re.MatchString("/another/42/x") {
						b.Fatal("it matches")
					}
				}
			}
		})
	}
}
