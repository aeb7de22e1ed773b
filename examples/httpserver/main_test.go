package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ratelimit-go/ratelimit"
)

func TestHandler(t *testing.T) {
	server := httptest.NewServer(handler(ratelimit.PerHour(1)))
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
}
