package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ratelimit-go/ratelimit"
)

func TestRouters(t *testing.T) {
	for name, router := range routers {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(router(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}))))
			defer server.Close()
			for i, want := range []int{200, 200, 429} {
				resp, err := http.Get(server.URL + "/hello/you")
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
	}
}
