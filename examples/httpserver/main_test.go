package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/limitpage"
)

func TestHandler(t *testing.T) {
	page := limitpage.New()
	server := httptest.NewServer(handler(ratelimit.PerHour(1), page))
	defer server.Close()

	for i, want := range []int{200, 429} {
		resp, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("request %d: status %d, want %d", i, resp.StatusCode, want)
		}
		if got := resp.Header.Get("Retry-After"); (got == "3600") != (want == 429) {
			t.Errorf("request %d: Retry-After %q", i, got)
		}
		if got := resp.Header.Get("RateLimit-Policy"); got != `"default";q=1;w=3600` {
			t.Errorf("request %d: RateLimit-Policy %q", i, got)
		}
	}

	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/debug/ratelimit/?format=json", http.NoBody))
	for _, want := range []string{`"name":"clients"`, `"limit":"1/h"`, `"granted":1`, `"denied":1`, `"key":"127.0.0.1"`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the page has not %s: %s", want, w.Body)
		}
	}
}
