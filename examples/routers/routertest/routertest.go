// Package routertest tests the router examples.
package routertest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ratelimit-go/ratelimit"
)

// Run checks that router serves as many requests as its limiter allows.
func Run(t *testing.T, router func(ratelimit.Limiter) http.Handler) {
	t.Helper()
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}))
	server := httptest.NewServer(router(limiter))
	defer server.Close()
	for i, want := range []int{200, 200, 429} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/hello/you", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want || (want == 200) != (string(body) == "hello, you\n") {
			t.Errorf("request %d: status %d, body %q, error %v; want %d", i, resp.StatusCode, body, err, want)
		}
		if policy := resp.Header.Get("RateLimit-Policy"); policy != `"default";q=2;w=3600` {
			t.Errorf("request %d: RateLimit-Policy %q", i, policy)
		}
	}
}
