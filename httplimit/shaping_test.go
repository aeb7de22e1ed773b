package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestShaping sends ten requests at once through a bucket that leaks one a second and
// holds six: those whose turn is within three seconds are served one a second, and
// the others are refused.
func TestShaping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 6}))
		h := httplimit.Middleware(l, httplimit.WithShaping(3*time.Second))(ok)
		start := time.Now()
		var mu sync.Mutex // protects served and refused
		served := make(map[time.Duration]int)
		refused := make(map[string]int)
		for range 10 {
			go func() {
				resp := serve(h, from("192.0.2.1:1"))
				mu.Lock()
				defer mu.Unlock()
				if resp.StatusCode == 200 {
					served[time.Since(start)]++
				} else {
					assert.Zero(t, time.Since(start), "a refusal does not wait")
					refused[resp.Header.Get("Retry-After")]++
				}
			}()
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, map[time.Duration]int{0: 1, time.Second: 1, 2 * time.Second: 1, 3 * time.Second: 1}, served)
		assert.Equal(t, map[string]int{"1": 6}, refused, "in a second, the wait is within three again")
	})
}

// TestShapingGivesPlacesBack checks that a waiting client that disconnects gives its
// place back.
func TestShapingGivesPlacesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 6}))
		reached := false
		h := httplimit.Middleware(l, httplimit.WithShaping(time.Minute))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reached = true }))
		require.True(t, l.AllowN("192.0.2.1", 4))
		ctx, leave := context.WithCancel(t.Context())
		before, err := l.Peek(ctx, "192.0.2.1")
		require.NoError(t, err)
		done := make(chan int)
		go func() { done <- serve(h, from("192.0.2.1:1").WithContext(ctx)).StatusCode }()
		synctest.Wait()
		leave()
		assert.Equal(t, 503, <-done)
		assert.False(t, reached)
		after, err := l.Peek(t.Context(), "192.0.2.1")
		require.NoError(t, err)
		assert.Equal(t, before, after)
	})
}

// TestShapingWithoutAQueue holds requests for the next token.
func TestShapingWithoutAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
		h := httplimit.Middleware(l, httplimit.WithShaping(1500*time.Millisecond))(ok)
		start := time.Now()
		for i := range 3 {
			resp := serve(h, from("192.0.2.1:1"))
			assert.Equal(t, 200, resp.StatusCode)
			assert.Equal(t, time.Duration(i)*time.Second, time.Since(start))
			assert.Equal(t, `"default";r=0;t=1`, resp.Header.Get("RateLimit"))
		}
		require.NoError(t, l.Reset(t.Context(), "192.0.2.1"))
		_, err := l.Reserve(t.Context(), "192.0.2.1", 1)
		require.NoError(t, err)
		_, err = l.Reserve(t.Context(), "192.0.2.1", 1) // in a second
		require.NoError(t, err)
		resp := serve(h, from("192.0.2.1:1")) // in two
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "1", resp.Header.Get("Retry-After"), "half a second, rounded up")

		two := httplimit.Middleware(l, httplimit.WithShaping(time.Hour), httplimit.WithCost(func(*http.Request) int { return 2 }))(ok)
		resp = serve(two, from("192.0.2.1:1"))
		assert.Equal(t, 429, resp.StatusCode, "two never come")
		assert.Empty(t, resp.Header.Get("Retry-After"))
	})
}

// TestShapingRetryAfter checks that a client that retries after Retry-After passes,
// and not earlier, whatever the bucket is wrapped in.
func TestShapingRetryAfter(t *testing.T) {
	bucket := ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 5}
	other := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}
	own := func(alg ratelimit.Algorithm) ratelimit.Option {
		return ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })
	}
	limiters := map[string]func() (ratelimit.Limiter, error){
		"LeakyBucket": func() (ratelimit.Limiter, error) { return ratelimit.New(bucket) },
		"All":         func() (ratelimit.Limiter, error) { return ratelimit.New(ratelimit.All{other, bucket}) },
		"WithLimits":  func() (ratelimit.Limiter, error) { return ratelimit.New(other, own(bucket)) },
		"WithLimits to an All": func() (ratelimit.Limiter, error) {
			return ratelimit.New(other, own(ratelimit.All{bucket, other}))
		},
		"wrapped": func() (ratelimit.Limiter, error) {
			l, err := ratelimit.New(bucket)
			return wrapped{l}, err
		},
	}
	for name, tt := range map[string]struct {
		cost, used int
		most, left time.Duration // that the middleware and the request's context allow
		want       string
	}{
		"no room, and then a turn in time": {1, 5, time.Hour, 0, "60"},
		"no room for so many":              {3, 5, time.Hour, 0, "180"},
		"room, but a turn too late":        {1, 5, time.Minute, 0, "240"},
		"a turn too late":                  {1, 4, time.Minute, 0, "180"},
		"the request's time is too short":  {1, 2, time.Hour, 30*time.Second + 1, "90"},
	} {
		for kind, limiter := range limiters {
			synctest.Test(t, func(t *testing.T) {
				l, err := limiter()
				require.NoError(t, err)
				require.True(t, l.AllowN("192.0.2.1", tt.used))
				h := httplimit.Middleware(l, httplimit.WithShaping(tt.most), httplimit.WithCost(func(*http.Request) int { return tt.cost }))(ok)
				ask := func() *http.Response {
					ctx := t.Context()
					if tt.left > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, tt.left)
						defer cancel()
					}
					return serve(h, from("192.0.2.1:1").WithContext(ctx))
				}
				resp := ask()
				assert.Equal(t, 429, resp.StatusCode, "%s, %s", kind, name)
				assert.Equal(t, tt.want, resp.Header.Get("Retry-After"), "%s, %s", kind, name)
				wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
				require.NoError(t, err)
				time.Sleep(time.Duration(wait)*time.Second - 2)
				assert.Equal(t, 429, ask().StatusCode, "%s, %s: before, it is refused", kind, name)
				time.Sleep(2 * time.Nanosecond)
				assert.Equal(t, 200, ask().StatusCode, "%s, %s", kind, name)
			})
		}
	}
}

// A wrapped limiter hides its algorithm.
type wrapped struct{ ratelimit.Limiter }

// TestShapingFollowsTheLimitersClock checks that turns and waits use that clock.
func TestShapingFollowsTheLimitersClock(t *testing.T) {
	clk := clock.NewMock() // shows 1970
	l, err := ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 10}, ratelimit.WithClock(clk))
	require.NoError(t, err)
	require.True(t, l.AllowN("192.0.2.1", 3))
	h := httplimit.Middleware(l, httplimit.WithShaping(2*time.Second))(ok)
	resp := serve(h, from("192.0.2.1:1"))
	require.Equal(t, 429, resp.StatusCode, "its turn is in three seconds")
	require.Equal(t, "1", resp.Header.Get("Retry-After"))

	clk.Add(time.Second)
	served := make(chan int, 1)
	go func() { served <- serve(h, from("192.0.2.1:1")).StatusCode }()
	for inLine := false; !inLine; runtime.Gosched() {
		d, err := l.Peek(t.Context(), "192.0.2.1")
		require.NoError(t, err)
		inLine = d.Remaining == 7
	}
	for {
		select {
		case status := <-served:
			assert.Equal(t, 200, status)
			assert.False(t, clk.Now().Before(time.Unix(3, 0)))
			return
		default:
			require.Less(t, clk.Now().Unix(), int64(1000), "it is held for ever")
			clk.Add(100 * time.Millisecond)
		}
	}
}

// TestShapingRefusalSpendsNothing lets room appear while the middleware asks.
func TestShapingRefusalSpendsNothing(t *testing.T) {
	clk := &passing{Clock: storetest.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	l, err := ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 5}, ratelimit.WithClock(clk))
	require.NoError(t, err)
	require.True(t, l.AllowN("192.0.2.1", 5))
	start := clk.Now()
	clk.step = 500 * time.Millisecond
	h := httplimit.Middleware(l, httplimit.WithShaping(time.Second))(ok)
	for range 3 {
		require.Equal(t, 429, serve(h, from("192.0.2.1:1")).StatusCode)
	}
	clk.step = 0
	d, err := l.Peek(t.Context(), "192.0.2.1")
	require.NoError(t, err)
	assert.Equal(t, 5*time.Second, clk.Now().Sub(start)+d.ResetAfter, "five events leak out in five seconds")
}

// A passing clock advances each time it is read.
type passing struct {
	*storetest.Clock
	step time.Duration
}

func (c *passing) Since(t time.Time) time.Duration {
	c.Advance(c.step)
	return c.Clock.Since(t)
}

// TestShapingWithASlowStore checks that the bound on the delay does not apply to the
// store's answer.
func TestShapingWithASlowStore(t *testing.T) {
	for _, tt := range []struct {
		policy ratelimit.FailurePolicy
		want   int
	}{{ratelimit.FailOpen, 200}, {ratelimit.FailClosed, 429}} {
		synctest.Test(t, func(t *testing.T) {
			l, err := ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithStore(slow{}), ratelimit.WithFailurePolicy(tt.policy))
			require.NoError(t, err)
			reported := 0
			report := httplimit.WithStoreError(func(*http.Request, error) { reported++ })
			resp := serve(httplimit.Middleware(l, httplimit.WithShaping(time.Second), report)(ok), from("192.0.2.1:1"))
			assert.Equal(t, tt.want, resp.StatusCode)
			assert.Equal(t, 1, reported)

			// A request whose deadline passes while the store is silent is not the
			// client's fault either.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			resp = serve(httplimit.Middleware(l, report)(ok), from("192.0.2.1:1").WithContext(ctx))
			assert.Equal(t, tt.want, resp.StatusCode)
			assert.Equal(t, 2, reported)
		})
	}
}

// A slow store fails after two seconds, or when its caller gives up.
type slow struct{}

func (slow) Open(string, *ratelimit.Transition) (ratelimit.States, error) { return slow{}, nil }

func (slow) Apply(ctx context.Context, _ string, _ *ratelimit.Transition, _ ratelimit.Request) (ratelimit.Result, error) {
	select {
	case <-time.After(2 * time.Second):
		return ratelimit.Result{}, errors.New("no connection")
	case <-ctx.Done():
		return ratelimit.Result{}, ctx.Err()
	}
}

func (slow) Reset(context.Context, string) error { return nil }

// A scripted server answers with the given responses, and records when it was asked.
type scripted struct {
	mu      sync.Mutex // protects what follows
	answers []*http.Response
	asked   []time.Duration
	start   time.Time
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Since(s.start))
	resp := &http.Response{StatusCode: 200, Header: http.Header{}}
	if len(s.answers) > 0 {
		resp, s.answers = s.answers[0], s.answers[1:]
	}
	resp.Body = http.NoBody
	return resp, nil
}

func answered(status int, retryAfter string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {retryAfter}}}
}

func TestTransportWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{start: time.Now()}
		client := &http.Client{Transport: &httplimit.Transport{
			Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2})),
			Base:    server,
		}}
		get := func(ctx context.Context, url string) error {
			r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
			require.NoError(t, err)
			resp, err := client.Do(r)
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
		for range 4 {
			require.NoError(t, get(t.Context(), "http://one.example/x"))
		}
		require.NoError(t, get(t.Context(), "http://two.example/x"), "another host has a limit of its own")
		assert.Equal(t, []time.Duration{0, 0, time.Second, 2 * time.Second, 2 * time.Second}, server.asked)

		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		start := time.Now()
		assert.ErrorIs(t, get(ctx, "http://one.example/x"), context.DeadlineExceeded)
		assert.Zero(t, time.Since(start), "it would not be its turn in time")
		require.NoError(t, get(t.Context(), "http://one.example/x"))
		assert.Equal(t, time.Second, time.Since(start), "and it took no other request's turn")
	})
}

func TestTransportHeedsRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		for _, tt := range []struct {
			answer *http.Response
			want   time.Duration
		}{
			{answered(429, "7"), 7 * time.Second},
			{answered(503, "7"), 7 * time.Second},
			{answered(429, start.Add(time.Hour).UTC().Format(http.TimeFormat)), time.Hour},
			{answered(429, "99999999999999999999"), 24 * time.Hour}, // the longest that is heeded
			{answered(429, "0"), 0},
			{answered(429, ""), 0},
			{answered(429, "-5"), 0},
			{answered(429, "soon"), 0},
			{answered(429, start.Add(-time.Hour).UTC().Format(http.TimeFormat)), 0},
			{answered(200, "7"), 0},
			{answered(500, "7"), 0},
		} {
			server := &scripted{answers: []*http.Response{tt.answer}, start: time.Now()}
			tr := &httplimit.Transport{Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)})), Base: server}
			ask := func(ctx context.Context, host string) error {
				_, err := tr.RoundTrip(httptest.NewRequestWithContext(ctx, "GET", "http://"+host, nil))
				return err
			}
			name := tt.answer.Header.Get("Retry-After")
			before := time.Since(start)
			require.NoError(t, ask(t.Context(), "one"), "the answer is the caller's")
			if tt.want > 0 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				require.ErrorIs(t, ask(ctx, "one"), context.DeadlineExceeded)
				assert.Equal(t, before, time.Since(start), "it is clear at once")
				cancel()
				leaving, leave := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, leave)
				require.ErrorIs(t, ask(leaving, "one"), context.Canceled)
			}
			require.NoError(t, ask(t.Context(), "two"))
			require.NoError(t, ask(t.Context(), "one"))
			want := tt.want
			if want == time.Hour {
				want -= before // a date is the same for all
			}
			assert.Equal(t, want, server.asked[len(server.asked)-1], "%d %q", tt.answer.StatusCode, name)
		}
	})
}

// TestTransportHeedsRetryAfterOfOthers checks that waiting requests honour the
// Retry-After of a response to another one.
func TestTransportHeedsRetryAfterOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{answers: []*http.Response{answered(429, "60")}, start: time.Now()}
		tr := &httplimit.Transport{Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1})), Base: server}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://EXAMPLE.com", nil))
				assert.NoError(t, err)
			})
			synctest.Wait()
		}
		wg.Wait()
		assert.Equal(t, []time.Duration{0, 60 * time.Second, 61 * time.Second}, server.asked)
		tr.CloseIdleConnections()
	})
}

// TestTransportKeys checks which requests share a limit by default.
func TestTransportKeys(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"http://example.com/a", "http://EXAMPLE.com:80/b", true},
		{"https://example.com", "https://example.com:443", true},
		{"https://[2001:db8::1]", "https://[2001:DB8::1]:443", true},
		{"http://example.com:443", "https://example.com:443", false},
		{"http://example.com", "http://example.com:8080", false},
		{"http://example.com", "http://www.example.com", false},
	} {
		l := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1), Capacity: 1}))
		tr := &httplimit.Transport{Limiter: l, Base: &scripted{start: time.Now()}}
		_, err := tr.RoundTrip(httptest.NewRequest("GET", tt.a, nil))
		require.NoError(t, err)
		_, err = tr.RoundTrip(httptest.NewRequest("GET", tt.b, nil))
		assert.Equal(t, tt.same, err != nil, "%s and %s", tt.a, tt.b)
	}
	tr := &httplimit.Transport{Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))}
	_, err := tr.RoundTrip(&http.Request{Method: "GET"})
	assert.ErrorContains(t, err, "no URL")
}

// TestTransportForgetsHosts has more servers send Retry-After than are remembered.
func TestTransportForgetsHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &httplimit.Transport{
			Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)})),
			Base:    roundTripper(func(*http.Request) *http.Response { return answered(429, "60") }),
		}
		ask := func(i int) (waited time.Duration) {
			start := time.Now()
			_, err := tr.RoundTrip(httptest.NewRequest("GET", fmt.Sprintf("http://%d.example", i), nil))
			require.NoError(t, err)
			return time.Since(start)
		}
		for i := range 5000 {
			require.Zero(t, ask(i))
		}
		assert.Zero(t, ask(4999), "one too many is not held back")
		assert.Equal(t, time.Minute, ask(0), "the first are")
		ask(4999)
		assert.Equal(t, time.Minute, ask(4999), "there is room again")
	})
}

type roundTripper func(*http.Request) *http.Response

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

// closing records whether it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

func TestTransportFails(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))
	spent := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1), Capacity: 1}))
	require.True(t, spent.Allow("example.com"))
	for want, tr := range map[string]*httplimit.Transport{
		"Limiter is nil":   {},
		"no key":           {Limiter: l, Key: httplimit.Header("X-API-Key")},
		"the key is empty": {Limiter: l, Key: func(*http.Request) (string, error) { return "", nil }},
		"queue full":       {Limiter: spent},
	} {
		body := &closing{Reader: strings.NewReader("x")}
		r := httptest.NewRequest("POST", "http://example.com", nil)
		r.Body = body
		_, err := tr.RoundTrip(r)
		assert.ErrorContains(t, err, want)
		assert.True(t, body.closed, "%s: a RoundTripper closes the body", want)
	}
}

// TestTransportTimesOut checks that an error because of a deadline is a timeout by
// net/http's convention.
func TestTransportTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))
		plenty := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}))
		for name, tr := range map[string]*httplimit.Transport{
			"the turn is too late": {Limiter: l, Base: roundTripper(func(*http.Request) *http.Response { return answered(200, "") })},
			"the server rests":     {Limiter: plenty, Base: roundTripper(func(*http.Request) *http.Response { return answered(429, "60") })},
		} {
			client := &http.Client{Transport: tr, Timeout: time.Second}
			resp, err := client.Get("http://example.com")
			require.NoError(t, err, name)
			resp.Body.Close()
			_, err = client.Get("http://example.com")
			var timeout net.Error
			require.ErrorAs(t, err, &timeout, name)
			assert.True(t, timeout.Timeout(), "%s: %v", name, err)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = tr.RoundTrip(httptest.NewRequestWithContext(ctx, "GET", "http://example.com", nil))
			require.ErrorAs(t, err, &timeout, name)
			assert.True(t, timeout.Timeout(), "%s: %v", name, err)
		}
	})
}

// TestTransportTypedNils checks that an interface that holds a nil counts as nil.
func TestTransportTypedNils(t *testing.T) {
	r := httptest.NewRequest("GET", "http://127.0.0.1:1", nil)
	_, err := (&httplimit.Transport{Limiter: (*nilLimiter)(nil)}).RoundTrip(r)
	assert.ErrorContains(t, err, "Limiter is nil")
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))
	_, err = (&httplimit.Transport{Limiter: l, Base: (*http.Transport)(nil)}).RoundTrip(r)
	assert.Error(t, err, "no server listens there")
}
