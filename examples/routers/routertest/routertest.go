// Package routertest tests the router examples.
package routertest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimit-go/ratelimit"
)

// modules are the routers' modules. A program depends on one of them.
var modules = []string{
	"github.com/gin-gonic/gin",
	"github.com/go-chi/chi/v5",
	"github.com/labstack/echo/v4",
}

// Run checks that router serves as many requests as its limiter allows, and that the
// program in the working directory imports the router module and no other one.
func Run(t *testing.T, module string, router func(ratelimit.Limiter) http.Handler) {
	t.Run("limits", func(t *testing.T) {
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
	})
	t.Run("imports", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
		if err != nil {
			t.Fatalf("go list -deps: %v\n%s", err, out)
		}
		packages := strings.Fields(string(out))
		for _, m := range modules {
			if slices.Contains(packages, m) != (m == module) {
				t.Errorf("imports %s: %v, want %v", m, m != module, m == module)
			}
		}
	})
}
