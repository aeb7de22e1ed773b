package httplimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

var ok = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })

// limiter returns a limiter and its mock clock.
func limiter(t testing.TB, alg ratelimit.Algorithm) (ratelimit.Limiter, *clock.Mock) {
	t.Helper()
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	l, err := ratelimit.New(alg, ratelimit.WithClock(clk))
	require.NoError(t, err)
	return l, clk
}

// serve answers r.
func serve(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

// TestMiddleware follows one client through its limit.
func TestMiddleware(t *testing.T) {
	l, clk := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 2, Per: 5 * time.Second}}) // one each 2.5 s
	h := httplimit.Middleware(l)(ok)
	for i, step := range []struct {
		after               time.Duration
		peer                string
		status              int
		retryAfter, current string
	}{
		{0, "192.0.2.1:1000", 200, "", `"default";r=1;t=3`},                       // full in 2.5 s
		{0, "192.0.2.1:1001", 200, "", `"default";r=0;t=5`},                       // another port, the same client
		{0, "192.0.2.1:1000", 429, "3", `"default";r=0;t=3`},                      // 2.5 s, rounded up
		{0, "[2001:db8::1]:1000", 200, "", `"default";r=1;t=3`},                   // another client
		{500 * time.Millisecond, "192.0.2.1:1000", 429, "2", `"default";r=0;t=2`}, // 2 s, and not 3
		{1999 * time.Millisecond, "192.0.2.1:1000", 429, "1", `"default";r=0;t=1`},
		{time.Millisecond, "192.0.2.1:1000", 200, "", `"default";r=0;t=5`},
	} {
		clk.Add(step.after)
		resp := serve(h, from(step.peer))
		assert.Equal(t, step.status, resp.StatusCode, "step %d", i)
		assert.Equal(t, step.retryAfter, resp.Header.Get("Retry-After"), "step %d", i)
		assert.Equal(t, step.current, resp.Header.Get("RateLimit"), "step %d", i)
		assert.Equal(t, `"default";q=2;w=5`, resp.Header.Get("RateLimit-Policy"), "step %d", i)
		if step.status == 429 {
			assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		} else {
			assert.Equal(t, "ok", body(t, resp))
		}
	}
}

func TestOptions(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	cost := func(r *http.Request) int { return len(r.URL.Query()["cost"]) - len(r.URL.Query()["less"]) }
	h := httplimit.Middleware(l,
		httplimit.WithKey(key.Header("X-API-Key")),
		httplimit.WithCost(cost),
		httplimit.WithStatus(503),
		httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/health" }),
		httplimit.WithRefusal(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a, ok := httplimit.VerdictOf(r.Context())
			assert.True(t, ok && !a.Passed && !a.Decision.Allowed)
			if a.Err != nil {
				assert.Equal(t, 400, a.Status())
				w.WriteHeader(401)
				return
			}
			assert.Equal(t, 3, a.Decision.Limit)
			assert.Equal(t, 503, a.Status())
			w.WriteHeader(418)
		})),
	)(ok)
	ask := func(target, key string) int {
		r := httptest.NewRequest("GET", target, nil)
		if key != "" {
			r.Header.Set("X-API-Key", key)
		}
		return serve(h, r).StatusCode
	}
	assert.Equal(t, 200, ask("/?cost&cost", "a"))
	assert.Equal(t, 418, ask("/?cost&cost", "a"))
	assert.Equal(t, 200, ask("/?cost", "a"))
	assert.Equal(t, 200, ask("/", "a"), "what costs nothing is not asked for")
	assert.Equal(t, 200, ask("/", ""), "nor whose it is")
	assert.Equal(t, 418, ask("/?cost", "a"))
	assert.Equal(t, 200, ask("/health?cost", "a"))
	assert.Equal(t, 401, ask("/?cost", ""))
	assert.Equal(t, 401, ask("/?less", "a"))
	assert.Equal(t, 200, ask("/?cost", "b"))

	usual := httplimit.Middleware(l, httplimit.WithStatus(503), httplimit.WithKey(key.Header("X-API-Key")))(ok)
	assert.Equal(t, 400, serve(usual, from("192.0.2.1:1")).StatusCode)
	assert.Equal(t, 503, serve(usual, from("192.0.2.1:1", "X-API-Key", "a")).StatusCode)
	_, found := httplimit.VerdictOf(t.Context())
	assert.False(t, found)
}

// TestKeyErrorOfTheProgram checks that an error of a key.Func of the program is one of the request,
// also if a mistake in the program is its cause, and that a client does not see its text.
func TestKeyErrorOfTheProgram(t *testing.T) {
	logged := quiet(t)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	_, mistake := ratelimit.New(ratelimit.TokenBucket{})
	require.ErrorIs(t, mistake, ratelimit.ErrInvalid)
	failing := httplimit.WithKey(func(*http.Request) (string, error) { return "", mistake })
	resp := serve(httplimit.Middleware(l, failing)(ok), from("192.0.2.1:1"))
	assert.Equal(t, 400, resp.StatusCode)
	assert.Equal(t, "cannot determine the client of this request\n", body(t, resp))
	assert.Contains(t, logged.String(), mistake.Error())

	var got error
	teapot := httplimit.WithRefusal(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, _ := httplimit.VerdictOf(r.Context())
		got = a.Err
		w.WriteHeader(418)
	}))
	assert.Equal(t, 418, serve(httplimit.Middleware(l, failing, teapot)(ok), from("192.0.2.1:1")).StatusCode)
	assert.Equal(t, mistake, got)
}

// A nilLimiter panics if it is nil.
type nilLimiter struct{ ratelimit.Limiter }

// TestValuesAreNotShared checks that a handler's changes to its header do not show in
// other responses.
func TestValuesAreNotShared(t *testing.T) {
	for name, opts := range map[string][]httplimit.Option{
		"standard": nil,
		"legacy":   {httplimit.WithHeaders(httplimit.Legacy)},
		"draft 7":  {httplimit.WithHeaders(httplimit.Draft7)},
		"denied":   {httplimit.WithRefusal(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))},
	} {
		l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
		h := httplimit.Middleware(l, opts...)(ok)
		for _, accept := range []string{"text/plain", "*/*"} {
			for range 6 {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, from("192.0.2.1:1", "Accept", accept))
				for field, values := range w.Header() {
					require.NotContains(t, values[:cap(values)], "spoiled", "%s, %s, %d", name, field, w.Code)
					values[0] = "spoiled"
					_ = append(values, "spoiled")
				}
			}
		}
		for field, values := range serve(h, from("192.0.2.1:1")).Header {
			assert.NotContains(t, values, "spoiled", "%s, %s", name, field)
		}
	}
}

// An unmarked limiter fails without marking its decisions.
type unmarked struct{ ratelimit.Limiter }

func (unmarked) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, errors.New("no route to the limits")
}

// TestLogIsBounded checks that a failing limiter of another make and a failing key each
// log one line a second, which says how many were omitted, even if no other follows.
func TestLogIsBounded(t *testing.T) {
	failing := func(*http.Request) (string, error) { return "", errors.New("no route to the sessions") }
	for name, tt := range map[string]struct {
		key  key.Func
		want string
	}{
		"limiter": {clientip.Of(), "the limiter failed"},
		"key":     {failing, "cannot determine the client of this request"},
	} {
		synctest.Test(t, func(t *testing.T) {
			logged := quiet(t)
			l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
			h := httplimit.Middleware(unmarked{l}, httplimit.WithKey(tt.key))(ok)
			lines := func(want int) string {
				got := logged.String()
				logged.Reset()
				require.Equal(t, want, strings.Count(got, "\n"), name)
				return got
			}
			serve(h, from("192.0.2.1:1"))
			lines(1)
			for range 999 {
				serve(h, from("192.0.2.1:1"))
				time.Sleep(time.Millisecond)
			}
			lines(0)
			time.Sleep(time.Millisecond)
			synctest.Wait()
			got := lines(1)
			assert.Contains(t, got, tt.want)
			assert.Contains(t, got, "left_out=998")
			serve(h, from("192.0.2.1:1"))
			lines(0)
			time.Sleep(time.Hour)
			assert.NotContains(t, lines(1), "left_out", name)
			serve(h, from("192.0.2.1:1"))
			assert.NotContains(t, lines(1), "left_out", name)
		})
	}
}

// from returns a request from the given peer, with header fields given as names and values in turn.
func from(peer string, fields ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = peer
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

// quiet keeps the log out of the test's output.
func quiet(t *testing.T) *logText {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	var logged logText
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	return &logged
}

// A logText is written by timers, too.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logText) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// TestLookupFails: a client that the limit of New refuses, because that of its key is not known, is
// over a limit. What that limit could never grant is not.
func TestLookupFails(t *testing.T) {
	unknown := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
		return nil, errors.New("no route to the plans")
	})
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}
	for name, opts := range map[string][]httplimit.Option{
		"take":  nil,
		"hold":  {httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 1 })},
		"shape": {httplimit.WithShaping(time.Minute)},
	} {
		for _, tt := range []struct {
			limit               ratelimit.Algorithm
			cost, status        int
			retryAfter, current string
		}{
			{bucket, 1, 429, "3600", `"default";r=0;t=3600`},
			{bucket, 2, 503, "1", ""},
			{ratelimit.Blocked{}, 1, 503, "1", ""},
		} {
			l, err := ratelimit.New(tt.limit, unknown, ratelimit.WithClock(clock.NewMock()), ratelimit.WithFailureLog(nil))
			require.NoError(t, err)
			l.Allow("192.0.2.1")
			told := 0
			h := httplimit.Middleware(l, append(opts, httplimit.WithCost(func(*http.Request) int { return tt.cost }),
				httplimit.WithStoreError(func(*http.Request, error) { told++ }))...)(ok)
			resp := serve(h, from("192.0.2.1:1"))
			assert.Equal(t, tt.status, resp.StatusCode, "%s %d", name, tt.cost)
			if retry := resp.Header.Get("Retry-After"); name == "shape" && tt.status == 429 {
				assert.Equal(t, "3540", retry, "what is left after the longest delay")
			} else {
				assert.Equal(t, tt.retryAfter, retry, "%s %d", name, tt.cost)
				assert.Equal(t, tt.current, resp.Header.Get("RateLimit"), "%s %d", name, tt.cost)
			}
			assert.Empty(t, resp.Header.Get("RateLimit-Policy"), name)
			if name != "shape" {
				assert.Equal(t, 1, told, name)
			}
		}
	}
}

// TestFallbackWithALowerLimit: a client is told when to retry a request that only the fallback
// never grants.
func TestFallbackWithALowerLimit(t *testing.T) {
	quiet(t)
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}
	share, _ := limiter(t, ratelimit.Share(bucket, 8))
	l, err := ratelimit.New(bucket, ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))),
		ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.Fallback(share)))
	require.NoError(t, err)
	for _, tt := range []struct {
		cost, status int
		retryAfter   string
	}{{10, 503, "1"}, {21, 429, ""}} {
		h := httplimit.Middleware(l, httplimit.WithCost(func(*http.Request) int { return tt.cost }))(ok)
		resp := serve(h, from("192.0.2.1:1"))
		assert.Equal(t, tt.status, resp.StatusCode, tt.cost)
		assert.Equal(t, tt.retryAfter, resp.Header.Get("Retry-After"), tt.cost)
	}
}
