package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

func TestLimited(t *testing.T) {
	clk := clock.NewMock()
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 2, Per: 5 * time.Second}}, // one each 2.5 s
		ratelimit.WithClock(clk)))
	handler := limited(limiter, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello")
	}))

	for i, step := range []struct {
		after      time.Duration
		from       string
		status     int
		retryAfter string
	}{
		{0, "192.0.2.1:1000", 200, ""},
		{0, "192.0.2.1:1001", 200, ""},                       // another port, the same client
		{0, "192.0.2.1:1000", 429, "3"},                      // 2.5 s, rounded up
		{0, "[2001:db8::1]:1000", 200, ""},                   // another client
		{0, "@", 200, ""},                                    // no port: a Unix socket
		{500 * time.Millisecond, "192.0.2.1:1000", 429, "2"}, // 2 s, and not 3
		{1999 * time.Millisecond, "192.0.2.1:1000", 429, "1"},
		{time.Millisecond, "192.0.2.1:1000", 200, ""},
		{0, "192.0.2.1:1000", 429, "3"},
	} {
		clk.Add(step.after)
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = step.from
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != step.status || w.Header().Get("Retry-After") != step.retryAfter {
			t.Errorf("step %d, %s: status %d, Retry-After %q; want %d, %q",
				i, step.from, w.Code, w.Header().Get("Retry-After"), step.status, step.retryAfter)
		}
	}
}

func TestLimitedOverTheNetwork(t *testing.T) {
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithClock(clock.NewMock())))
	server := httptest.NewServer(limited(limiter, http.NotFoundHandler()))
	defer server.Close()

	for i, want := range []int{404, 429} {
		resp, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("request %d: status %d, want %d", i, resp.StatusCode, want)
		}
		if got := resp.Header.Get("Retry-After"); want == 429 && got != "3600" {
			t.Errorf("request %d: Retry-After %q, want 3600", i, got)
		}
	}
}

// down is a limiter whose store fails while its failure policy lets all pass.
type down struct{ ratelimit.Limiter }

func (down) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	return ratelimit.Decision{Allowed: true, Degraded: true}, errors.New("the store is down")
}

func TestLimitedFollowsTheFailurePolicy(t *testing.T) {
	w := httptest.NewRecorder()
	limited(down{}, http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("status %d, want %d: the failing store's policy allowed it", w.Code, http.StatusNotFound)
	}
}
