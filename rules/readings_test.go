package rules

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"
	"unicode"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// asker returns a function that sends requests to a handler, for one subject, and
// returns the status.
func asker(h http.Handler) func(method, path string) int {
	return func(method, path string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w.Code
	}
}

// TestFileServer uses http.FileServer, which unescapes a path before it cleans it.
func TestFileServer(t *testing.T) {
	files := http.FileServerFS(fstest.MapFS{
		"private/x":     {Data: []byte("x")},
		"private/sub/y": {Data: []byte("y")},
		"a/z":           {Data: []byte("z")},
	})
	s, _ := newSet(t, Static(limited("private", "/private/**", 1, ""), limited("all", "/**", 1000, "")))
	ask := asker(s.Middleware()(files))
	require.Equal(t, 200, ask("GET", "/private/x"))
	for _, p := range []string{
		"/private/x", "/private%2Fx", "/private%2fx", "/a/%2e%2e/private/x", "/a%2F..%2Fprivate/x", "/%70rivate/x",
		"/a/..%2Fprivate/x", "/a/../private/x", "//private/x", "/./private/x", "/%2e/private/x", "/%2Fprivate%2Fx", "/private//x",
		"/a%2f%2e%2e%2fprivate%2fsub%2f..%2fx", "/private/x/%2e", "/private/sub/%2e%2E/x", "/.%2E/private/x", "/%2E%2E/%2e%2e/private/x",
		"/a/b/c/d/e/f/../../../../../../private/x", "/a/b/c/d/e/f%2f..%2f..%2f..%2f..%2f..%2f../private/x",
	} {
		assert.Equal(t, 429, ask("GET", p), p)
		assert.Equal(t, 429, ask("HEAD", p), p)
		assert.Equal(t, 429, ask("get", p), p)
	}
	assert.Equal(t, 200, ask("GET", "/a/z"))
}

// TestMounted has handlers mounted on a prefix of the path, which unescape and clean the
// rest, so that .. leads at most up to the prefix.
func TestMounted(t *testing.T) {
	files := http.FileServerFS(fstest.MapFS{"private/x": {Data: []byte("x")}, "public/x": {Data: []byte("x")}})
	mux := http.NewServeMux()
	mux.Handle("/static/", http.StripPrefix("/static", files))
	mux.HandleFunc("/of/{bucket}/{path...}", func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = r.PathValue("path")
		files.ServeHTTP(w, r)
	})
	s, _ := newSet(t, Static(limited("static", "/static/private/**", 1, ""), limited("of", "/of/{bucket}/private/**", 1, "")))
	h := s.Middleware()(mux)
	ask := asker(h)
	require.Equal(t, 200, ask("GET", "/static/private/x"))
	for _, p := range []string{
		"/static/%2e%2e/private/x", "/static/..%2fprivate/x", "/static/a/%2e%2e/%2E%2e/private/x", "/static/%2e%2e/%2e%2e/private%2Fx",
		"/static/a%2F..%2F..%2Fprivate%2Fx", "/static/%2e%2e/static/%2e%2e/private/x",
	} {
		assert.Equal(t, 429, ask("GET", p), p)
	}
	require.Equal(t, 200, ask("GET", "/of/mine/private/x"))
	for _, p := range []string{
		"/of/mine/%2e%2e/private/x", "/of/mine/%2e%2e/%2e%2e/%2e%2e/private/x", "/of/a%2Fb/private%2Fx", "/of/a%2Fb/c%2F..%2Fprivate/x",
		"/of/%2e%2e/%2e%2e/private/x", "/of/%2e/%2e%2e/private/x", "/of/%2F/private%2Fx",
	} {
		assert.Equal(t, 429, ask("GET", p), p)
	}
	assert.Equal(t, 200, ask("GET", "/static/%2e%2e/public/x"))
}

// TestStrictest has a path with two readings: it counts against the rules of both, so
// that the rule for the handler's reading always applies.
func TestStrictest(t *testing.T) {
	for _, alg := range limiting() {
		s, clk := newSet(t, Static(limited("one", "/{x}", 3, alg), limited("two", "/{x}/{y}", 5, alg)))
		take := func(path string, n int) Answer {
			t.Helper()
			a, err := s.Take(t.Context(), "ann", "GET", path, n)
			require.NoError(t, err)
			return a
		}
		a := take("/a%2Fb", 1)
		assert.Equal(t, []any{"one", true, 2}, []any{a.Rule.ID, a.Allowed, a.Remaining}, "the one with the least left")
		require.True(t, take("/a/b", 3).Allowed)
		a = take("/a%2Fb", 1)
		assert.Equal(t, []any{"two", true, 0}, []any{a.Rule.ID, a.Allowed, a.Remaining})
		a = take("/a%2Fb", 1)
		assert.Equal(t, []any{"two", true}, []any{a.Rule.ID, a.Refused})
		assert.True(t, take("/a", 1).Allowed, "a refusal has spent nothing of the other rule")
		a = take("/a%2Fb", 4)
		assert.True(t, a.Refused)
		assert.Positive(t, a.RetryAfter)
		clk.Add(a.RetryAfter - 1)
		assert.True(t, take("/a%2Fb", 4).Refused)
		assert.Equal(t, 0, granted(t, s, "bob", "/a", 0))
		clk.Add(24 * time.Hour)
		assert.Equal(t, 3, granted(t, s, "ann", "/a%2Fb", 9), alg)
		assert.Equal(t, 2, granted(t, s, "ann", "/a/b", 9), alg)
	}
	// Of several refusals, the one with the longest RetryAfter is returned.
	r := limited("hour", "/{x}/{y}", 1, "")
	r.Window = time.Hour
	s, _ := newSet(t, Static(limited("minute", "/{x}", 1, ""), r))
	require.Equal(t, 1, granted(t, s, "ann", "/a%2Fb", 2))
	a, err := s.Take(t.Context(), "ann", "GET", "/a%2Fb", 1)
	require.NoError(t, err)
	assert.Equal(t, []any{"hour", time.Hour}, []any{a.Rule.ID, a.RetryAfter})
}

// TestStrictestOfShadows checks that a shadow among several rules is reported, and refuses
// nothing.
func TestStrictestOfShadows(t *testing.T) {
	shadow := limited("shadow", "/{x}/{y}", 1, "")
	shadow.Shadow = true
	var told []string
	onShadow := WithOnShadow(func(a Answer) { told = append(told, a.Rule.ID) })
	s, _ := newSet(t, Static(shadow, limited("real", "/{x}", 3, "")), onShadow)
	a, err := s.Take(t.Context(), "ann", "GET", "/a%2Fb", 1)
	require.NoError(t, err)
	assert.Equal(t, []any{"real", 2, false}, []any{a.Rule.ID, a.Remaining, a.Refused})
	assert.Equal(t, 2, granted(t, s, "ann", "/a%2Fb", 5))
	assert.Equal(t, []string{"shadow", "shadow"}, told, "not of what the other rule has refused")

	told = nil
	ask := asker(s.Middleware(httplimit.WithKey(func(*http.Request) (string, error) { return "bob", nil }))(http.NotFoundHandler()))
	for _, want := range []int{404, 404, 404, 429, 429} {
		assert.Equal(t, want, ask("GET", "/a%2Fb"))
	}
	assert.Equal(t, []string{"shadow", "shadow"}, told)

	other := shadow
	other.ID, other.Call, other.Limit = "other", "/{x}", 2
	s, _ = newSet(t, Static(shadow, other), onShadow)
	told = nil
	for _, want := range []string{"shadow", "shadow", "other"} {
		a, err := s.Take(t.Context(), "ann", "GET", "/a%2Fb", 1)
		require.NoError(t, err)
		assert.True(t, a.Allowed)
		assert.Equal(t, want, a.Rule.ID)
	}
	assert.Equal(t, []string{"shadow", "other", "shadow"}, told, "each shadow that would have refused")
}

// TestStrictestMiddleware checks that the response has the policies of each rule, and what is left of
// the strictest.
func TestStrictestMiddleware(t *testing.T) {
	s, _ := newSet(t, Static(limited("one", "/{x}", 2, "fixed-window"), limited("two", "/{x}/{y}", 3, "fixed-window")))
	reached := 0
	var h http.Handler
	h = s.Middleware()(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if reached++; r.Header.Get("Again") != "" { // a handler that sends it through once more
			r.Header.Del("Again")
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
	}))
	ask := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w
	}
	for range 2 {
		w := ask("/a%2Fb")
		assert.Equal(t, 200, w.Code)
		assert.Equal(t, []string{`"one";q=2;w=60, "two";q=3;w=60`}, w.Header().Values("RateLimit-Policy"))
	}
	w := ask("/a%2Fb")
	assert.Equal(t, 429, w.Code)
	assert.Equal(t, []string{`"one";r=0;t=60`}, w.Header().Values("RateLimit"))
	assert.Equal(t, 2, reached)
	for _, want := range []int{200, 429} { // one refusal of "one" has left 1 of "two"
		assert.Equal(t, want, ask("/a/b").Code)
	}
	s, _ = newSet(t, Static(limited("one", "/{x}", 4, ""), limited("two", "/{x}/{y}", 9, "")))
	reached = 0
	h = s.Middleware()(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if reached++; reached%2 == 1 {
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
	}))
	for range 5 {
		ask("/a%2Fb")
	}
	assert.Equal(t, 4, reached, "each passage counts")
}

// A handler interprets a path as segments.
type handler struct {
	name string
	read func(u *url.URL) []string
}

// A change is a part of what a handler makes of a path before it splits it.
type change struct {
	name string
	make func(p string) string
}

// handlers are the ways in which routers and file servers interpret a path: all that Rule.Call
// lists, each with each.
func handlers() (all []handler) {
	same := change{"", func(p string) string { return p }}
	slashes := []change{same, {", backslashes", func(p string) string { return strings.ReplaceAll(p, `\`, "/") }}}
	cleanings := []change{
		same,
		{", cleaned", func(p string) string { return path.Clean("/" + p) }},
		{", dots only", dotless},
		{", trimmed", func(p string) string { return strings.Trim(p, "/") }},
	}
	split := func(p string) []string { return strings.Split(trim(p), "/") }
	for _, slashed := range slashes {
		for _, cleaned := range cleanings {
			clean := func(p string) string { return cleaned.make(slashed.make(p)) }
			for _, h := range []struct {
				name string
				read func(escaped string) []string
			}{
				{"not unescaped", func(p string) []string { return split(clean(p)) }},
				{"unescaped", func(p string) []string { return split(clean(unescape(p))) }},
				{"unescaped last", func(p string) []string { return split(unescape(clean(p))) }},
				{"unescaped by segment", func(p string) []string { return unescaped(split(clean(p))) }},
			} {
				name := h.name + slashed.name + cleaned.name
				all = append(all, handler{name, func(u *url.URL) []string { return h.read(u.EscapedPath()) }})
				for n := 1; n <= 2; n++ {
					all = append(all, handler{fmt.Sprint(name, ", mounted on ", n), func(u *url.URL) []string {
						return mounted(n, u.EscapedPath(), unescape, h.read)
					}})
					all = append(all, handler{fmt.Sprint(name, ", mounted as sent on ", n), func(u *url.URL) []string {
						return mounted(n, u.EscapedPath(), same.make, h.read)
					}})
				}
				if h.name == "not unescaped" {
					all = append(all, handler{name + ", mounted unescaped", func(u *url.URL) []string {
						return mounted(1, u.Path, same.make, h.read)
					}})
				}
			}
		}
	}
	return append(all, handler{"in lower case, and cleaned", func(u *url.URL) []string {
		return split(path.Clean(strings.ToLower(u.Path)))
	}})
}

// dotless removes dot segments like section 5.2.4 of RFC 3986.
func dotless(p string) string {
	var kept []string
	segments := strings.Split(strings.TrimPrefix(p, "/"), "/")
	for _, s := range segments {
		switch s {
		case "..":
			kept = kept[:max(0, len(kept)-1)]
		case ".":
		default:
			kept = append(kept, s)
		}
	}
	return "/" + strings.Join(kept, "/")
}

// TestFold checks that letters that are equal for a handler are equal for the rules.
func TestFold(t *testing.T) {
	for r := range rune(unicode.MaxRune) {
		for _, other := range []rune{unicode.ToLower(r), unicode.ToUpper(r), unicode.SimpleFold(r)} {
			if fold(string(r)) != fold(string(other)) {
				t.Errorf("%c and %c", r, other)
			}
		}
	}
}

// mounted returns the path as read by a handler that is mounted on its first n segments, and reads
// the rest.
func mounted(n int, p string, word func(string) string, read func(string) []string) []string {
	segments := strings.SplitN(strings.TrimPrefix(p, "/"), "/", n+1)
	if len(segments) <= n {
		return nil
	}
	rest := read("/" + segments[n])
	segments = segments[:n]
	for i, s := range segments {
		segments[i] = word(s)
	}
	if len(rest) == 1 && rest[0] == "" {
		return segments
	}
	return append(segments, rest...)
}

func trim(p string) string { return strings.TrimSuffix(strings.TrimPrefix(p, "/"), "/") }

func unescaped(segments []string) []string {
	for i, s := range segments {
		segments[i] = unescape(s)
	}
	return segments
}

// TestNoWayAround generates paths, and checks that the rule for each handler's reading is
// among the matching rules.
func TestNoWayAround(t *testing.T) {
	var rules []Rule
	for _, call := range []string{"/**", "/", "/a", "/a/**", "/a/b", "/a/#", "/{x}/b", "/{x}/#/{y}", "/a/{x}/b",
		"/Up/Case", "/a/b/**", "/..x/{y}", "/é/{x}", "/{x}/{y}/#/b", "/a/{x}/{y}/b"} {
		rules = append(rules, ruleFor(call, call))
	}
	rulesOf, bad := newIndex(rules, nil, nil, time.Now())
	require.Empty(t, bad)
	all := handlers()
	random := budget.Rand(t)
	parts := []string{"/", "/", "/", "a", "b", "1", "42", ".", "..", "%2F", "%2f", "%2e", "%2E%2e", "%61", "A", "Up",
		"Case", "up", "%25", "%2561", "é", "%C3%A9", "%31", "%00", "%FF", "%5C", "%5C", "//", "/../", "/a", "/b"}
	clk := clock.New()
	paths := []string{ // which have been read too few ways
		"/user/../a%2Fb/kiss", "/%5C/a/../b", "/a/../1%5C/..//b", "/%2fb%2F/%2F", "/%5Cup/%5C/Caseup/../",
	}
	for range budget.Histories(4000, 20_000) {
		p := "/"
		for range random.IntN(10) {
			p += parts[random.IntN(len(parts))]
		}
		paths = append(paths, p)
	}
	for _, p := range paths {
		u, err := url.ParseRequestURI(p)
		if err != nil {
			continue
		}
		found := rulesOf.match(nil, "GET", u.EscapedPath(), clk)
		for _, h := range all {
			segments := h.read(u)
			if segments == nil {
				continue
			}
			if len(segments) == 1 && segments[0] == "" {
				segments = nil
			}
			tree := &rulesOf.exact
			if strings.Contains(h.name, "lower") {
				tree = &rulesOf.folded
			}
			require.Contains(t, found, tree.find("GET", segments, time.Time{}), "%s: %q as %q", h.name, p, segments)
		}
		require.LessOrEqual(t, len(found), len(rules))
	}
}

// TestCase has a case-sensitive handler, for which /ME is a {name}.
func TestCase(t *testing.T) {
	s, _ := newSet(t, Static(limited("me", "/user/me", 1000, ""), limited("name", "/user/{name}", 1, ""), limited("cased", "/User/List", 1000, "")))
	assert.Equal(t, 1, granted(t, s, "ann", "/user/ME", 5))
	assert.Equal(t, 5, granted(t, s, "ann", "/user/me", 5))
	assert.Equal(t, 0, granted(t, s, "ann", "/user/list", 5))
	assert.Equal(t, 5, granted(t, s, "ann", "/User/List", 5))
}

// TestLongPaths checks that the work is bounded by the length of the path.
func TestLongPaths(t *testing.T) {
	all, bad := newIndex([]Rule{ruleFor("a", "/{x}/{y}/**"), ruleFor("b", "/a/#")}, nil, nil, time.Now())
	require.Empty(t, bad)
	for _, part := range []string{"/a", "/%2e%2e", "%2F", "/A", "//", "/..", "%"} {
		p := strings.Repeat(part, 1<<20/len(part))
		assert.NotPanics(t, func() { all.match(nil, "GET", p, clock.New()) }, part)
		allocs := testing.AllocsPerRun(1, func() { all.match(nil, "GET", p, clock.New()) })
		assert.Less(t, allocs, 600.0, part)
	}
}

// TestLongPaths_Memory checks that the memory for all readings of a path, and so the work, grows with the
// length of the path, and not with the number of segments in rules as well.
func TestLongPaths_Memory(t *testing.T) {
	const size = 64 << 10
	for _, call := range []string{"/a/{x}", "/a/b/{c}/d/{e}/#/{g}/h/{i}/{j}/k/{l}"} {
		all, bad := newIndex([]Rule{ruleFor("a", call)}, nil, nil, time.Now())
		require.Empty(t, bad)
		for _, part := range []string{"/%2e%2e", "%2F", "/%5C/..//a%2Fb", "/a/..", "A%5C", "%31", `/a\..`, "/A/../b%5C%2e%2e"} {
			p := "/a/b/c/d/e/1/g" + strings.Repeat(part, size/len(part))
			least := uint64(math.MaxUint64) // of some runs, because others may allocate meanwhile
			for range 5 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				all.match(nil, "GET", p, clock.New())
				runtime.ReadMemStats(&after)
				least = min(least, after.TotalAlloc-before.TotalAlloc)
			}
			assert.Less(t, least, uint64(48*size), "%s, %s", call, part)
		}
	}
}

// A text has the same ends as what is made of the rests alone.
func TestTextEnds(t *testing.T) {
	random := budget.Rand(t)
	parts := []string{"/", "/", "/", "a", "b", ".", "..", "%2F", "%2e%2E", "%5C", `\`, "//", "/../", "%", "%5", "c"}
	m := &matching{index: &index{depth: 5}}
	steps := map[string]func(text) text{
		"unescaped": m.unescaped, "slashed": m.slashed, "cleaned": m.cleaned, "dotless": m.dotless, "trimmed": text.trimmed,
	}
	for range budget.Histories(2000, 20_000) {
		p := "/"
		for range random.IntN(12) {
			p += parts[random.IntN(len(parts))]
		}
		whole, _ := m.mountsOf(p)
		for name, step := range steps {
			for next, then := range steps {
				if name == "trimmed" && next != "unescaped" {
					continue // a path begins with a slash before all steps but this one
				}
				made := then(step(whole))
				for i, at := range whole.rests {
					alone := then(step(text{whole.path[at:], []int{0}}))
					require.Equal(t, trim(alone.path[alone.rests[0]:]), trim(made.path[made.rests[i]:]), "%s and %s of %q, behind %q", name, next, p, p[:at])
				}
			}
		}
	}
}

// TestMatchAllocates checks that matching a path with one reading does not allocate.
func TestMatchAllocates(t *testing.T) {
	all, bad := newIndex(many(100), nil, nil, time.Now())
	require.Empty(t, bad)
	clk := clock.New()
	for _, p := range []string{"/service-1/42/x1", "/service-1/42/x1/", "/none", "/"} {
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			var buf [4]*compiled
			all.match(buf[:0], "GET", p, clk)
		}), p)
	}
}

func ExampleSet_Take() {
	set, err := New(context.Background(), Static(
		Rule{ID: "private", Call: "/private/**", Limit: 1, Window: time.Minute},
		Rule{ID: "all", Call: "/**", Limit: 100, Window: time.Minute},
	), WithInterval(0))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()
	for _, path := range []string{"/private/x", "/private%2Fx", "/public"} {
		a, err := set.Take(context.Background(), "ann", "GET", path, 1)
		fmt.Println(path, a.Rule.ID, a.Allowed, err)
	}
	// Output:
	// /private/x private true <nil>
	// /private%2Fx private false <nil>
	// /public all true <nil>
}

// TestStrictestUnderLoad checks that concurrent calls do not bypass a rule.
func TestStrictestUnderLoad(t *testing.T) {
	for _, alg := range limiting() {
		s, _ := newSet(t, Static(limited("one", "/{x}", 100, alg), limited("two", "/{x}/{y}", 150, alg)))
		var one, two, both atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 100 {
					for path, count := range map[string]*atomic.Int64{"/a": &one, "/a/b": &two, "/a%2Fb": &both} {
						a, err := s.Take(context.Background(), "ann", "GET", path, 1)
						assert.NoError(t, err)
						if a.Allowed {
							count.Add(1)
						}
					}
				}
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, one.Load()+both.Load(), int64(100), alg)
		assert.LessOrEqual(t, two.Load()+both.Load(), int64(150), alg)
		assert.Positive(t, both.Load())
	}
}

// TestStaleRawPath has an outer middleware that changes Path but not RawPath, which some
// routers use.
func TestStaleRawPath(t *testing.T) {
	s, _ := newSet(t, Static(limited("raw", "/raw/{x}", 1, ""), limited("path", "/path/**", 2, "")))
	h := s.Middleware()(http.NotFoundHandler())
	for _, want := range []int{404, 429, 429} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/raw/a%2Fb", nil)
		r.URL.Path = "/path/x"
		h.ServeHTTP(w, r)
		assert.Equal(t, want, w.Code)
	}
}

// TestNotMadeByNew checks that the zero Set throttles nothing.
func TestNotMadeByNew(t *testing.T) {
	var s Set
	a, err := s.Take(t.Context(), "ann", "GET", "/x", 1)
	require.NoError(t, err)
	assert.True(t, a.Allowed)
	assert.Equal(t, 404, asker(s.Middleware()(http.NotFoundHandler()))("GET", "/x"))
	assert.Error(t, s.Reload(t.Context()))
	assert.NoError(t, s.Close())
}
