package rules

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// TestMiddlewareLogs: all rules together log a failing store once in ten seconds, and keys
// that cannot be determined once a second.
func TestMiddlewareLogs(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var logged lines
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	source := &table{rules: []Rule{
		{ID: "a", Call: "/a", Limit: 1, Window: time.Hour},
		{ID: "b", Call: "/b", Limit: 1, Window: time.Hour},
	}}
	noKey := func(*http.Request) (string, error) { return "", errors.New("no key server") }
	for want, tt := range map[string]struct {
		opts     []httplimit.Option
		interval time.Duration
	}{
		"no route to the store": {nil, 10 * time.Second},
		"no key server":         {[]httplimit.Option{httplimit.WithKey(noKey)}, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, clk := newSet(t, source, WithLimiter(ratelimit.WithStore(fakes.Down(errors.New("no route to the store")))))
			h := s.Middleware(tt.opts...)(http.NotFoundHandler())
			ask := func() {
				for _, path := range []string{"/a", "/b"} {
					h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, http.NoBody))
				}
			}
			pass := func(d time.Duration) {
				clk.Add(d)
				time.Sleep(d)
				synctest.Wait() // for what is logged by a timer
			}
			logged.reset()
			ask()
			pass(tt.interval / 2)
			ask()
			require.Equal(t, 1, strings.Count(logged.String(), "\n"), logged.String())
			require.Contains(t, logged.String(), want)
			pass(tt.interval / 2)
			ask()
			require.Equal(t, 2, strings.Count(logged.String(), "\n"), logged.String())
		})
	}
}

// lines are what is logged, also by timers.
type lines struct {
	mu   sync.Mutex // protects text
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// TestMiddlewareLogsProxyOnce: all rules together log a proxy that is not trusted once.
func TestMiddlewareLogsProxyOnce(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var logged strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	s, _ := newSet(t, &table{rules: []Rule{
		{ID: "a", Call: "/a", Limit: 1, Window: time.Hour},
		{ID: "b", Call: "/b", Limit: 1, Window: time.Hour},
	}})
	h := s.Middleware()(http.NotFoundHandler())
	for _, path := range []string{"/a", "/b"} {
		r := httptest.NewRequest("GET", path, http.NoBody)
		r.Header.Set("X-Forwarded-For", "198.51.100.7")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	assert.Equal(t, 1, strings.Count(logged.String(), "no proxy is trusted"), logged.String())
}

// TestMiddlewareHandsBack checks that net/http and outer handlers find in their request what the
// handler has set in its own: the route, and a form whose files are to be removed.
func TestMiddlewareHandsBack(t *testing.T) {
	s, _ := newSet(t, Static(Rule{ID: "a", Call: "/x/#", Limit: 10, Window: time.Hour}))
	for name, opts := range map[string][]httplimit.Option{
		"alone":   nil,
		"settled": {httplimit.WithSettleAtEnd(httplimit.ByCost)},
	} {
		for _, panics := range []bool{false, true} {
			mux := http.NewServeMux()
			mux.HandleFunc("POST /x/{id}", func(w http.ResponseWriter, r *http.Request) {
				assert.NoError(t, r.ParseMultipartForm(1<<20))
				if panics {
					panic(http.ErrAbortHandler)
				}
			})
			const form = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n"
			r := httptest.NewRequest("POST", "/x/1", strings.NewReader(form))
			r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
			func() {
				defer func() { _ = recover() }()
				s.Middleware(opts...)(mux).ServeHTTP(httptest.NewRecorder(), r)
			}()
			assert.Equal(t, "POST /x/{id}", r.Pattern, name)
			assert.NotNil(t, r.MultipartForm, name)
		}
	}
}

// TestMiddlewareMistakes checks that a mistake panics when it is made, and not when a request comes
// that a rule is for. Names that only some rule has are no mistake.
func TestMiddlewareMistakes(t *testing.T) {
	s, _ := newSet(t, &table{rules: []Rule{{ID: "a", Call: "/a", Limit: 1, Window: time.Hour}, {ID: "ü", Call: "/b", Limit: 1, Window: time.Hour}}})
	other := ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}))
	also := func(name string) httplimit.Option {
		return httplimit.WithAlso(other, key.Everybody(), name)
	}
	for want, opts := range map[string][]httplimit.Option{
		"option 1 of Middleware is nil":                          {httplimit.WithStatus(499), nil},
		"WithStatus's code is 42":                                {httplimit.WithStatus(42)},
		"WithShaping's delay is 1ns: it must be 0 with WithAlso": {httplimit.WithShaping(1), also("a")},
		`a limit's name is "b"`:                                  {also("b"), also("b")},
	} {
		assertPanics(t, want, func() { s.Middleware(opts...) })
	}
	for _, none := range []http.Handler{nil, (*http.ServeMux)(nil), http.HandlerFunc(nil)} {
		assertPanics(t, "the handler is nil", func() { s.Middleware()(none) })
	}
	assert.NotPanics(t, func() { new(Set).Middleware()(http.NotFoundHandler()) }, "no rules, as in a set that New has not made")

	h := s.Middleware(also("a"), also("a-2"), httplimit.WithPolicyName("a"))(http.NotFoundHandler())
	for path, name := range map[string]string{"/a": "a-3", "/b": "a-3"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, http.NoBody))
		assert.Equal(t, 404, w.Code)
		assert.Contains(t, w.Header().Get("RateLimit-Policy"), `"`+name+`";`)
	}
}

// assertPanics checks that f panics with an [ratelimit.ErrInvalid] whose text contains the given one.
func assertPanics(t *testing.T, text string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		err, _ := recover().(error)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid, text)
		assert.ErrorContains(t, err, text)
	}()
	f()
}

// TestMiddlewareSettles checks that options which hold requests work with rules, also with several if
// a path has several interpretations.
func TestMiddlewareSettles(t *testing.T) {
	for n := 1; n <= 2; n++ { // events that a request counts as; 2 if it is settled
		source := &table{rules: []Rule{
			{ID: "a", Call: "/a/b", Limit: 2 * n, Window: time.Hour},
			{ID: "b", Call: "/a%2Fb", Limit: 10, Window: time.Hour},
		}}
		s, _ := newSet(t, source)
		also := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 100, Window: 1000 * time.Hour}))
		opts := []httplimit.Option{httplimit.WithAlso(also, func(*http.Request) (string, error) { return "all", nil }, "a")}
		var settled []int
		if n == 2 {
			opts = append(opts, httplimit.WithSettleAtEnd(func(_ *http.Request, status int, _ int64) int {
				settled = append(settled, status)
				return n
			}))
		}
		h := s.Middleware(opts...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusAccepted) }))
		for i, step := range []struct {
			path    string
			want    int
			settled []int
			counted int // how often also has counted a request
		}{
			{"/other", 202, nil, 0},
			{"/a/b", 202, []int{202}, 1},
			{"/a%2Fb", 202, []int{202}, 2},
			{"/a%2Fb", 429, nil, 2},
		} {
			settled = nil
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", step.path, http.NoBody))
			assert.Equal(t, step.want, w.Code, i)
			if i == 1 {
				assert.Contains(t, w.Header().Get("RateLimit-Policy"), `"a-2"`, "unlike the other limiter")
			}
			if n == 2 {
				assert.Equal(t, step.settled, settled, i)
			}
			d, err := also.Peek(t.Context(), "all")
			require.NoError(t, err)
			assert.Equal(t, step.counted*n, d.Limit-d.Remaining, i)
		}
	}
}

// TestRefusalSpendsNothing has many requests at once that count against two rules: the rule that
// refuses keeps none of them from spending exactly what is left in the other.
func TestRefusalSpendsNothing(t *testing.T) {
	wide, narrow := limited("wide", "/{x}", 1000, "fixed-window"), limited("narrow", "/{x}/{y}", 100, "fixed-window")
	s, _ := newSet(t, Static(wide, narrow))
	h := s.Middleware()(http.NotFoundHandler())
	var passed atomic.Int64
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for range 10 {
				if i%2 == 0 {
					a, err := s.Take(t.Context(), "192.0.2.1", "GET", "/a%2Fb", 1)
					assert.NoError(t, err)
					if a.Allowed {
						passed.Add(1)
					}
				} else if get(h, "/a%2Fb").Code == http.StatusNotFound {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, 100, passed.Load())
	assert.Equal(t, 900, left(t, s, wide))
	assert.Equal(t, 0, left(t, s, narrow))
}
