package client_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

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

// count returns how often it was asked.
func (s *scripted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

func answered(status int, retryAfter string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {retryAfter}}}
}

func TestTransportWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{start: time.Now()}
		c := &http.Client{Transport: &client.Transport{
			Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2})),
			Base:    server,
		}}
		get := func(ctx context.Context, url string) error {
			r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
			require.NoError(t, err)
			resp, err := c.Do(r)
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

// TestTransportHeedsServersClock has servers whose clocks are wrong: a date in Retry-After is to be
// compared with that in Date.
func TestTransportHeedsServersClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, wrong := range []time.Duration{-time.Hour, 0, time.Hour} {
			clock := time.Now().Add(wrong).UTC()
			answer := answered(429, clock.Add(7*time.Second).Format(http.TimeFormat))
			answer.Header.Set("Date", clock.Format(http.TimeFormat))
			server := &scripted{answers: []*http.Response{answer}, start: time.Now()}
			tr := &client.Transport{Limiter: unlimited, Base: server}
			for range 2 {
				_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
				require.NoError(t, err)
			}
			assert.Equal(t, []time.Duration{0, 7 * time.Second}, server.asked, "wrong by %v", wrong)
		}
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
			{answered(503, ""), 0},
			{answered(503, "-5"), 0},
			{answered(503, "soon"), 0},
			{answered(200, "7"), 0},
			{answered(500, "7"), 0},
		} {
			server := &scripted{answers: []*http.Response{tt.answer}, start: time.Now()}
			tr := &client.Transport{Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)})), Base: server}
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

// TestTransportHeedsRetryAfterAsItIsSent has values of Retry-After that real servers send. One that says to
// wait for no time is no reason to come back at once after a refusal.
func TestTransportHeedsRetryAfterAsItIsSent(t *testing.T) {
	for _, tt := range []struct {
		values []string
		want   time.Duration
	}{
		{[]string{"299.997"}, 300 * time.Second},
		{[]string{"2.0"}, 2 * time.Second},
		{[]string{"60.0"}, time.Minute},
		{[]string{"60s"}, time.Minute},
		{[]string{"60, 60"}, time.Minute},
		{[]string{"5", "60"}, time.Minute},
		{[]string{"60", "soon"}, time.Minute},
		{[]string{"soon, 7"}, 7 * time.Second},
		{[]string{" 7 "}, 7 * time.Second},
		{[]string{"0", "Sat, 01 Jan 2000 00:01:00 GMT"}, time.Minute}, // synctest begins in the year 2000
		{[]string{"99999999999999999999999.5"}, 24 * time.Hour},
		{[]string{"0"}, 0},
		{[]string{"0.0"}, 0},
		{[]string{"-7"}, 0},
		{[]string{"Fri, 31 Dec 1999 23:59:00 GMT"}, 0},
		{[]string{"1e3"}, 0},
		{[]string{"0x10"}, 0},
		{[]string{"1.2.3"}, 0},
		{[]string{"Inf", "NaN", "s", "."}, 0},
		{nil, 0},
	} {
		for _, status := range []int{429, 503} {
			synctest.Test(t, func(t *testing.T) {
				answer := answered(status, "")
				answer.Header["Retry-After"] = tt.values
				server := &scripted{answers: []*http.Response{answer}, start: time.Now()}
				tr := &client.Transport{Limiter: unlimited, Base: server}
				for range 2 {
					_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
					require.NoError(t, err)
				}
				if tt.want == 0 && status == 429 {
					assert.GreaterOrEqual(t, server.asked[1], time.Second, "%q", tt.values)
					assert.Less(t, server.asked[1], 1500*time.Millisecond, "%q", tt.values)
					return
				}
				assert.Equal(t, tt.want, server.asked[1], "%d %q", status, tt.values)
			})
		}
	}
}

// TestTransportRest has a server that refuses with other statuses.
func TestTransportRest(t *testing.T) {
	for status, want := range map[int]time.Duration{403: time.Minute, 420: time.Hour, 502: 0, 429: 7 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			answer := answered(status, "60")
			if status == 429 {
				answer = answered(status, "7")
			}
			server := &scripted{answers: []*http.Response{answer}, start: time.Now()}
			tr := &client.Transport{Limiter: unlimited, Base: server, Rest: func(resp *http.Response) time.Duration {
				switch resp.StatusCode {
				case 403:
					return client.RetryAfter(resp)
				case 420:
					return time.Hour
				}
				return -time.Second
			}}
			for range 2 {
				_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
				require.NoError(t, err)
			}
			assert.Equal(t, []time.Duration{0, want}, server.asked, status)
		})
	}
}

// TestTransportStaysWithinALimit checks that a client whose burst and rate together are the limit of a server is never
// refused, also in its first minute.
func TestTransportStaysWithinALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(8), Burst: 2}))
		c := &http.Client{Transport: &client.Transport{Limiter: limiter, Quota: client.RateLimit}}

		ofServer := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 10, Window: time.Minute}))
		server := httplimit.Middleware(ofServer, httplimit.WithHeaders(httplimit.None))(http.NotFoundHandler())
		c.Transport.(*client.Transport).Base = roundTripper(func(r *http.Request) *http.Response {
			w := httptest.NewRecorder()
			server.ServeHTTP(w, r)
			return w.Result()
		})
		for begin := time.Now(); time.Since(begin) < 5*time.Minute; {
			r := httptest.NewRequest(http.MethodGet, "http://example.com", nil)
			r.RequestURI = "" // that of a client has none
			resp, err := c.Do(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusNotFound, resp.StatusCode, "after %v", time.Since(begin))
		}
	})
}

// TestTransportHeedsRetryAfterOfOthers checks that requests honour the Retry-After of a response to
// another one that comes while they wait for the Limiter.
func TestTransportHeedsRetryAfterOfOthers(t *testing.T) {
	for _, heed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := &scripted{answers: []*http.Response{answered(429, "60")}, start: time.Now()}
			tr := &client.Transport{
				Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1})), Quota: heeding(heed),
				Base: roundTripper(func(r *http.Request) *http.Response {
					resp, _ := server.RoundTrip(r)
					time.Sleep(time.Second / 2)
					return resp
				}),
			}
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://EXAMPLE.com", nil))
					assert.NoError(t, err)
				})
			}
			wg.Wait()
			const s = time.Second
			assert.Equal(t, []time.Duration{0, 60*s + s/2, 61*s + s/2}, server.asked)
			tr.CloseIdleConnections()
		})
	}
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
		tr := &client.Transport{Limiter: l, Base: &scripted{start: time.Now()}}
		_, err := tr.RoundTrip(httptest.NewRequest("GET", tt.a, nil))
		require.NoError(t, err)
		_, err = tr.RoundTrip(httptest.NewRequest("GET", tt.b, nil))
		assert.Equal(t, tt.same, err != nil, "%s and %s", tt.a, tt.b)
	}
	tr := &client.Transport{Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))}
	_, err := tr.RoundTrip(&http.Request{Method: "GET"})
	assert.ErrorContains(t, err, "no URL")
}

// TestTransportForgetsHosts has more servers send Retry-After than are remembered.
func TestTransportForgetsHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &client.Transport{
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
	for want, tr := range map[string]*client.Transport{
		"Limiter is nil":   {},
		"no key":           {Limiter: l, Key: key.Header("X-API-Key")},
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

// TestTransportNilResponse has a Base that returns neither a response nor an error, which net/http
// reports.
func TestTransportNilResponse(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{ratelimit.TokenBucket{Rate: ratelimit.PerHour(9)}, ratelimit.InFlight{Limit: 1, Timeout: time.Hour}} {
		tr := &client.Transport{
			Limiter: ratelimit.Must(ratelimit.New(alg)),
			Quota:   client.RateLimit,
			Base:    roundTripper(func(*http.Request) *http.Response { return nil }),
		}
		for range 2 {
			_, err := (&http.Client{Transport: tr}).Get("http://example.com")
			assert.ErrorContains(t, err, "nil *Response")
		}
	}
}

// TestTransportTimesOut checks that an error because of a deadline is a timeout by
// net/http's convention.
func TestTransportTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))
		plenty := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}))
		for name, tr := range map[string]*client.Transport{
			"the turn is too late": {Limiter: l, Base: roundTripper(func(*http.Request) *http.Response { return answered(200, "") })},
			"the server rests":     {Limiter: plenty, Base: roundTripper(func(*http.Request) *http.Response { return answered(429, "60") })},
		} {
			c := &http.Client{Transport: tr, Timeout: time.Second}
			resp, err := c.Get("http://example.com")
			require.NoError(t, err, name)
			resp.Body.Close()
			_, err = c.Get("http://example.com")
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
	_, err := (&client.Transport{Limiter: (*nilLimiter)(nil)}).RoundTrip(r)
	assert.ErrorContains(t, err, "Limiter is nil")
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))
	_, err = (&client.Transport{Limiter: l, Base: (*http.Transport)(nil)}).RoundTrip(r)
	assert.Error(t, err, "no server listens there")
}

// TestObserverSeesTransport checks that an observer sees the waits of a client for its turns, and
// not those that the server asks for.
func TestObserverSeesTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithObserver(
			func(_ context.Context, o ratelimit.Observation) {
				seen = append(seen, fmt.Sprint(o.Call, " ", o.Outcome))
			})))
		tr := &client.Transport{Limiter: l, Base: &scripted{answers: []*http.Response{answered(429, "7200"), answered(200, "")}}}
		for range 3 {
			resp, err := tr.RoundTrip(httptest.NewRequest(http.MethodGet, "http://example.com/", http.NoBody))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		assert.Equal(t, []string{"wait granted", "wait granted", "wait delayed"}, seen)
	})
}
