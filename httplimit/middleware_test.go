package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
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

// TestRetryAfterIsTrue checks that a client that retries after Retry-After is served,
// and one that retries a second earlier is not.
func TestRetryAfterIsTrue(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(7), Burst: 3},
		ratelimit.FixedWindow{Limit: 3, Window: time.Minute},
		ratelimit.SlidingWindow{Limit: 3, Window: time.Minute},
		ratelimit.SlidingLog{Limit: 3, Window: 90 * time.Millisecond},
	} {
		l, clk := limiter(t, alg)
		clk.Add(1234567 * time.Microsecond)
		h := httplimit.Middleware(l)(ok)
		for range 3 {
			require.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
		}
		resp := serve(h, from("192.0.2.1:1"))
		require.Equal(t, 429, resp.StatusCode)
		wait, err := time.ParseDuration(resp.Header.Get("Retry-After") + "s")
		require.NoError(t, err)
		d, err := l.Peek(t.Context(), "192.0.2.1")
		require.NoError(t, err)
		assert.GreaterOrEqual(t, wait, d.RetryAfter, "%T", alg)
		assert.Less(t, wait-d.RetryAfter, time.Second, "%T", alg)
		clk.Add(wait)
		assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode, "%T", alg)
	}
}

func TestHeaders(t *testing.T) {
	hour := ratelimit.FixedWindow{Limit: 100, Window: time.Hour}
	for name, tt := range map[string]struct {
		alg             ratelimit.Algorithm
		opts            []httplimit.Option
		policy, current string
	}{
		"bucket":         {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 25}, nil, `"default";q=25;w=3`, `"default";r=24;t=1`},
		"leaky":          {ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 5}, nil, `"default";q=5;w=5`, `"default";r=4;t=1`},
		"window":         {hour, nil, `"default";q=100;w=3600`, `"default";r=99;t=3600`},
		"log":            {ratelimit.SlidingLog{Limit: 3, Window: 1500 * time.Millisecond}, nil, `"default";q=3;w=2`, `"default";r=2;t=2`},
		"rolling":        {ratelimit.RollingWindow{Quota: 9, Window: 24 * time.Hour, Period: time.Hour, PeriodLimit: 4}, nil, `"default";q=9;w=86400, "default-period";q=4;w=3600`, `"default";r=3`},
		"sub-second":     {ratelimit.FixedWindow{Limit: 3, Window: 100 * time.Millisecond}, nil, `"default";q=3`, `"default";r=2;t=1`},
		"warming up":     {ratelimit.WarmingUp{Rate: ratelimit.PerSecond(5), Warmup: time.Second}, []httplimit.Option{httplimit.WithPolicyName("w")}, `"w";q=5;w=3`, ""},
		"all":            {ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, hour}, nil, `"default-1";q=10;w=1, "default-2";q=100;w=3600`, `"default-1";r=9`},
		"name":           {hour, []httplimit.Option{httplimit.WithPolicyName(`per "hour" \ day`)}, `"per \"hour\" \\ day";q=100;w=3600`, `"per \"hour\" \\ day";r=99;t=3600`},
		"none":           {hour, []httplimit.Option{httplimit.WithHeaders(httplimit.None)}, "", ""},
		"legacy":         {hour, []httplimit.Option{httplimit.WithHeaders(httplimit.Legacy)}, "", ""},
		"greatest limit": {ratelimit.FixedWindow{Limit: math.MaxInt, Window: time.Hour}, nil, fmt.Sprintf(`"default";q=%d;w=3600`, min(int64(math.MaxInt), 999999999999999)), fmt.Sprintf(`"default";r=%d;t=3600`, min(int64(math.MaxInt)-1, 999999999999999))},
	} {
		l, clk := limiter(t, tt.alg)
		h := serve(httplimit.Middleware(l, tt.opts...)(ok), from("192.0.2.1:1")).Header
		assert.Equal(t, tt.policy, h.Get("RateLimit-Policy"), name)
		if name != "warming up" { // which is in floating point
			assert.Equal(t, tt.current, h.Get("RateLimit"), name)
		}
		if name == "legacy" {
			assert.Equal(t, "100", h.Get("X-RateLimit-Limit"))
			assert.Equal(t, "99", h.Get("X-RateLimit-Remaining"))
			assert.Equal(t, fmt.Sprint(clk.Now().Add(time.Hour+time.Second-1).Unix()), h.Get("X-RateLimit-Reset"))
		} else {
			assert.Empty(t, h.Get("X-RateLimit-Limit")+h.Get("X-RateLimit-Remaining")+h.Get("X-RateLimit-Reset"), name)
		}
	}
}

// TestRetryAfterInAnyCase checks that Retry-After is sent with every choice of header
// fields, unless no wait helps.
func TestRetryAfterInAnyCase(t *testing.T) {
	for _, headers := range []httplimit.Headers{httplimit.Standard, httplimit.Legacy, httplimit.None} {
		l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
		cost := 1
		h := httplimit.Middleware(l, httplimit.WithHeaders(headers), httplimit.WithCost(func(*http.Request) int { return cost }))(ok)
		require.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
		resp := serve(h, from("192.0.2.1:1"))
		require.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "3600", resp.Header.Get("Retry-After"))
		cost = 2
		resp = serve(h, from("192.0.2.1:1"))
		require.Equal(t, 429, resp.StatusCode)
		assert.Empty(t, resp.Header.Values("Retry-After"))
	}
}

// TestWhichPartRefuses checks that a refusal names the part of an All that is
// exhausted.
func TestWhichPartRefuses(t *testing.T) {
	l, clk := limiter(t, ratelimit.All{ratelimit.FixedWindow{Limit: 1, Window: time.Second}, ratelimit.FixedWindow{Limit: 2, Window: time.Hour}})
	h := httplimit.Middleware(l, httplimit.WithPolicyName("p"))(ok)
	serve(h, from("192.0.2.1:1"))
	assert.Contains(t, body(t, serve(h, from("192.0.2.1:1"))), `"violated-policies":["p-1"]`)
	clk.Add(time.Second)
	serve(h, from("192.0.2.1:1"))
	resp := serve(h, from("192.0.2.1:1"))
	assert.Equal(t, `"p-2";r=0;t=3599`, resp.Header.Get("RateLimit"))
	assert.Contains(t, body(t, resp), `"violated-policies":["p-2"]`)
}

func TestRefusalBody(t *testing.T) {
	const (
		problem = "application/problem+json"
		text    = "text/plain; charset=utf-8"
	)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	h := httplimit.Middleware(l)(ok)
	serve(h, from("192.0.2.1:1"))
	for accept, want := range map[string]string{
		"-":                        problem,
		"*/*":                      problem,
		"application/json":         problem,
		"application/problem+json": problem,
		"application/*;q=0.1":      problem,
		"text/html,application/xml;q=0.9,*/*;q=0.8": problem,
		"text/html":                            text,
		"text/plain":                           text,
		"text/plain, */*;q=0.5":                text,
		"text/plain, application/json":         problem,
		"application/problem+json;q=0, */*":    text,
		"application/json;q=0.2, text/*;q=0.3": text,
		"image/png":                            text,
		"":                                     text,
		"nonsense;;;":                          text,
	} {
		r := from("192.0.2.1:1")
		if accept != "-" {
			r.Header.Set("Accept", accept)
		}
		resp := serve(h, r)
		require.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, want, resp.Header.Get("Content-Type"), accept)
		assert.Equal(t, want == text, resp.Header.Get("X-Content-Type-Options") == "nosniff")
		assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		if want == text {
			assert.Equal(t, "Not enough of the limit is left for now.\n", body(t, resp))
			continue
		}
		var got map[string]any
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&got))
		assert.Equal(t, map[string]any{
			"type":              "https://iana.org/assignments/http-problem-types#quota-exceeded",
			"title":             "Quota exceeded",
			"status":            429.0,
			"detail":            "Not enough of the limit is left for now.",
			"violated-policies": []any{"default"},
		}, got)
	}
	resp := serve(httplimit.Middleware(l, httplimit.WithCost(func(*http.Request) int { return 2 }))(ok), from("192.0.2.1:1"))
	assert.Equal(t, 429, resp.StatusCode)
	assert.Empty(t, resp.Header.Get("Retry-After"), "no wait makes it possible")
	assert.Contains(t, body(t, resp), "exceeds what the limit ever allows")
}

// TestRefusalWithoutAStore checks that a refusal does not claim that a quota is
// exceeded if the store failed.
func TestRefusalWithoutAStore(t *testing.T) {
	l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)}, ratelimit.WithStore(broken{}), ratelimit.WithFailurePolicy(ratelimit.FailClosed))
	require.NoError(t, err)
	resp := serve(httplimit.Middleware(l, httplimit.WithStoreError(func(*http.Request, error) {}))(ok), from("192.0.2.1:1"))
	assert.Equal(t, 429, resp.StatusCode)
	assert.JSONEq(t, `{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"The limit cannot be checked at the moment."}`, body(t, resp))
	assert.Empty(t, resp.Header.Get("RateLimit"))
	assert.Equal(t, "1", resp.Header.Get("Retry-After"))
}

// TestNested puts one limit before another: the response reports both.
func TestNested(t *testing.T) {
	outer, _ := limiter(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	inner, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Minute})
	h := httplimit.Middleware(outer, httplimit.WithPolicyName("all"))(httplimit.Middleware(inner, httplimit.WithPolicyName("this"))(ok))
	for left := 2; left >= 1; left-- {
		got := serve(h, from("192.0.2.1:1")).Header
		assert.Equal(t, []string{`"all";q=3;w=3600`, `"this";q=100;w=60`}, got.Values("RateLimit-Policy"))
		assert.Equal(t, []string{fmt.Sprintf(`"all";r=%d;t=3600`, left), fmt.Sprintf(`"this";r=%d;t=60`, 97+left)}, got.Values("RateLimit"))
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
		"WithShadow's function is nil":           httplimit.Middleware(l, httplimit.WithShadow(nil)),
		"must be 0 with WithShadow":              httplimit.Middleware(l, httplimit.WithShaping(1), httplimit.WithShadow(func(*http.Request, ratelimit.Decision) {})),
		"WithStoreError's function is nil":       httplimit.Middleware(l, httplimit.WithStoreError(nil)),
		"WithDenied's handler is nil":            httplimit.Middleware(l, httplimit.WithDenied(http.HandlerFunc(nil))),
		"WithDenied's handler is nil: it":        httplimit.Middleware(l, httplimit.WithDenied((*http.ServeMux)(nil))),
		"WithCost's function is nil":             httplimit.Middleware(l, httplimit.WithCost(nil)),
		"WithSkip's function is nil":             httplimit.Middleware(l, httplimit.WithSkip(nil)),
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

// A nilLimiter panics if it is nil.
type nilLimiter struct{ ratelimit.Limiter }

// TestValuesAreNotShared checks that a handler's changes to its header do not show in
// other responses.
func TestValuesAreNotShared(t *testing.T) {
	for name, opts := range map[string][]httplimit.Option{
		"standard": nil,
		"legacy":   {httplimit.WithHeaders(httplimit.Legacy)},
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

// TestStatusWithoutAText checks the title of a refusal whose status has no text.
func TestStatusWithoutAText(t *testing.T) {
	l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)}, ratelimit.WithStore(broken{}), ratelimit.WithFailurePolicy(ratelimit.FailClosed))
	require.NoError(t, err)
	resp := serve(httplimit.Middleware(l, httplimit.WithStatus(499), httplimit.WithStoreError(func(*http.Request, error) {}))(ok), from("192.0.2.1:1"))
	assert.Equal(t, 499, resp.StatusCode)
	assert.JSONEq(t, `{"type":"about:blank","title":"Limit unavailable","status":499,"detail":"The limit cannot be checked at the moment."}`, body(t, resp))
}

// An unmarked limiter fails without marking its decisions.
type unmarked struct{ ratelimit.Limiter }

func (unmarked) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, errors.New("no route to the limits")
}

// TestLogIsBounded checks that a failing limiter of another make and a failing key each
// log one line a second, which says how many were omitted.
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
			serve(h, from("192.0.2.1:1"))
			serve(h, from("192.0.2.1:1"))
			got := lines(1)
			assert.Contains(t, got, tt.want)
			assert.Contains(t, got, "left_out=999")
			time.Sleep(time.Hour)
			serve(h, from("192.0.2.1:1"))
			assert.Contains(t, lines(1), "left_out=1")
			time.Sleep(time.Hour)
			serve(h, from("192.0.2.1:1"))
			assert.NotContains(t, lines(1), "left_out", name)
		})
	}
}

// quiet keeps the log out of the test's output.
func quiet(t *testing.T) *strings.Builder {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	var logged strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	return &logged
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

// A broken store fails every call.
type broken struct{}

func (broken) Open(string, *ratelimit.Transition) (ratelimit.States, error) { return broken{}, nil }
func (broken) Apply(context.Context, string, *ratelimit.Transition, ratelimit.Request) (ratelimit.Result, error) {
	return ratelimit.Result{}, errors.New("no route to the store")
}
func (broken) Reset(context.Context, string) error { return nil }

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
		{ratelimit.FailClosed, 429, "1", ""},
		{ratelimit.Fallback(local), 200, "", ""},
		{ratelimit.Fallback(local), 429, "3600", ""},
	} {
		l, err := ratelimit.New(bucket, ratelimit.WithStore(broken{}), ratelimit.WithFailurePolicy(tt.policy))
		require.NoError(t, err)
		var told error
		h := httplimit.Middleware(l, httplimit.WithStoreError(func(r *http.Request, err error) { told = err }))(ok)
		resp := serve(h, from("192.0.2.1:1"))
		assert.Equal(t, tt.status, resp.StatusCode, i)
		assert.Equal(t, tt.retryAfter, resp.Header.Get("Retry-After"), i)
		assert.Equal(t, tt.current, resp.Header.Get("RateLimit"), i)
		assert.ErrorContains(t, told, "no route to the store")
		l, err = ratelimit.New(bucket, ratelimit.WithStore(broken{}), ratelimit.WithFailurePolicy(tt.policy))
		require.NoError(t, err)
		logged.Reset()
		serve(httplimit.Middleware(l)(ok), from("192.0.2.1:1"))
		assert.Contains(t, logged.String(), "no route to the store")
		assert.Equal(t, 1, strings.Count(logged.String(), "\n"), "the limiter and the middleware do not both log it")
	}
}

func TestKeys(t *testing.T) {
	get := func(key httplimit.KeyFunc, r *http.Request) string {
		t.Helper()
		k, err := key(r)
		require.NoError(t, err)
		return k
	}
	request := func(path string) *http.Request { return &http.Request{URL: &url.URL{Path: path}} }
	for path, want := range map[string]string{
		"/user/42/photos":     "/user/#/photos",
		"/user/7/photos/123":  "/user/#/photos/#",
		"/User//7/./photos/":  "/user/#/photos",
		"/x/../user/7/photos": "/user/#/photos",
		"/user/7a":            "/user/7a",
		"/user/\u0667":        "/user/\u0667", // a digit, but of another script
		"/":                   "/",
		"":                    "/",
		"*":                   "/*",
		"/v1/42":              "/v1/#",
		"/../../etc":          "/etc",
	} {
		assert.Equal(t, want, get(httplimit.Pattern(), request(path)), path)
	}
	// Different spellings of a path make the same key.
	for _, written := range []string{"/user/42", "/user/%34%32", "/%75ser/42", "/USER/42/", "//user/42", "/user/./42", "/a/../user/42", "/user/00042"} {
		r := httptest.NewRequest("GET", "http://h"+written, nil)
		assert.Equal(t, "/user/#", get(httplimit.Pattern(), r), written)
	}

	mux := http.NewServeMux()
	var seen string
	mux.HandleFunc("GET /user/{id}/photos", func(w http.ResponseWriter, r *http.Request) { seen = get(httplimit.Pattern(), r) })
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/user/ann/photos", nil))
	assert.Equal(t, "GET /user/{id}/photos", seen)

	header := func(values ...string) *http.Request {
		r := from("192.0.2.1:1")
		r.Header["X-Api-Key"] = values
		return r
	}
	assert.Equal(t, "a", get(httplimit.Header("x-api-key"), header("a")))
	for _, r := range []*http.Request{header(), header(""), header("a", "b"), header("", "b")} {
		_, err := httplimit.Header("X-API-Key")(r)
		assert.ErrorIs(t, err, httplimit.ErrNoKey)
	}

	constant := func(s string) httplimit.KeyFunc { return func(*http.Request) (string, error) { return s, nil } }
	joined := make(map[string][]string)
	for _, parts := range [][]string{{"a", "bc"}, {"ab", "c"}, {"abc"}, {"a", "b", "c"}, {"1:a", "2:bc"}, {"1:a2:bc"}} {
		var keys []httplimit.KeyFunc
		for _, p := range parts {
			keys = append(keys, constant(p))
		}
		k := get(httplimit.Join(keys...), nil)
		assert.NotContains(t, joined, k, "%q and %q", parts, joined[k])
		joined[k] = parts
	}
	_, err := httplimit.Join(constant("a"), httplimit.Header("X-API-Key"))(header())
	assert.ErrorIs(t, err, httplimit.ErrNoKey)
	_, err = httplimit.Join(constant("a"), constant(""))(header())
	assert.ErrorIs(t, err, httplimit.ErrNoKey, "an empty key is not a shared key")
	for _, key := range []httplimit.KeyFunc{httplimit.Join(), httplimit.Join(constant("a"), nil)} {
		_, err := key(nil)
		assert.ErrorContains(t, err, "Join")
	}
}

// TestEmptyKeyIsNobodys checks that an empty key is refused, not shared by all clients,
// and that the client does not see internal errors.
func TestEmptyKeyIsNobodys(t *testing.T) {
	logged := quiet(t)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	empty := func(r *http.Request) (string, error) { return r.Header.Get("X-API-Key"), nil }
	assert.Equal(t, 400, serve(httplimit.Middleware(l, httplimit.WithKey(empty))(ok), from("192.0.2.1:1")).StatusCode)
	fails := func(r *http.Request) (string, error) { return "", errors.New("password of the database: x") }
	resp := serve(httplimit.Middleware(l, httplimit.WithKey(fails))(ok), from("192.0.2.1:1"))
	assert.Equal(t, 400, resp.StatusCode)
	assert.NotContains(t, body(t, resp), "password")
	assert.Contains(t, logged.String(), "password")
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

// TestLongKeys checks that keys have a bounded length, and that different long values
// have different keys.
func TestLongKeys(t *testing.T) {
	header := httplimit.Header("X-API-Key")
	pattern := httplimit.Pattern()
	long := strings.Repeat("a", 10_000)
	keyFor := func(key httplimit.KeyFunc, value string) (string, error) {
		r := from("192.0.2.1:1", "X-API-Key", value)
		r.URL.Path = "/" + value
		return key(r)
	}
	for name, key := range map[string]httplimit.KeyFunc{"header": header, "path": pattern} {
		seen := make(map[string]int)
		for _, n := range []int{1, 223, 224, 225, 254, 255, 256, 257, 258, 287, 288, 289, 4096, 8190, 8191} {
			got, err := keyFor(key, long[:n])
			require.NoError(t, err, "%s of %d bytes", name, n)
			assert.LessOrEqual(t, len(got), 300)
			before, found := seen[got]
			require.False(t, found, "%s: %d and %d bytes", name, before, n)
			seen[got] = n
		}
		at, err := keyFor(key, long[:200])
		require.NoError(t, err)
		assert.Contains(t, []string{long[:200], "/" + long[:200]}, at, "what is short is the key itself")
		_, err = keyFor(key, long[:8193])
		assert.ErrorIs(t, err, httplimit.ErrNoKey, name)
		a, err := keyFor(key, long[:8000]+"b")
		require.NoError(t, err)
		b, err := keyFor(key, long[:8000]+"c")
		require.NoError(t, err)
		assert.NotEqual(t, a, b, name)
	}
}
