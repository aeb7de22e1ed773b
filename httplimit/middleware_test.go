package httplimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
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
		httplimit.WithKey(httplimit.Header("X-API-Key")),
		httplimit.WithCost(cost),
		httplimit.WithStatus(503),
		httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/health" }),
		httplimit.WithDenied(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, ok := httplimit.DecisionOf(r)
			assert.True(t, ok && !d.Allowed && d.Limit == 3)
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
	assert.Equal(t, 400, ask("/?cost", ""))
	assert.Equal(t, 400, ask("/?less", "a"))
	assert.Equal(t, 200, ask("/?cost", "b"))

	teapot := httplimit.Middleware(l, httplimit.WithStatus(503), httplimit.WithKeyError(func(w http.ResponseWriter, r *http.Request, err error) {
		assert.ErrorIs(t, err, httplimit.ErrNoKey)
		w.WriteHeader(401)
	}), httplimit.WithKey(httplimit.Header("X-API-Key")))(ok)
	assert.Equal(t, 401, serve(teapot, from("192.0.2.1:1")).StatusCode)
	assert.Equal(t, 503, serve(teapot, from("192.0.2.1:1", "X-API-Key", "a")).StatusCode)
	_, found := httplimit.DecisionOf(from("192.0.2.1:1"))
	assert.False(t, found)
}

// TestMisuse checks that a mistake in the options is named in every response.
func TestMisuse(t *testing.T) {
	quiet(t)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	keyed := func(key httplimit.KeyFunc) func(http.Handler) http.Handler {
		return httplimit.Middleware(l, httplimit.WithKey(key))
	}
	for want, h := range map[string]func(http.Handler) http.Handler{
		"the limiter is nil":                     httplimit.Middleware(nil),
		"the limiter is nil: it must be":         httplimit.Middleware((*nilLimiter)(nil)),
		"WithKey's function is nil":              httplimit.Middleware(l, httplimit.WithKey(nil)),
		"WithKeyError's function is nil":         httplimit.Middleware(l, httplimit.WithKeyError(nil)),
		"WithStatus's code is 42":                httplimit.Middleware(l, httplimit.WithStatus(42)),
		"WithHeaders's choice is 7":              httplimit.Middleware(l, httplimit.WithHeaders(7)),
		`WithPolicyName's name is "ü"`:           httplimit.Middleware(l, httplimit.WithPolicyName("ü")),
		`WithPolicyName's name is ""`:            httplimit.Middleware(l, httplimit.WithPolicyName("")),
		"WithShaping's delay is -1ns":            httplimit.Middleware(l, httplimit.WithShaping(-1)),
		"WithJitter's maximum is -1ns":           httplimit.Middleware(l, httplimit.WithJitter(-1)),
		"WithPartitionKey's function is nil":     httplimit.Middleware(l, httplimit.WithPartitionKey(nil)),
		"WithHeaders's choice is -1":             httplimit.Middleware(l, httplimit.WithHeaders(-1)),
		"WithHeaders's choice is 4":              httplimit.Middleware(l, httplimit.WithHeaders(4)),
		"WithShadow's function is nil":           httplimit.Middleware(l, httplimit.WithShadow(nil)),
		"must be 0 with WithShadow":              httplimit.Middleware(l, httplimit.WithShaping(1), httplimit.WithShadow(func(*http.Request, ratelimit.Decision) {})),
		"WithStoreError's function is nil":       httplimit.Middleware(l, httplimit.WithStoreError(nil)),
		"WithDenied's handler is nil":            httplimit.Middleware(l, httplimit.WithDenied(http.HandlerFunc(nil))),
		"WithDenied's handler is nil: it":        httplimit.Middleware(l, httplimit.WithDenied((*http.ServeMux)(nil))),
		"WithCost's function is nil":             httplimit.Middleware(l, httplimit.WithCost(nil)),
		"WithSkip's function is nil":             httplimit.Middleware(l, httplimit.WithSkip(nil)),
		"WithSettle's function is nil":           httplimit.Middleware(l, httplimit.WithSettle(nil)),
		"WithSettle.HoldFor's d is -1ns":         httplimit.Middleware(l, httplimit.WithSettle(httplimit.ByCost, ratelimit.HoldFor(-1))),
		"WithAlso's limiter is nil":              httplimit.Middleware(l, httplimit.WithAlso((*nilLimiter)(nil), httplimit.ClientIP(), "x")),
		"WithAlso's function is nil":             httplimit.Middleware(l, httplimit.WithAlso(l, nil, "x")),
		`WithAlso's name is ""`:                  httplimit.Middleware(l, httplimit.WithAlso(l, httplimit.ClientIP(), "")),
		"must be 0 with WithAlso":                httplimit.Middleware(l, httplimit.WithShaping(1), httplimit.WithAlso(l, httplimit.ClientIP(), "x")),
		"option 1 of Middleware is nil":          httplimit.Middleware(l, httplimit.WithStatus(429), nil),
		"the handler is nil":                     func(http.Handler) http.Handler { return httplimit.Middleware(l)(nil) },
		"the handler is nil: it must":            func(http.Handler) http.Handler { return httplimit.Middleware(l)(http.HandlerFunc(nil)) },
		"option 0 of ClientIP is nil":            keyed(httplimit.ClientIP(nil)),
		"option 1 of ClientIP is nil":            keyed(httplimit.ClientIP(httplimit.TrustedHops(1), nil)),
		"TrustedProxies's prefix is invalid Pre": keyed(httplimit.ClientIP(httplimit.TrustedProxies(netip.Prefix{}))),
		"IPv6Prefix's number of bits is 0":       keyed(httplimit.ClientIP(httplimit.IPv6Prefix(0))),
		"TrustedHops's number is -1":             keyed(httplimit.ClientIP(httplimit.TrustedHops(-1))),
		"Join's list of keys is []":              keyed(httplimit.Join()),
		"key 2 of Join is nil":                   keyed(httplimit.Join(httplimit.Header("Host"), nil)),
		"IPv6Prefix's number of bits is 129":     keyed(httplimit.Join(httplimit.ClientIP(httplimit.IPv6Prefix(129)))),
	} {
		resp := serve(h(ok), from("192.0.2.1:1"))
		assert.Equal(t, 500, resp.StatusCode, want)
		assert.Contains(t, body(t, resp), want)
	}
}

// TestMisusedKeyIsLogged checks that a mistake in the options of a KeyFunc is an error of
// the server: it is logged once, whatever answers the errors of clients.
func TestMisusedKeyIsLogged(t *testing.T) {
	logged := quiet(t)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	h := httplimit.Middleware(l, httplimit.WithKey(httplimit.ClientIP(nil)),
		httplimit.WithKeyError(func(http.ResponseWriter, *http.Request, error) { t.Error("not the client's error") }),
		httplimit.WithShadow(func(*http.Request, ratelimit.Decision) { t.Error("not a decision") }))(ok)
	for range 3 {
		assert.Equal(t, 500, serve(h, from("192.0.2.1:1")).StatusCode)
	}
	assert.Equal(t, 1, strings.Count(logged.String(), "\n"), logged.String())
	assert.Contains(t, logged.String(), "level=ERROR")
	assert.Contains(t, logged.String(), "option 0 of ClientIP is nil")
}

// TestMisusedKeyOfTheProgram checks the same for a KeyFunc that calls one with invalid options.
func TestMisusedKeyOfTheProgram(t *testing.T) {
	logged := quiet(t)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	limited, err := httplimit.New(l, httplimit.WithKey(func(r *http.Request) (string, error) { return httplimit.ClientIP(nil)(r) }),
		httplimit.WithKeyError(func(http.ResponseWriter, *http.Request, error) { t.Error("not the client's error") }),
		httplimit.WithShadow(func(*http.Request, ratelimit.Decision) { t.Error("not a decision") }),
		httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/health" }))
	require.NoError(t, err, "nobody has called it yet")
	for range 3 {
		assert.Equal(t, 500, serve(limited(ok), from("192.0.2.1:1")).StatusCode)
	}
	assert.Equal(t, 200, serve(limited(ok), httptest.NewRequest("GET", "/health", nil)).StatusCode, "it needs no key")
	assert.Equal(t, 1, strings.Count(logged.String(), "\n"), logged.String())
	assert.Contains(t, logged.String(), "option 0 of ClientIP is nil")
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
		"exposed":  {httplimit.WithExposedHeaders()},
		"denied":   {httplimit.WithDenied(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))},
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
		key  httplimit.KeyFunc
		want string
	}{
		"limiter": {httplimit.ClientIP(), "the limiter failed"},
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

func TestShadow(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)})
	var refused []ratelimit.Decision
	h := httplimit.Middleware(l,
		httplimit.WithShadow(func(r *http.Request, d ratelimit.Decision) { refused = append(refused, d) }),
	)(ok)
	for range 3 {
		resp := serve(h, from("192.0.2.1:1"))
		assert.Equal(t, "ok", body(t, resp))
		assert.Empty(t, resp.Header.Get("RateLimit")+resp.Header.Get("Retry-After"))
	}
	assert.Equal(t, "ok", body(t, serve(h, from("@"))))
	require.Len(t, refused, 2)
	assert.Equal(t, 30*time.Minute, refused[0].RetryAfter)
	assert.Zero(t, refused[1], "it has no key")
}

func TestStoreFails(t *testing.T) {
	logged := quiet(t)
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}
	local, _ := limiter(t, bucket)
	for i, tt := range []struct {
		policy     ratelimit.FailurePolicy
		status     int
		retryAfter string
		current    string
	}{
		{ratelimit.FailOpen, 200, "", ""},
		{ratelimit.FailClosed, 503, "1", ""},
		{ratelimit.Fallback(local), 200, "", `"default";r=0`},
		{ratelimit.Fallback(local), 429, "3600", `"default";r=0;t=3600`},
	} {
		l, err := ratelimit.New(bucket, ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(tt.policy))
		require.NoError(t, err)
		var told error
		h := httplimit.Middleware(l, httplimit.WithStoreError(func(r *http.Request, err error) { told = err }))(ok)
		resp := serve(h, from("192.0.2.1:1"))
		assert.Equal(t, tt.status, resp.StatusCode, i)
		assert.Equal(t, tt.retryAfter, resp.Header.Get("Retry-After"), i)
		assert.Equal(t, tt.current, resp.Header.Get("RateLimit"), i)
		assert.Empty(t, resp.Header.Get("RateLimit-Policy"), i)
		assert.ErrorContains(t, told, "no route to the store")
		l, err = ratelimit.New(bucket, ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(tt.policy))
		require.NoError(t, err)
		logged.Reset()
		serve(httplimit.Middleware(l)(ok), from("192.0.2.1:1"))
		assert.Contains(t, logged.String(), "no route to the store")
		assert.Equal(t, 1, strings.Count(logged.String(), "\n"), "the limiter and the middleware do not both log it")
	}
}

// TestLookupFails: a client that the limit of New refuses, because that of its key is not known, is over a limit. What
// that limit could never grant is not.
func TestLookupFails(t *testing.T) {
	unknown := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
		return nil, errors.New("no route to the plans")
	})
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}
	for name, opts := range map[string][]httplimit.Option{
		"take":  nil,
		"hold":  {httplimit.WithSettle(func(*http.Request, int, int64) int { return 1 })},
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
			h := httplimit.Middleware(l, append(opts, httplimit.WithCost(func(*http.Request) int { return tt.cost }), httplimit.WithStoreError(func(*http.Request, error) { told++ }))...)(ok)
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

// TestFallbackWithALowerLimit: a client is told when to retry a request that only the fallback never
// grants.
func TestFallbackWithALowerLimit(t *testing.T) {
	quiet(t)
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}
	share, _ := limiter(t, ratelimit.Share(bucket, 8))
	l, err := ratelimit.New(bucket, ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.Fallback(share)))
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

// TestShadowOfAClientThatLeft checks that its request passes as well.
func TestShadowOfAClientThatLeft(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h := httplimit.Middleware(l,
		httplimit.WithShadow(func(*http.Request, ratelimit.Decision) { t.Error("it was not refused") }),
		httplimit.WithStoreError(func(*http.Request, error) { t.Error("no store has failed") }))(ok)
	assert.Equal(t, "ok", body(t, serve(h, from("192.0.2.1:1").WithContext(ctx))))
}
