package client_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// A counting server counts requests when they come, and answers when the latency is over. It says
// what is left in the fields RateLimit and RateLimit-Policy, and in those that begin with X-.
type counting struct {
	limiter ratelimit.Limiter
	window  time.Duration
	latency time.Duration

	mu            sync.Mutex // protects what follows
	sent, refused int
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	d, err := c.limiter.Take(context.Background(), "", 1)
	if err != nil {
		return nil, err
	}
	resp, reset := answered(200, ""), d.ResetAfter
	if !d.Allowed {
		reset = d.RetryAfter
		resp = answered(429, fmt.Sprint(seconds(reset)))
	}
	c.mu.Lock()
	c.sent++
	if !d.Allowed {
		c.refused++
	}
	c.mu.Unlock()
	for field, value := range map[string]any{
		"X-RateLimit-Limit":     d.Limit,
		"X-RateLimit-Remaining": d.Remaining,
		"X-RateLimit-Reset":     seconds(reset),
		"RateLimit-Policy":      fmt.Sprintf(`"a";q=%d;w=%d`, d.Limit, seconds(c.window)),
		"RateLimit":             fmt.Sprintf(`"a";r=%d;t=%d`, d.Remaining, seconds(reset)),
	} {
		resp.Header.Set(field, fmt.Sprint(value))
	}
	select {
	case <-time.After(c.latency):
		return resp, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// TestHeedSlowServers has servers whose responses take up to twenty windows. More than 90 % of the
// limit is used, and hardly any request is refused.
func TestHeedSlowServers(t *testing.T) {
	for _, tt := range []struct {
		limit  int
		window time.Duration
	}{{1, time.Second}, {5, time.Second}, {20, 3 * time.Second}} {
		for name, alg := range map[string]ratelimit.Algorithm{
			"window": ratelimit.FixedWindow{Limit: tt.limit, Window: tt.window},
			"bucket": ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: tt.limit, Per: tt.window}},
		} {
			for style, quota := range map[string]func(*http.Response) (client.Quota, bool){"ietf": client.RateLimit, "x": client.XRateLimit} {
				for _, latency := range []time.Duration{50 * time.Millisecond, time.Second, 5 * time.Second, 20 * time.Second} {
					t.Run(fmt.Sprint(tt.limit, name, style, latency), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							server := &counting{limiter: ratelimit.Must(ratelimit.New(alg)), window: tt.window, latency: latency}
							tr := &client.Transport{Limiter: unlimited, Quota: quota, Base: server}
							ask := func(ctx context.Context) {
								_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil).WithContext(ctx))
								if err != nil {
									<-ctx.Done() // the end is near
								}
							}
							ask(t.Context()) // to know the limit
							const span = 20 * time.Minute
							ctx, cancel := context.WithTimeout(t.Context(), span)
							defer cancel()
							var wg sync.WaitGroup
							for range 20 + 2*tt.limit*int(1+latency/tt.window) {
								wg.Go(func() {
									for ctx.Err() == nil {
										ask(ctx)
									}
								})
							}
							wg.Wait()
							granted := float64(server.sent - server.refused)
							assert.Greater(t, granted, 0.9*float64(tt.limit)*float64(span)/float64(tt.window))
							assert.Less(t, float64(server.refused), 0.01*float64(server.sent))
						})
					})
				}
			}
		}
	}
}

// TestHeedLostRequest has a server that never answers one request: that holds others back for a window.
func TestHeedLostRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost, begin := make(chan struct{}), time.Now()
		tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: pathServer(func(path string) *http.Response {
			if path == "/lost" {
				<-lost
			}
			return said(200, `"a";r=0;t=1`, "", `"a";q=1;w=1`)
		})}
		ask := func(path string) error {
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com"+path, nil))
			return err
		}
		require.NoError(t, ask("/"))
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, ask("/lost")) })
		var at []time.Duration
		for range 3 {
			synctest.Wait()
			require.NoError(t, ask("/"))
			at = append(at, time.Since(begin))
		}
		const s = time.Second
		assert.Equal(t, []time.Duration{2*s + s/20, 3*s + s/20, 4*s + s/20}, at)
		close(lost)
		wg.Wait()
	})
}

type pathServer func(path string) *http.Response

func (f pathServer) RoundTrip(r *http.Request) (*http.Response, error) { return f(r.URL.Path), nil }

// A gitHub is a server with two resources on one host: searches have a quota of their own, in short windows. It
// counts requests when they come.
type gitHub struct {
	core, search ratelimit.Limiter

	mu            sync.Mutex // protects what follows
	sent, refused int
}

func newGitHub() *gitHub {
	window := func(limit int, window time.Duration) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: limit, Window: window}))
	}
	return &gitHub{core: window(5000, time.Hour), search: window(30, time.Minute)}
}

// isSearch reports whether r counts in the quota of searches.
func isSearch(r *http.Request) bool { return r.URL.Path == "/search" }

func (g *gitHub) RoundTrip(r *http.Request) (*http.Response, error) {
	l := g.core
	if isSearch(r) {
		l = g.search
	}
	d, err := l.Take(context.Background(), "", 1)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	g.sent++
	if !d.Allowed {
		g.refused++
	}
	g.mu.Unlock()
	status := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[d.Allowed]
	now := time.Now()
	resp := &http.Response{StatusCode: status, Body: http.NoBody, Header: http.Header{
		"Date":                  {now.UTC().Format(http.TimeFormat)},
		"X-Ratelimit-Limit":     {fmt.Sprint(d.Limit)},
		"X-Ratelimit-Remaining": {fmt.Sprint(d.Remaining)},
		"X-Ratelimit-Reset":     {fmt.Sprint(now.Add(d.ResetAfter + time.Second - 1).Unix())},
	}}
	time.Sleep(200 * time.Millisecond)
	return resp, nil
}

// TestHeedGitHub sends requests for three hours, one of fourteen of them a search. The server would serve 15,000
// that are no searches, so that 16,153 are possible. Nearly all of them are served, even if both resources share a
// key, and at most 1 % are refused.
func TestHeedGitHub(t *testing.T) {
	const span, every = 3 * time.Hour, 14
	const possible = 3 * 5000 * every / (every - 1)
	for name, resource := range map[string]key.Func{
		"one key": nil,
		"two keys": func(r *http.Request) (string, error) {
			return fmt.Sprint(r.URL.Host, isSearch(r)), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newGitHub()
				tr := &client.Transport{Limiter: unlimited, Key: resource, Quota: client.XRateLimit, Base: server}
				ctx, cancel := context.WithTimeout(t.Context(), span)
				defer cancel()
				var asked atomic.Int64
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() {
						for ctx.Err() == nil {
							path := "/repos"
							if asked.Add(1)%every == 0 {
								path = "/search"
							}
							r := httptest.NewRequest("GET", "http://api.example.com"+path, nil)
							if _, err := tr.RoundTrip(r.WithContext(ctx)); err != nil {
								<-ctx.Done() // the end is near
							}
						}
					})
				}
				wg.Wait()
				served := server.sent - server.refused
				t.Logf("%d of %d served, %d refused", served, possible, server.refused)
				assert.Greater(t, served, possible*97/100)
				assert.Less(t, server.refused, server.sent/100)
			})
		})
	}
}
