package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

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
		"text/html,application/xml;q=0.9,*/*;q=0.8":  problem,
		"text/plain, application/json":               problem,
		"text/plain, Application/JSON ; q=0":         problem, // weights are not read
		"application/problem+json, text/plain":       problem,
		"text/plain,*/*;q=0.5":                       problem,
		"application/*,text/plain":                   problem,
		"text/html":                                  problem, // which names neither
		"image/png":                                  problem,
		"text/*":                                     problem,
		"":                                           problem,
		"nonsense;;;":                                problem,
		"text/plain\ntext/html":                      problem, // in two fields
		"text/plain":                                 text,
		" TEXT/Plain\t; charset=utf-8;q=0.1":         text,
		"text/html,text/plain":                       text,
		"text/plain, application/jsonx, application": text,
		"text/plain," + strings.Repeat("a/b,", 253):  text,    // 1,023 bytes
		"text/plain," + strings.Repeat("a/b,", 254):  problem, // 1,027 bytes
	} {
		r := from("192.0.2.1:1")
		if accept != "-" {
			r.Header["Accept"] = strings.Split(accept, "\n")
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
	l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)},
		ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithName("test"),
		ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	require.NoError(t, err)
	resp := serve(httplimit.Middleware(l, httplimit.WithStoreError(func(*http.Request, error) {}))(ok), from("192.0.2.1:1"))
	assert.Equal(t, 503, resp.StatusCode)
	assert.JSONEq(t, `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"The limit cannot be checked at the moment."}`, body(t, resp))
	assert.Empty(t, resp.Header.Get("RateLimit"))
	assert.Equal(t, "1", resp.Header.Get("Retry-After"))
	resp = serve(httplimit.Middleware(l, httplimit.WithStatus(420))(ok), from("192.0.2.1:1", "Accept", "text/plain"))
	assert.Equal(t, 503, resp.StatusCode, "WithStatus is for clients that are over the limit")
	assert.Equal(t, "The limit cannot be checked at the moment.\n", body(t, resp))
}

// A refusal has a body of its own, whoever writes it and whyever: what an outer handler has set for
// another body is removed, and nobody keeps it. A compressing handler has set Content-Encoding for
// each body.
func TestRefusalHasNoFieldsOfAnotherBody(t *testing.T) {
	blocked := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}))
	closed := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
		ratelimit.WithName("down"), ratelimit.WithStore(fakes.Down(errors.New("down"))),
		ratelimit.WithFailurePolicy(ratelimit.FailClosed()), ratelimit.WithFailureLog(nil)))
	answers := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte("a longer body than the resource has"))
	})
	for name, tt := range map[string]struct {
		status int
		limits func(http.Handler) http.Handler
		isOver bool // whether the deadline of the request has passed before a decision
	}{
		"denied":      {429, httplimit.Middleware(blocked), false},
		"not checked": {503, httplimit.Middleware(closed), false},
		"WithRefusal": {429, httplimit.Middleware(blocked, httplimit.WithRefusal(answers)), false},
		"WithAlso": {
			429,
			httplimit.Middleware(ratelimit.Must(ratelimit.New(ratelimit.Unlimited{})), httplimit.WithAlso(blocked, key.Everybody(), "also")),
			false,
		},
		"no key": {400, httplimit.Middleware(blocked, httplimit.WithKey(key.Header("X-Key"))), false},
		"over":   {503, httplimit.Middleware(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}))), true},
	} {
		t.Run(name, func(t *testing.T) {
			limited := tt.limits(ok)
			resp := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for _, field := range []string{"Content-Length", "Content-Range", "Content-Disposition", "ETag",
					"Last-Modified", "Cache-Control", "Content-Encoding", "Server"} {
					w.Header().Set(field, "5")
				}
				if tt.isOver {
					ctx, cancel := context.WithTimeout(r.Context(), 0)
					defer cancel()
					r = r.WithContext(ctx)
				}
				limited.ServeHTTP(w, r)
			}), from("192.0.2.1:1"))
			assert.Equal(t, tt.status, resp.StatusCode)
			for _, field := range []string{"Content-Length", "Content-Range", "Content-Disposition", "ETag", "Last-Modified"} {
				assert.Empty(t, resp.Header.Values(field), field)
			}
			assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
			assert.Equal(t, "5", resp.Header.Get("Content-Encoding"))
			assert.Equal(t, "5", resp.Header.Get("Server"))
		})
	}
}

// hostile are header fields that are expensive to read in full.
var hostile = map[string]func(http.Header){
	"Accept with parameters": func(h http.Header) {
		for range 230 {
			h.Add("Accept", strings.Repeat("a;b*0=c,", 490))
		}
	},
	"Accept in one line":         func(h http.Header) { h.Set("Accept", strings.Repeat("a;b*0=c,", 115_000)) },
	"Accept of numbers":          func(h http.Header) { h.Set("Accept", strings.Repeat("*/*;q=0."+strings.Repeat("1", 900)+",", 1000)) },
	"Accept of nothing":          func(h http.Header) { h.Set("Accept", strings.Repeat(",", 900_000)) },
	"Accept of empty lines":      func(h http.Header) { h["Accept"] = make([]string, 20_000) },
	"X-Forwarded-For, in a line": func(h http.Header) { h.Set("X-Forwarded-For", strings.Repeat("10.0.0.1,", 100_000)) },
	"X-Forwarded-For, in lines": func(h http.Header) {
		h["X-Forwarded-For"] = strings.Split(strings.Repeat("10.0.0.1,", 20_000), ",")
	},
	"X-Real-IP":                 func(h http.Header) { h.Set("X-Real-IP", strings.Repeat("1", 900_000)) },
	"X-Real-IP, in lines":       func(h http.Header) { h["X-Real-Ip"] = strings.Split(strings.Repeat("10.0.0.1,", 20_000), ",") },
	"X-Forwarded-For, no comma": func(h http.Header) { h.Set("X-Forwarded-For", strings.Repeat("1", 900_000)) },
	"Forwarded": func(h http.Header) {
		for range 230 {
			h.Add("Forwarded", strings.Repeat("for=10.0.0.1,", 300))
		}
	},
	"Forwarded, commas in quotes": func(h http.Header) {
		for range 230 {
			h.Add("Forwarded", `for=10.0.0.1;host="`+strings.Repeat(",", 3900)+`"`)
		}
	},
}

// BenchmarkRefusal refuses requests with hostile header fields.
func BenchmarkRefusal(b *testing.B) {
	for name, set := range hostile {
		for kind, key := range map[string]key.Func{
			"XFF":       clientip.Of(proxies),
			"Forwarded": clientip.Of(proxies, clientip.FromForwarded()),
		} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				l, _ := limiter(b, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
				h := httplimit.Middleware(l, httplimit.WithKey(key))(nothing)
				w, r := discard{make(http.Header)}, from("10.0.0.1:1234")
				set(r.Header)
				h.ServeHTTP(w, r)
				for b.Loop() {
					clear(w.header)
					h.ServeHTTP(w, r)
				}
			})
		}
	}
}

// TestDetailBeforeTheWindowEnds: if a hold gives events back first, a refusal says nothing of the
// end of the window.
func TestDetailBeforeTheWindowEnds(t *testing.T) {
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 3, 1, 4, 0, 5, 0, time.UTC))
	daily := ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Day}
	l, err := ratelimit.New(daily, ratelimit.WithClock(clk))
	require.NoError(t, err)
	_, _, err = l.Hold(t.Context(), "192.0.2.1", 1, ratelimit.HoldFor(10*time.Second), ratelimit.GiveBack())
	require.NoError(t, err)
	resp := serve(httplimit.Middleware(l)(ok), from("192.0.2.1:1", "Accept", "text/plain"))
	require.Equal(t, "10", resp.Header.Get("Retry-After"))
	assert.Equal(t, "Not enough of the limit is left for now.\n", body(t, resp))
}

// TestDetailOfCalendar checks that a refusal by a calendar window says when the window ends, by the
// clock of its zone.
func TestDetailOfCalendar(t *testing.T) {
	for i, tt := range []struct {
		alg  ratelimit.Algorithm
		at   time.Time
		want string
	}{
		{ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Month, Zone: "Europe/London"},
			time.Date(2026, 10, 20, 12, 0, 0, 7, time.UTC), "it resets 1 November 2026, 00:00 Europe/London."},
		{ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Month, Zone: "Europe/London"},
			time.Date(2026, 5, 31, 22, 59, 59, 999, time.UTC), "it resets 1 June 2026, 00:00 Europe/London."},
		{ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Day, Hour: 4},
			time.Date(2026, 3, 1, 4, 0, 0, 0, time.UTC), "it resets 2 March 2026, 04:00 UTC."},
		{ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(9)}, ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Year, Zone: "Asia/Kolkata"}},
			time.Date(2026, 3, 1, 4, 0, 0, 0, time.UTC), "it resets 1 January 2027, 00:00 Asia/Kolkata."},
		{ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, time.Date(2026, 3, 1, 4, 0, 0, 0, time.UTC), "Not enough of the limit is left for now."},
	} {
		clk := clock.NewMock()
		clk.Set(tt.at)
		l, err := ratelimit.New(tt.alg, ratelimit.WithClock(clk))
		require.NoError(t, err)
		h := httplimit.Middleware(l, httplimit.WithJitter(time.Hour))(ok)
		require.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode, i)
		resp := serve(h, from("192.0.2.1:1", "Accept", "text/plain"))
		require.Equal(t, 429, resp.StatusCode, i)
		assert.Contains(t, body(t, resp), tt.want, i)
	}
}

// A remote limiter decides by the clock of its store, and not by that of the process.
type remote struct {
	ratelimit.Limiter
	process clock.Clock
}

func (r remote) Describe() ratelimit.Info {
	info := r.Limiter.Describe()
	info.Clock = r.process
	return info
}

// TestDetailByTheClockOfAStore checks that a refusal says when a window ends if the clock of the
// store differs a little from that of the process.
func TestDetailByTheClockOfAStore(t *testing.T) {
	for _, ahead := range []time.Duration{-20 * time.Second, -1, 1, 20 * time.Second} {
		store, process := clock.NewMock(), clock.NewMock()
		store.Set(time.Date(2026, 5, 31, 22, 59, 0, 0, time.UTC))
		process.Set(store.Now().Add(-ahead))
		monthly := ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Month, Zone: "Europe/London"}
		l, err := ratelimit.New(monthly, ratelimit.WithClock(store))
		require.NoError(t, err)
		h := httplimit.Middleware(remote{l, process})(ok)
		require.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
		got := body(t, serve(h, from("192.0.2.1:1")))
		assert.Contains(t, got, "it resets 1 June 2026, 00:00 Europe/London.", ahead)
	}
}
