package rules

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// A table is a source that tests edit.
type table struct {
	mu    sync.Mutex // protects what follows
	rules []Rule
	err   error
	loads int
}

func (s *table) Load(context.Context) ([]Rule, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads++
	return append([]Rule(nil), s.rules...), s.err
}

func (s *table) put(err error, rules ...Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules, s.err = rules, err
}

func (s *table) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads
}

func newSet(t testing.TB, source Source, opts ...Option) (*Set, *clock.Mock) {
	t.Helper()
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	s, err := New(context.Background(), source, append([]Option{WithInterval(0), WithClock(clk)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s, clk
}

func limited(id, call string, limit int, algorithm string) Rule {
	if algorithm == calendarWindow {
		return Rule{ID: id, Call: call, Limit: limit, Every: ratelimit.Day, Algorithm: algorithm}
	}
	r := Rule{ID: id, Call: call, Limit: limit, Window: time.Minute, Algorithm: algorithm}
	if algorithm == lockout {
		r.FirstLockout = time.Minute
	}
	return r
}

// granted returns how many of n calls are allowed.
func granted(t testing.TB, s *Set, subject, path string, n int) (count int) {
	t.Helper()
	for range n {
		a, err := s.Take(t.Context(), subject, "GET", path, 1)
		require.NoError(t, err)
		if a.Allowed {
			count++
		}
	}
	return count
}

func TestTake(t *testing.T) {
	s, clk := newSet(t, Static(limited("photos", "/user/#/photos/#", 3, "")))
	a, err := s.Take(t.Context(), "ann", "GET", "/user/1/photos/2", 1)
	require.NoError(t, err)
	assert.Equal(t, "photos", a.Rule.ID)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, Remaining: 2, ResetAfter: time.Minute}, a.Decision)
	assert.Equal(t, 2, granted(t, s, "ann", "/user/7/photos/9", 5), "it is one call, whatever the numbers are")
	assert.Equal(t, 3, granted(t, s, "bob", "/user/7/photos/9", 5))
	assert.Equal(t, 100, granted(t, s, "ann", "/user/7", 100), "no rule names it")
	a, err = s.Take(t.Context(), "ann", "GET", "/user/7", 1)
	require.NoError(t, err)
	assert.Equal(t, Answer{Decision: ratelimit.Decision{Allowed: true}}, a)
	_, err = s.Take(t.Context(), "ann", "GET", "/user/1/photos/2", -1)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	_, err = s.Take(nil, "ann", "GET", "/user/1/photos/2", 1) //nolint:staticcheck // it is refused
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	clk.Add(time.Minute)
	assert.Equal(t, 3, granted(t, s, "ann", "/user/7/photos/9", 5))
}

// TestKeysAreApart checks that different pairs of a subject and a rule have different
// keys.
func TestKeysAreApart(t *testing.T) {
	keys := make(map[string]string)
	for _, subject := range []string{"", "a", "ab", "1:a", "1", "1:"} {
		for _, id := range []string{"a", "b", "bc", "c", ":a", "1:a", "a1:a"} {
			k := (&compiled{Rule: Rule{ID: id}}).keyOf(subject)
			assert.Empty(t, keys[k], "%q and %q", subject, id)
			keys[k] = subject + " " + id
		}
	}
}

// TestEdits checks that no edit gives a fresh quota.
func TestEdits(t *testing.T) {
	for _, alg := range limiting() {
		if alg == calendarWindow {
			continue // TestCalendarEdits has other edits for it
		}
		src := &table{rules: []Rule{limited("r", "/x", 10, alg)}}
		s, clk := newSet(t, src)
		reload := func(rules ...Rule) {
			src.put(nil, rules...)
			require.NoError(t, s.Reload(t.Context()))
		}
		require.Equal(t, 10, granted(t, s, "ann", "/x", 20), alg)
		reload(src.rules...)
		require.EqualValues(t, 1, s.Status().Version, "nothing has changed")
		require.Zero(t, granted(t, s, "ann", "/x", 20), alg)
		reload()
		require.Equal(t, 20, granted(t, s, "ann", "/x", 20), "%s: the rule is gone", alg)
		reload(limited("r", "/x", 10, alg))
		require.Zero(t, granted(t, s, "ann", "/x", 20), "%s: it was put back", alg)
		reload(limited("r", "/x/y", 10, alg))
		require.Zero(t, granted(t, s, "ann", "/x/y", 20), "%s: its call has changed", alg)
		reload(limited("r", "/x", 5, alg))
		require.Zero(t, granted(t, s, "ann", "/x", 20), "%s: lower", alg)
		reload(limited("r", "/x", 10, alg))
		require.Zero(t, granted(t, s, "ann", "/x", 20), "%s: and back", alg)
		for _, window := range []time.Duration{time.Hour, time.Minute, time.Second, 24 * time.Hour, time.Minute} {
			r := limited("r", "/x", 10, alg)
			r.Window = window
			reload(r)
			require.Zero(t, granted(t, s, "ann", "/x", 20), "%s: in %v", alg, window)
		}
		reload(limited("r", "/x", 15, alg))
		assert.LessOrEqual(t, granted(t, s, "ann", "/x", 20), 5, "%s: higher", alg)
		assert.EqualValues(t, 12, s.Status().Version)
		clk.Add(2 * time.Minute)
		assert.Equal(t, 15, granted(t, s, "ann", "/x", 20), alg)
	}
	src := &table{rules: []Rule{limited("r", "/x", 10, "fixed-window")}}
	s, _ := newSet(t, src)
	require.Equal(t, 10, granted(t, s, "ann", "/x", 20))
	src.put(nil, limited("r", "/x", 10, "sliding-log"))
	require.NoError(t, s.Reload(t.Context()))
	assert.Equal(t, 10, granted(t, s, "ann", "/x", 20), "another algorithm starts afresh")
}

// TestCalendarEdits checks that no edit of a calendar gives a fresh quota before the window ends that
// is in force.
func TestCalendarEdits(t *testing.T) {
	london := Rule{ID: "r", Call: "/x", Limit: 10, Every: ratelimit.Month, Zone: "Europe/London"}
	src := &table{rules: []Rule{london}}
	s, clk := newSet(t, src) // at noon on 1 March
	require.Equal(t, 10, granted(t, s, "ann", "/x", 20))
	for _, edit := range []func(*Rule){
		func(r *Rule) { r.Zone = "Asia/Tokyo" },
		func(r *Rule) { r.Every = ratelimit.Day },
		func(r *Rule) { r.Every = ratelimit.Year },
		func(r *Rule) { r.Hour = 4 },
		func(r *Rule) { r.Limit = 5 },
		func(r *Rule) { r.Algorithm = "blocked"; r.Every, r.Zone = 0, "" },
		func(*Rule) {},
	} {
		edited := london
		edit(&edited)
		src.put(nil, edited)
		require.NoError(t, s.Reload(t.Context()))
		require.Zero(t, granted(t, s, "ann", "/x", 20), "%+v", edited)
	}
	clk.Set(time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC).Add(-time.Hour - 1)) // London has summer time
	assert.Zero(t, granted(t, s, "ann", "/x", 20))
	clk.Add(1)
	assert.Equal(t, 10, granted(t, s, "ann", "/x", 20))
}

// TestStrictestCalendar checks that of two rules with one ID, the one that allows less for each time
// is in force, whichever of them has a calendar.
func TestStrictestCalendar(t *testing.T) {
	hourly := Rule{ID: "r", Call: "/x", Limit: 1, Window: time.Hour}
	daily := Rule{ID: "r", Call: "/x", Limit: 20, Every: ratelimit.Day}
	monthly := Rule{ID: "r", Call: "/x", Limit: 800, Every: ratelimit.Month}
	for _, tt := range []struct {
		rules     []Rule
		strictest Rule
	}{
		{[]Rule{hourly, daily}, daily},
		{[]Rule{monthly, hourly}, hourly},
		{[]Rule{monthly, daily}, daily},
	} {
		all, bad := newIndex(tt.rules, nil, nil, time.Now())
		require.Len(t, bad, 1)
		assert.Equal(t, tt.strictest, all.valid["r"].Rule)
	}
}

// TestStrictestKind checks that of two rules with one ID, the one that refuses all calls is in force, and
// not one that refuses none, whether because it is unlimited or because it is a shadow.
func TestStrictestKind(t *testing.T) {
	none := Rule{ID: "r", Call: "/x", Algorithm: "blocked"}
	some := limited("r", "/x", 1000, "")
	every := Rule{ID: "r", Call: "/x", Algorithm: "unlimited"}
	shadow := none
	shadow.Shadow = true
	for _, rules := range [][]Rule{{none, some}, {none, every}, {some, every}, {some, shadow}, {none, shadow}} {
		strictest := rules[0]
		for range rules {
			all, bad := newIndex(rules, nil, nil, time.Now())
			require.Len(t, bad, 1)
			assert.Equal(t, strictest, all.valid["r"].Rule)
			rules[0], rules[1] = rules[1], rules[0]
		}
	}
}

// TestFailedLoads checks that the last good rules stay in force.
func TestFailedLoads(t *testing.T) {
	src := &table{rules: []Rule{limited("r", "/x", 3, "")}}
	var reported []error
	s, clk := newSet(t, src, WithAllOrNothing(), WithOnError(func(err error) { reported = append(reported, err) }))
	loaded := clk.Now()
	clk.Add(time.Second)
	gone := errors.New("the database is gone")
	for _, bad := range []struct {
		err   error
		rules []Rule
		want  string
	}{
		{gone, nil, "the database is gone"},
		{nil, []Rule{limited("new", "/y", 1, ""), limited("half", "/z", 0, "")}, `rule "half": Limit is 0`},
		{nil, []Rule{limited("r", "/x", 9, ""), limited("twice", "/x", 1, "")}, `rule "twice": Call is "/x"`},
	} {
		src.put(bad.err, bad.rules...)
		require.ErrorContains(t, s.Reload(t.Context()), bad.want)
		st := s.Status()
		assert.ErrorContains(t, st.Err, bad.want)
		st.Err = nil
		assert.Equal(t, Status{Version: 1, Loaded: loaded, Rules: 1}, st)
		assert.Equal(t, 10, granted(t, s, "ann", "/y", 10), "none of them is in force")
	}
	require.Len(t, reported, 3)
	assert.ErrorIs(t, reported[0], gone)
	assert.Equal(t, 3, granted(t, s, "ann", "/x", 10))
	src.put(nil, limited("r", "/x", 5, ""))
	require.NoError(t, s.Reload(t.Context()))
	assert.Equal(t, Status{Version: 2, Loaded: clk.Now(), Rules: 1}, s.Status())
	assert.Equal(t, 2, granted(t, s, "ann", "/x", 10))

	src.put(nil, limited("r", "/x", 0, ""))
	_, err := New(t.Context(), src, WithAllOrNothing())
	assert.ErrorContains(t, err, "Limit is 0")
}

func TestFirstLoad(t *testing.T) {
	src := &table{err: errors.New("no connection")}
	_, err := New(t.Context(), src)
	require.ErrorContains(t, err, "no connection")
	s, _ := newSet(t, src, WithInitial(limited("r", "/x", 2, "")))
	assert.Equal(t, 2, granted(t, s, "ann", "/x", 10))
	st := s.Status()
	assert.Zero(t, st.Version)
	assert.Error(t, st.Err)
	src.put(nil, limited("r", "/x", 3, ""))
	require.NoError(t, s.Reload(t.Context()))
	assert.Equal(t, 1, granted(t, s, "ann", "/x", 10))

	for want, opt := range map[string]Option{
		"WithInterval(-1s)": WithInterval(-time.Second),
		"WithTimeout(0s)":   WithTimeout(0),
		"WithClock(nil)":    WithClock(nil),
		"option 0 of New":   nil,
		"WithInitial":       WithInitial(Rule{}),

		"option 1 of WithLimiter is nil": WithLimiter(ratelimit.WithFailurePolicy(ratelimit.FailOpen()), nil),
	} {
		_, err := New(t.Context(), Static(), opt)
		assert.ErrorContains(t, err, want)
		if want != "WithInitial" { // a rule is not an option
			assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		}
	}
	_, err = New(t.Context(), Static(), WithLimiter(ratelimit.WithFailurePolicy(ratelimit.FailOpen())), WithLimiter(nil))
	assert.ErrorContains(t, err, "option 0 of WithLimiter is nil", "of that call")
	_, err = New(t.Context(), nil)
	assert.ErrorContains(t, err, "source is nil")
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}

// TestRefresh checks that the rules are reloaded at intervals.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &table{rules: []Rule{limited("r", "/x", 3, "")}}
		s, err := New(t.Context(), src, WithInterval(30*time.Second))
		require.NoError(t, err)
		require.Equal(t, 3, granted(t, s, "ann", "/x", 10))
		src.put(nil, limited("r", "/x", 5, ""))
		time.Sleep(26 * time.Second)
		assert.Zero(t, granted(t, s, "ann", "/x", 10), "not yet")
		time.Sleep(8 * time.Second)
		assert.Equal(t, 2, granted(t, s, "ann", "/x", 10))
		time.Sleep(time.Hour)
		assert.InDelta(t, 121, src.count(), 10) // intervals are random around 30 s
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		loads := src.count()
		time.Sleep(time.Hour)
		assert.Equal(t, loads, src.count())
	})
}

// TestDefaults checks that loads are 30 s apart on average, and that a load may take 10 s, if no
// option says otherwise.
func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := new(table)
		s, err := New(t.Context(), src)
		require.NoError(t, err)
		time.Sleep(24 * time.Hour)
		assert.InDelta(t, 24*60*60/30, src.count(), 40) // intervals are random around 30 s
		require.NoError(t, s.Close())

		slow := &slowSource{heeding: true}
		slow.takes.Store(int64(time.Hour))
		start := time.Now()
		_, err = New(t.Context(), slow)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 10*time.Second, time.Since(start))
	})
}

// TestShortestInterval checks that the rules are reloaded at the shortest of intervals, a nanosecond.
// Only with 0 are they not.
func TestShortestInterval(t *testing.T) {
	for _, interval := range []time.Duration{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			src := new(table)
			s, err := New(t.Context(), src, WithInterval(interval))
			require.NoError(t, err)
			loads := src.count()
			time.Sleep(10 * time.Nanosecond)
			assert.Equal(t, interval > 0, src.count() > loads, interval)
			require.NoError(t, s.Close())
		})
	}
}

// TestSourceThatPanics checks that a panic in a background load does not end the process.
func TestSourceThatPanics(t *testing.T) {
	bad := false
	var s *Set
	reported := 0
	s, _ = newSet(t, SourceFunc(func(context.Context) ([]Rule, error) {
		if bad {
			panic("no rules")
		}
		return []Rule{limited("r", "/x", 1, "")}, nil
	}), WithOnError(func(error) {
		if reported++; reported == 1 {
			assert.Error(t, s.Reload(context.Background()), "it may be called from here")
		}
	}))
	bad = true
	assert.ErrorContains(t, s.Reload(t.Context()), "no rules")
	assert.Equal(t, 2, reported)
	assert.Equal(t, 1, granted(t, s, "ann", "/x", 3))
}

// TestEscapedPaths checks that a request counts as the path that net/http routes it by.
func TestEscapedPaths(t *testing.T) {
	s, _ := newSet(t, Static(limited("search", "GET /search/{q}", 1, ""), limited("me", "/user/me", 1, "")))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /search/{q}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(209) })
	mux.HandleFunc("GET /user/me", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(209) })
	h := s.Middleware()(mux)
	ask := func(path string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code
	}
	require.Equal(t, 209, ask("/search/a"))
	for _, path := range []string{"/search/b", "/search/a%2Fb", "/search/x%2F..%2F..%2Ffree", "/search/%2e%2e%2f", "/search/%41"} {
		assert.Equal(t, 429, ask(path), path)
	}
	require.Equal(t, 209, ask("/user/me"))
	assert.Equal(t, 429, ask("/user/%6d%65"))
	assert.Equal(t, 429, ask("/%75ser/me"))
}

// TestErrorsAreNoRefusals checks that an error is not reported as a shadow's refusal.
func TestErrorsAreNoRefusals(t *testing.T) {
	r := limited("r", "/x", 1, "")
	r.Shadow = true
	s, _ := newSet(t, Static(r), WithOnShadow(func(Answer) { t.Error("nothing was refused") }))
	a, err := s.Take(t.Context(), "ann", "get", "/x", -1)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.False(t, a.Allowed || a.Refused)
}

// TestExpiry has a rule expire while it is in force.
func TestExpiry(t *testing.T) {
	r := limited("r", "/x", 1, "")
	src := &table{}
	s, clk := newSet(t, src)
	r.Expires = clk.Now().Add(10 * time.Second)
	src.put(nil, r)
	require.NoError(t, s.Reload(t.Context()))
	assert.Equal(t, 1, granted(t, s, "ann", "/x", 10))
	clk.Add(10*time.Second - 1)
	assert.Zero(t, granted(t, s, "ann", "/x", 10))
	clk.Add(1)
	assert.Equal(t, 10, granted(t, s, "ann", "/x", 10))
}

func TestShadow(t *testing.T) {
	r := limited("r", "/x", 1, "")
	r.Shadow = true
	var refused []string
	s, _ := newSet(t, Static(r), WithOnShadow(func(a Answer) {
		assert.True(t, a.Refused)
		refused = append(refused, a.Rule.ID)
	}))
	assert.Equal(t, 3, granted(t, s, "ann", "/x", 3))
	assert.Equal(t, []string{"r", "r"}, refused)
	h := s.Middleware(httplimit.WithKey(func(*http.Request) (string, error) { return "ann", nil }))(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/x", nil))
	assert.Equal(t, 200, w.Code)
	assert.Len(t, refused, 3)
}

func TestMiddleware(t *testing.T) {
	src := &table{rules: []Rule{limited("photos", "GET /photos/#", 2, "fixed-window")}}
	s, _ := newSet(t, src)
	reached := 0
	h := s.Middleware()(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	ask := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w
	}
	for i, want := range []int{200, 200, 429} {
		w := ask("GET", fmt.Sprintf("/photos/%d", i))
		assert.Equal(t, want, w.Code)
		assert.Equal(t, `"photos";q=2;w=60`, w.Header().Get("RateLimit-Policy"))
	}
	assert.Equal(t, 429, ask("HEAD", "/photos/9").Code)
	assert.Equal(t, 200, ask("POST", "/photos/1").Code)
	assert.Empty(t, ask("GET", "/other").Header())
	assert.Equal(t, 4, reached)

	src.put(nil, limited("photos", "GET /photos/#", 3, "fixed-window"), limited("naïve", "/other", 1, ""))
	require.NoError(t, s.Reload(t.Context()))
	w := ask("GET", "/photos/1")
	assert.Equal(t, 200, w.Code)
	assert.Equal(t, `"photos";q=3;w=60`, w.Header().Get("RateLimit-Policy"))
	assert.Equal(t, `"photos";r=0;t=60`, w.Header().Get("RateLimit"))
	assert.Equal(t, `"default";q=1;w=60`, ask("GET", "/other").Header().Get("RateLimit-Policy"), "a name must be ASCII")
}

// TestEditsUnderLoad edits the limit during concurrent calls: in the end, exactly the
// highest limit was granted.
func TestEditsUnderLoad(t *testing.T) {
	src := &table{rules: []Rule{limited("r", "/x", 100, "")}}
	s, _ := newSet(t, src)
	var count atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, err := s.Take(context.Background(), "ann", "GET", "/x", 1)
				assert.NoError(t, err)
				if a.Allowed {
					count.Add(1)
				}
			}
		})
	}
	for limit := 50; limit <= 500; limit += 50 {
		src.put(nil, limited("r", "/x", limit, ""))
		require.NoError(t, s.Reload(t.Context()))
		src.put(nil, limited("r", "/x", 10, ""))
		require.NoError(t, s.Reload(t.Context()))
	}
	src.put(nil, limited("r", "/x", 500, ""))
	require.NoError(t, s.Reload(t.Context()))
	for granted(t, s, "ann", "/x", 1) == 1 {
		count.Add(1)
	}
	close(stop)
	wg.Wait()
	assert.EqualValues(t, 500, count.Load())
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) Source {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return File(path)
	}
	want := []Rule{
		{ID: "a", Call: "GET /user/#", Limit: 100, Window: time.Minute, Algorithm: "token-bucket", Burst: 20, Expires: time.Unix(1893456000, 0), Shadow: true},
		{ID: "b", Call: "/x/**", Limit: 1, Window: time.Second, Disabled: true},
	}
	for name, text := range map[string]string{
		"rules.yaml": `
- {id: a, call: "GET /user/#", limit: 100, seconds: 60, algorithm: token-bucket, burst: 20, expires: 1893456000, shadow: true}
- id: b
  call: /x/**
  limit: 1
  seconds: 1
  enabled: false
`,
		"rules.json": `[
{"id":"a","call":"GET /user/#","limit":100,"seconds":60,"algorithm":"token-bucket","burst":20,"expires":1893456000,"shadow":true,"enabled":true},
{"id":"b","call":"/x/**","limit":1,"seconds":1,"enabled":false}]`,
	} {
		got, err := write(name, text).Load(t.Context())
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	for text, want := range map[string]string{
		"- {id: a, call: /x, limit: 1, seconds: 0}":           `rule "a": seconds is 0`,
		"- {id: a, call: /x, limit: 1, second: 1}":            "second",
		"- {id: a, call: /x, limit: many, seconds: 1}":        "limit",
		"- {id: a, call: /x, limit: 1, seconds: 99999999999}": "seconds",
		"- {id: a, call: /x":                                  "bad.yaml",
		"rules: 1":                                            "bad.yaml",
		"":                                                    "no list of rules",
		"null":                                                "no list of rules",
		"# nothing":                                           "no list of rules",
		"- {id: a, call: /x, limit: 1, seconds: 1}\n---\n- {id: b, call: /y, limit: 1, seconds: 1}": "more than one YAML document",
	} {
		_, err := write("bad.yaml", text).Load(t.Context())
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, "bad.yaml", text)
	}
	none, err := write("none.yaml", "[]").Load(t.Context())
	require.NoError(t, err)
	assert.Empty(t, none)
	_, err = File(filepath.Join(dir, "none")).Load(t.Context())
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func BenchmarkTake(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		s, err := New(b.Context(), Static(many(n)...), WithInterval(0))
		require.NoError(b, err)
		for name, path := range map[string]string{"throttled": "/service-9/42/x9", "unthrottled": "/another/42/x"} {
			b.Run(fmt.Sprintf("rules=%d/%s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, _ = s.Take(context.Background(), "192.0.2.1", "GET", path, 1)
				}
			})
		}
		assert.NoError(b, s.Close())
	}
}
