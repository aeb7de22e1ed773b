package client_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
)

var (
	openAI    = client.Headers("X-RateLimit-*-Requests", "X-RateLimit-*-Tokens")
	anthropic = client.Headers("Anthropic-RateLimit-Requests-*", "Anthropic-RateLimit-Tokens-*")
)

// TestHeaders reads fields as servers send them, and what is none.
func TestHeaders(t *testing.T) {
	type quota = client.Quota
	const date = "Sun, 01 Mar 2026 12:00:00 GMT" // 1772366400
	gitLab := client.Headers("RateLimit-*")
	for name, tt := range map[string]struct {
		read   func(*http.Response) (quota, bool)
		fields string
		want   quota
		silent bool
	}{
		"GitHub": {
			client.XRateLimit,
			"X-RateLimit-Limit: 5000; X-RateLimit-Remaining: 4999; X-RateLimit-Reset: 1772370000",
			quota{Left: 4999, Reset: time.Hour, Limit: 5000}, false,
		},
		"GitLab": {
			gitLab, "RateLimit-Limit: 60; RateLimit-Remaining: 0; RateLimit-Reset: 1772366460",
			quota{Reset: time.Minute, Limit: 60}, false,
		},
		"seconds from now": {client.XRateLimit, "X-RateLimit-Remaining: 3; X-RateLimit-Reset: 30", quota{Left: 3, Reset: 30 * time.Second}, false},
		"fractions": {
			client.XRateLimit, "X-RateLimit-Remaining: 3; X-RateLimit-Reset: 1772366400.5",
			quota{Left: 3, Reset: 500 * time.Millisecond}, false,
		},
		"milliseconds": {
			client.XRateLimit, "X-RateLimit-Remaining: 3; X-RateLimit-Reset: 1772366430000",
			quota{Left: 3, Reset: 30 * time.Second}, false,
		},
		"microseconds": {
			client.XRateLimit, "X-RateLimit-Remaining: 3; X-RateLimit-Reset: 1772366430000000",
			quota{Left: 3, Reset: 30 * time.Second}, false,
		},
		"nanoseconds": {
			client.XRateLimit, "X-RateLimit-Remaining: 3; X-RateLimit-Reset: 1772366430000000000",
			quota{Left: 3, Reset: 30 * time.Second}, false,
		},
		"nanoseconds, long ago": {client.XRateLimit, "X-RateLimit-Remaining: 3; X-RateLimit-Reset: 1772366399000000000", quota{Left: 3}, false},
		"Envoy": {
			client.XRateLimit,
			"X-RateLimit-Limit: 10, 10|w=60; X-RateLimit-Remaining: 9; X-RateLimit-Reset: 47",
			quota{Left: 9, Reset: 47 * time.Second, Limit: 10}, false,
		},
		"OpenAI": {
			openAI,
			"x-ratelimit-limit-requests: 60; x-ratelimit-remaining-requests: 59; x-ratelimit-reset-requests: 1s; " +
				"x-ratelimit-limit-tokens: 150000; x-ratelimit-remaining-tokens: 149984; x-ratelimit-reset-tokens: 6m0s",
			quota{Left: 59, Reset: time.Second, Limit: 60}, false,
		},
		"OpenAI, milliseconds": {
			openAI, "x-ratelimit-remaining-requests: 59; x-ratelimit-reset-requests: 20ms",
			quota{Left: 59, Reset: 20 * time.Millisecond}, false,
		},
		"OpenAI, no tokens": {
			openAI,
			"x-ratelimit-limit-requests: 60; x-ratelimit-remaining-requests: 59; x-ratelimit-reset-requests: 1s; " +
				"x-ratelimit-limit-tokens: 150000; x-ratelimit-remaining-tokens: 0; x-ratelimit-reset-tokens: 6m0s",
			quota{Reset: 6 * time.Minute, Limit: 150000}, false,
		},
		"Anthropic": {
			anthropic,
			"anthropic-ratelimit-requests-limit: 50; anthropic-ratelimit-requests-remaining: 49; " +
				"anthropic-ratelimit-requests-reset: 2026-03-01T12:00:02Z",
			quota{Left: 49, Reset: 2 * time.Second, Limit: 50}, false,
		},
		"several lines": {
			client.XRateLimit,
			"X-RateLimit-Remaining: 9; X-RateLimit-Remaining: 1; X-RateLimit-Reset: 1; X-RateLimit-Reset: 60",
			quota{Left: 1, Reset: time.Minute}, false,
		},
		"years ahead": {client.XRateLimit, "X-RateLimit-Remaining: 0; X-RateLimit-Reset: 9999999999", quota{Reset: 24 * time.Hour}, false},
		"years ahead, a date": {
			anthropic,
			"anthropic-ratelimit-requests-remaining: 0; " +
				"anthropic-ratelimit-requests-reset: 9999-01-01T00:00:00Z",
			quota{Reset: 24 * time.Hour}, false,
		},
		"endless": {
			client.XRateLimit, "X-RateLimit-Remaining: 0; X-RateLimit-Reset: " + strings.Repeat("9", 400),
			quota{Reset: 24 * time.Hour}, false,
		},
		"long ago": {client.XRateLimit, "X-RateLimit-Remaining: 0; X-RateLimit-Reset: 1772366399", quota{}, false},
		"a limit of nonsense": {
			client.XRateLimit, "X-RateLimit-Limit: many; X-RateLimit-Remaining: 3; X-RateLimit-Reset: 30",
			quota{Left: 3, Reset: 30 * time.Second}, false,
		},
		"negative":          {client.XRateLimit, "X-RateLimit-Remaining: -1; X-RateLimit-Reset: 30", quota{}, true},
		"negative reset":    {client.XRateLimit, "X-RateLimit-Remaining: 1; X-RateLimit-Reset: -30", quota{}, true},
		"negative duration": {client.XRateLimit, "X-RateLimit-Remaining: 1; X-RateLimit-Reset: -30s", quota{}, true},
		"not a number":      {client.XRateLimit, "X-RateLimit-Remaining: NaN; X-RateLimit-Reset: NaN", quota{}, true},
		"1e400":             {client.XRateLimit, "X-RateLimit-Remaining: 0; X-RateLimit-Reset: 1e400", quota{}, true},
		"infinite":          {client.XRateLimit, "X-RateLimit-Remaining: Inf; X-RateLimit-Reset: Inf", quota{}, true},
		"empty":             {client.XRateLimit, "X-RateLimit-Remaining: ; X-RateLimit-Reset: ", quota{}, true},
		"no reset":          {client.XRateLimit, "X-RateLimit-Remaining: 0", quota{}, true},
		"nothing":           {client.XRateLimit, "", quota{}, true},
	} {
		h := http.Header{"Date": {date}}
		for field := range strings.SplitSeq(tt.fields, "; ") {
			name, value, _ := strings.Cut(field, ":")
			h.Add(name, strings.ReplaceAll(strings.TrimSpace(value), "|", ";"))
		}
		got, ok := tt.read(&http.Response{Header: h})
		assert.Equal(t, !tt.silent, ok, name)
		assert.Equal(t, tt.want, got, name)
	}
	for want, patterns := range map[string][]string{
		"client: the number of patterns is 0: it must be at least 1":                   nil,
		`client: the pattern is "X-RateLimit": it must have one *, as "X-RateLimit-*"`: {"X-RateLimit-*", "X-RateLimit"},
		`client: the pattern is "*-*": it must have one *, as "X-RateLimit-*"`:         {"*-*"},
	} {
		assert.PanicsWithError(t, want, func() { client.Headers(patterns...) })
	}
}

// TestTransportHeedsServers has servers with a limit of 60 a minute, which say what is left as GitHub,
// OpenAI and Anthropic do. None of 300 requests is refused.
func TestTransportHeedsServers(t *testing.T) {
	for name, tt := range map[string]struct {
		quota func(*http.Response) (client.Quota, bool)
		says  func(h http.Header, left int, reset time.Duration)
	}{
		"GitHub": {client.XRateLimit, func(h http.Header, left int, reset time.Duration) {
			h.Set("X-RateLimit-Limit", "60")
			h.Set("X-RateLimit-Remaining", strconv.Itoa(left))
			h.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(reset+time.Second-1).Unix(), 10))
		}},
		"OpenAI": {openAI, func(h http.Header, left int, reset time.Duration) {
			h.Set("X-RateLimit-Limit-Requests", "60")
			h.Set("X-RateLimit-Remaining-Requests", strconv.Itoa(left))
			h.Set("X-RateLimit-Reset-Requests", reset.String())
		}},
		"Anthropic": {anthropic, func(h http.Header, left int, reset time.Duration) {
			h.Set("Anthropic-RateLimit-Requests-Limit", "60")
			h.Set("Anthropic-RateLimit-Requests-Remaining", strconv.Itoa(left))
			h.Set("Anthropic-RateLimit-Requests-Reset", time.Now().Add(reset+time.Second-1).UTC().Format(time.RFC3339))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
				server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					d, err := l.Take(r.Context(), "", 1)
					assert.NoError(t, err)
					tt.says(w.Header(), d.Remaining, d.ResetAfter)
					if !d.Allowed {
						w.WriteHeader(429)
					}
				})
				tr := &client.Transport{Limiter: unlimited, Quota: tt.quota, Base: handled{server, 100 * time.Millisecond}}
				begin := time.Now()
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						for range 30 {
							resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
							if assert.NoError(t, err) {
								assert.Equal(t, 200, resp.StatusCode)
							}
						}
					})
				}
				wg.Wait()
				assert.LessOrEqual(t, time.Since(begin), 270*time.Second, "90 % of the bucket")
			})
		})
	}
}

// TestQuotaOfAProgram has a function that returns any value.
func TestQuotaOfAProgram(t *testing.T) {
	for name, tt := range map[string]struct {
		quota client.Quota
		want  time.Duration
	}{
		"years":    {client.Quota{Reset: 1 << 62}, 24 * time.Hour},
		"negative": {client.Quota{Left: -1, Reset: time.Hour}, 0},
		"no reset": {client.Quota{Reset: -1}, 0},
		"much":     {client.Quota{Left: 1 << 30, Limit: 1 << 30, Reset: 1, Window: -1}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := &scripted{start: time.Now()}
			tr := &client.Transport{Limiter: unlimited, Base: server, Quota: func(*http.Response) (client.Quota, bool) { return tt.quota, true }}
			for range 2 {
				_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
				require.NoError(t, err)
			}
			assert.Equal(t, tt.want, server.asked[1], name)
		})
	}
}
