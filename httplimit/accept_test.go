package httplimit_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

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
		for kind, key := range map[string]httplimit.KeyFunc{
			"XFF":       httplimit.ClientIP(proxies),
			"Forwarded": httplimit.ClientIP(proxies, httplimit.FromForwarded()),
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

// TestAcceptIsReadInPart checks that only the first kilobyte and the first 32 ranges
// count.
func TestAcceptIsReadInPart(t *testing.T) {
	const json, text = "application/problem+json", "text/plain; charset=utf-8"
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	h := httplimit.Middleware(l)(ok)
	serve(h, from("192.0.2.1:1"))
	for name, tt := range map[string]struct {
		accept []string
		want   string
	}{
		"32nd range":             {[]string{strings.Repeat("a/b,", 31) + "application/json"}, json},
		"33rd range":             {[]string{strings.Repeat("a/b,", 32) + "application/json"}, text},
		"32nd line":              {append(make([]string, 31), "application/json"), json},
		"33rd line":              {append(make([]string, 32), "application/json"), text},
		"at a kilobyte":          {[]string{strings.Repeat("a", 1007) + ",application/json"}, json},
		"past a kilobyte":        {[]string{strings.Repeat("a", 1008) + ",application/json"}, text},
		"past, but there before": {[]string{"application/json," + strings.Repeat("a", 2000)}, json},
		"past, in another line":  {[]string{strings.Repeat("a", 1008), "application/json"}, text},
		"cut":                    {[]string{strings.Repeat("a", 1010) + ",text/plain;q=0.1,application/json;q=0.1"}, text},
	} {
		r := from("192.0.2.1:1")
		r.Header["Accept"] = tt.accept
		resp := serve(h, r)
		require.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, tt.want, resp.Header.Get("Content-Type"), name)
	}
}

// TestAcceptQuality has well-formed and malformed weights.
func TestAcceptQuality(t *testing.T) {
	const json, text = "application/problem+json", "text/plain; charset=utf-8"
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	h := httplimit.Middleware(l)(ok)
	serve(h, from("192.0.2.1:1"))
	for accept, want := range map[string]string{
		"application/json;q=0.5, text/plain;q=0.501":              text,
		"application/json;q=0.5,text/plain;q=0.51":                text,
		"application/json;q=0.51,text/plain;q=0.5":                json,
		"APPLICATION/JSON ; Q=0.51 , TEXT/PLAIN ; q=0.5":          json,
		"application/json;q=0":                                    text,
		"application/json;q=0.000, text/plain;q=0":                text,
		"application/json;charset=utf-8;q=0.4;x=y, text/*;q=0.3":  json,
		`application/json;x="q=0";q=1, text/plain;q=0.9`:          json,
		"application/json;q=one":                                  json, // as 1
		"application/json;q=-1":                                   json,
		"application/json;q=2, text/plain":                        json,
		"application/json;q=NaN, text/plain;q=0.9":                json,
		"application/json;q=1e-9, text/plain;q=0.9":               json,
		"application/json;q=0.1111111111111111, text/plain;q=0.9": json,
		"application/json;q=, text/plain;q=0.9":                   json,
		"application/json;q, text/plain;q=0.9":                    json,
		"application/jsonx, application":                          text,
		"*/*;q=0.1, text/plain;q=0":                               json,
		"*/*;q=0, application/problem+json;q=0.001":               json,
	} {
		resp := serve(h, from("192.0.2.1:1", "Accept", accept))
		require.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, want, resp.Header.Get("Content-Type"), accept)
	}
}
