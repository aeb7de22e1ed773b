package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
)

// A client that sends at most ten requests to each host in any minute, and slows down as the host asks
// for. Its deadline of five seconds is too short for the third one to wait for its turn.
func ExampleTransport() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(8), Burst: 2}))
	c := &http.Client{Transport: &client.Transport{Limiter: limiter, Quota: client.RateLimit}}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for range 3 {
		req, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, err := c.Do(req)
		var turn *ratelimit.TurnError
		if errors.As(err, &turn) {
			fmt.Println("its turn is after the deadline:", turn.Wait > turn.Left)
			continue
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Status)
	}
	// Output:
	// 404 Not Found
	// 404 Not Found
	// its turn is after the deadline: true
}

// A client of GitHub, which refuses with status 403 and Retry-After when a secondary limit is exceeded.
func ExampleTransport_rest() {
	unlimited := ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}))
	transport := &client.Transport{
		Limiter: unlimited,
		Rest: func(resp *http.Response) time.Duration {
			if resp.StatusCode == http.StatusForbidden {
				return client.RetryAfter(resp)
			}
			return 0
		},
	}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	c := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	for range 2 {
		resp, err := c.Get(server.URL)
		if err != nil {
			fmt.Println("held back:", errors.Is(err, context.DeadlineExceeded))
			continue
		}
		resp.Body.Close()
		fmt.Println(resp.Status)
	}
	// Output:
	// 403 Forbidden
	// held back: true
}

// Clients of servers that say in fields of their own how many requests and tokens are left.
func ExampleHeaders() {
	openAI := client.Headers("X-RateLimit-*-Requests", "X-RateLimit-*-Tokens")
	anthropic := client.Headers("Anthropic-RateLimit-Requests-*", "Anthropic-RateLimit-Tokens-*")
	gitLab := client.Headers("RateLimit-*")

	resp := &http.Response{Header: http.Header{
		"X-Ratelimit-Limit-Requests":     {"60"},
		"X-Ratelimit-Remaining-Requests": {"59"},
		"X-Ratelimit-Reset-Requests":     {"1s"},
	}}
	fmt.Println(openAI(resp))
	fmt.Println(anthropic(resp))
	fmt.Println(gitLab(resp))
	// Output:
	// {59 1s 60 0s} true
	// {0 0s 0 0s} false
	// {0 0s 0 0s} false
}

// A client without a limit of its own that slows down as GitHub says in X-RateLimit-Remaining. GitHub
// has a quota of its own for searches, which is used up here.
func ExampleXRateLimit() {
	transport := &client.Transport{
		Limiter: ratelimit.Must(ratelimit.New(ratelimit.Unlimited{})),
		Quota:   client.XRateLimit,
		Key: func(r *http.Request) (string, error) {
			if strings.HasPrefix(r.URL.Path, "/search/") {
				return r.URL.Host + "/search", nil
			}
			return r.URL.Host, nil
		},
	}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "30")
		w.Header().Set("X-RateLimit-Remaining", "0")
		w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(time.Minute).Unix(), 10))
	}))
	defer server.Close()
	c := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	for _, path := range []string{"/search/code", "/search/issues", "/user"} {
		resp, err := c.Get(server.URL + path)
		if err != nil {
			fmt.Println(path, "is held back:", errors.Is(err, context.DeadlineExceeded))
			continue
		}
		resp.Body.Close()
		fmt.Println(path, resp.Status)
	}
	// Output:
	// /search/code 200 OK
	// /search/issues is held back: true
	// /user 200 OK
}

// A client without a limit of its own that slows down as the server asks for.
func ExampleTransport_quota() {
	unlimited := ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}))
	c := &http.Client{Transport: &client.Transport{Limiter: unlimited, Quota: client.RateLimit}}
	resp, err := c.Get("https://api.example.com/items")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
}

// A client of a protocol of its own waits for its turn, and tells what the server has answered.
func ExampleTurns() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(8), Burst: 2}))
	turns, err := client.NewTurns(limiter, false)
	if err != nil {
		log.Fatal(err)
	}
	send := func(context.Context) error { return errRefused }
	ask := func(ctx context.Context, key string) error {
		turn, err := turns.Wait(ctx, key, 1)
		if err != nil {
			return err
		}
		defer turn.End()
		err = send(ctx)
		switch {
		case err == nil:
			turn.Granted()
		case errors.Is(err, errRefused):
			turn.Refused(time.Minute)
		}
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	fmt.Println(ask(ctx, "a"))
	fmt.Println(errors.Is(ask(ctx, "a"), context.DeadlineExceeded))
	// Output:
	// refused
	// true
}

var errRefused = errors.New("refused")
