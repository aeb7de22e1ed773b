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
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
)

// A handled RoundTripper passes requests to a handler. Each way takes half of the latency.
type handled struct {
	http.Handler
	latency time.Duration
}

func (h handled) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(h.latency / 2)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	time.Sleep(h.latency / 2)
	return w.Result(), nil
}

var unlimited = ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}))

// TestHeedAvoidsRefusals sends 300 requests, as fast as it can, to a server with a limit of 60 a
// minute, which grants them within four minutes. None is refused, and they take little longer.
func TestHeedAvoidsRefusals(t *testing.T) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}
	window := ratelimit.FixedWindow{Limit: 60, Window: time.Minute}
	sliding := ratelimit.SlidingWindow{Limit: 60, Window: time.Minute}
	log := ratelimit.SlidingLog{Limit: 60, Window: time.Minute}
	rolling := ratelimit.RollingWindow{Quota: 60, Window: time.Minute, Period: time.Second}
	// the former is 90 % of the bucket; the latter if the quota comes back at once, or gradually,
	// but t says when all of it is
	const near, far = 270 * time.Second, 380 * time.Second
	for name, tt := range map[string]struct {
		alg     ratelimit.Algorithm
		headers httplimit.Headers
		senders int
		latency time.Duration
		took    time.Duration // if there is one sender, exactly, as recorded; otherwise at most
	}{
		"bucket":              {bucket, httplimit.Standard, 1, 0, 251_750 * time.Millisecond},
		"bucket, draft 7":     {bucket, httplimit.Draft7, 1, 0, 251_750 * time.Millisecond},
		"bucket, concurrent":  {bucket, httplimit.Standard, 10, 0, near},
		"window":              {window, httplimit.Standard, 1, 0, 293_161_904_757 * time.Nanosecond},
		"window, concurrent":  {window, httplimit.Standard, 10, 0, far},
		"sliding":             {sliding, httplimit.Standard, 1, 0, 351_250 * time.Millisecond},
		"sliding, concurrent": {sliding, httplimit.Standard, 10, 0, far},
		"sliding, under way":  {sliding, httplimit.Standard, 30, time.Second, far},
		"log":                 {log, httplimit.Standard, 1, 0, 327_928_571_426 * time.Nanosecond},
		"log, concurrent":     {log, httplimit.Standard, 10, 0, far},
		"log, under way":      {log, httplimit.Standard, 30, time.Second, far},
		"rolling":             {rolling, httplimit.Standard, 1, 0, 326_857_142_855 * time.Nanosecond},
		"rolling, concurrent": {rolling, httplimit.Standard, 10, 0, far},
		"rolling, under way":  {rolling, httplimit.Standard, 30, time.Second, far},
		"bucket, under way":   {bucket, httplimit.Standard, 30, time.Second, near},
		"window, under way":   {window, httplimit.Standard, 30, time.Second, far},
		"window, far away":    {window, httplimit.Draft7, 50, 10 * time.Second, far},
		"all":                 {ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 10_000, Window: 24 * time.Hour}}, httplimit.Standard, 10, 0, near},
		"all, draft 7":        {ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 10_000, Window: 24 * time.Hour}}, httplimit.Draft7, 10, 0, near},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(tt.alg))
				tr := &client.Transport{
					Limiter: unlimited,
					Quota:   client.RateLimit,
					Base:    handled{httplimit.Middleware(l, httplimit.WithHeaders(tt.headers))(ok), tt.latency},
				}
				start := time.Now()
				const requests = 300
				refused := make([]int, tt.senders)
				var wg sync.WaitGroup
				for i := range tt.senders {
					wg.Go(func() {
						for range requests / tt.senders {
							resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
							if assert.NoError(t, err) && resp.StatusCode != 200 {
								refused[i]++
							}
						}
					})
				}
				wg.Wait()
				assert.Equal(t, make([]int, tt.senders), refused)
				took := time.Since(start)
				if tt.senders == 1 {
					assert.Equal(t, tt.took, took)
					return
				}
				// What happens at one instant happens in any order, and what a response tells depends on that.
				assert.GreaterOrEqual(t, took, 4*time.Minute, "60 of them are granted at once, and 60 more in each minute")
				assert.LessOrEqual(t, took, tt.took)
			})
		})
	}
}

// TestHeedTogether sends more requests together than the limit allows: their responses come
// together, too, and each says that the quota is back later than the one before.
func TestHeedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5}))
		tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: handled{httplimit.Middleware(l)(ok), 10 * time.Millisecond}}
		var refused atomic.Int64
		ask := func() {
			resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			if assert.NoError(t, err) && resp.StatusCode != 200 {
				assert.Equal(t, 429, resp.StatusCode)
				refused.Add(1)
			}
		}
		ask() // to know the limit
		start := time.Now()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range 5 {
					ask()
				}
			})
		}
		wg.Wait()
		// What happens at one instant happens in any order, and what a response tells depends on that.
		assert.LessOrEqual(t, refused.Load(), int64(5), "a response may come in the instant in which its quota is used")
		later := 101 - refused.Load() - 5 // are granted after the burst, one a second
		assert.GreaterOrEqual(t, time.Since(start), time.Duration(later)*time.Second, "the server has a limit")
		assert.LessOrEqual(t, time.Since(start), 2*time.Minute)
	})
}

// TestHeedWhileTheLimiterWaits lets requests wait in the limiter when a response says that none is left.
func TestHeedWhileTheLimiterWaits(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"window":   ratelimit.FixedWindow{Limit: 5, Window: 30 * time.Second, Start: ratelimit.StartOnFirstEvent},
		"log":      ratelimit.SlidingLog{Limit: 5, Window: 30 * time.Second},
		"interval": ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 5, Per: 30 * time.Second}, Refill: ratelimit.RefillInterval},
	} {
		for _, own := range []ratelimit.Algorithm{
			ratelimit.TokenBucket{Rate: ratelimit.Every(2 * time.Second)},
			ratelimit.All{ratelimit.InFlight{Limit: 1, Timeout: time.Hour}, ratelimit.TokenBucket{Rate: ratelimit.Every(2 * time.Second)}},
		} {
			t.Run(fmt.Sprintf("%s, %T", name, own), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tr := &client.Transport{
						Limiter: ratelimit.Must(ratelimit.New(own)), Quota: client.RateLimit,
						Base: handled{httplimit.Middleware(ratelimit.Must(ratelimit.New(alg)))(ok), 500 * time.Millisecond},
					}
					start := time.Now()
					var wg sync.WaitGroup
					for range 12 {
						wg.Go(func() {
							resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
							if assert.NoError(t, err) {
								assert.Equal(t, 200, resp.StatusCode)
								resp.Body.Close()
							}
						})
					}
					wg.Wait()
					assert.Less(t, time.Since(start), 90*time.Second)
				})
			})
		}
	}
}

// TestHeedMoreQuota has servers that say when there is more quota, and not when all of it is back. It
// sends as many requests as it can.
func TestHeedMoreQuota(t *testing.T) {
	for _, latency := range []time.Duration{0, 50 * time.Millisecond, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
			server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				d, err := l.Take(r.Context(), "", 1)
				assert.NoError(t, err)
				w.Header().Set("RateLimit-Policy", `"a";q=60;w=60`)
				w.Header().Set("RateLimit", fmt.Sprintf(`"a";r=%d;t=1`, d.Remaining))
				if !d.Allowed {
					w.WriteHeader(429)
				}
			})
			tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: handled{server, latency}}
			ask := func() (refused bool) {
				resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
				return assert.NoError(t, err) && resp.StatusCode == 429
			}
			ask() // to know the limit
			start := time.Now()
			var refused atomic.Int32
			var wg sync.WaitGroup
			for range 45 {
				wg.Go(func() {
					for range 10 {
						if ask() {
							refused.Add(1)
						}
					}
				})
			}
			wg.Wait()
			assert.Zero(t, refused.Load(), "latency %v", latency)
			assert.Less(t, time.Since(start), 7*time.Minute, "450 requests, of which the limit allows 60 a minute")
		})
	}
}

// TestHeedIdle sends many requests at once after a client was idle: all that was left is left still.
func TestHeedIdle(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket": ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)},
		"window": ratelimit.FixedWindow{Limit: 60, Window: time.Minute},
		"log":    ratelimit.SlidingLog{Limit: 60, Window: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const latency = 100 * time.Millisecond
				l := ratelimit.Must(ratelimit.New(alg))
				tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: handled{httplimit.Middleware(l)(ok), latency}}
				ask := func() {
					resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
					if assert.NoError(t, err) {
						assert.Equal(t, 200, resp.StatusCode)
					}
				}
				time.Sleep(20 * time.Second) // so that a window ends before it is over
				ask()
				time.Sleep(90 * time.Second)
				start := time.Now()
				var wg sync.WaitGroup
				for range 30 {
					wg.Go(ask)
				}
				wg.Wait()
				assert.Equal(t, latency, time.Since(start))
			})
		})
	}
}

// said returns a response with the given status, RateLimit and Retry-After.
func said(status int, rateLimit, retryAfter string, policy ...string) *http.Response {
	resp := answered(status, retryAfter)
	resp.Header.Set("RateLimit", rateLimit)
	resp.Header["Ratelimit-Policy"] = policy
	return resp
}

// aged returns a response of a cache.
func aged(age ...string) *http.Response {
	resp := said(200, `"a";r=0;t=10`, "")
	resp.Header["Age"] = age
	return resp
}

// TestHeed has a response, and when requests are sent after it.
func TestHeed(t *testing.T) {
	const s = time.Second
	for name, tt := range map[string]struct {
		answer *http.Response
		heed   bool
		want   []time.Duration // when the first request is sent, and three more at once
	}{
		"evenly":                  {said(200, `"a";r=4;t=10`, ""), true, []time.Duration{0, 2 * s, 4 * s, 6 * s}},
		"not asked to":            {said(200, `"a";r=4;t=10`, ""), false, []time.Duration{0, 0, 0, 0}},
		"up to the reset":         {said(200, `"a";r=1;t=10`, ""), true, []time.Duration{0, 5 * s, 10 * s, 10 * s}},
		"none is left":            {said(200, `"a";r=0;t=10`, ""), true, []time.Duration{0, 10 * s, 10 * s, 10 * s}},
		"none is left, for long":  {said(200, `"a";r=0;t=999999999`, ""), true, []time.Duration{0, 24 * time.Hour, 24 * time.Hour, 24 * time.Hour}},
		"little is left for long": {said(200, `"a";r=3;t=999999999`, ""), true, []time.Duration{0, 6 * time.Hour, 12 * time.Hour, 18 * time.Hour}},
		"plenty":                  {said(200, `"a";r=999999999999999;t=1`, ""), true, []time.Duration{0, 0, 0, 0}},
		"no time":                 {said(200, `"a";r=4`, ""), true, []time.Duration{0, 0, 0, 0}},
		"malformed":               {said(200, `"a";r=4;t=10,`, ""), true, []time.Duration{0, 0, 0, 0}},
		"refused":                 {said(429, `"a";r=0;t=10`, "10"), true, []time.Duration{0, 10 * s, 10 * s, 10 * s}},
		"Retry-After is more":     {said(429, `"a";r=0;t=10`, "20"), true, []time.Duration{0, 20 * s, 20 * s, 20 * s}},
		"Retry-After is less":     {said(429, `"a";r=0;t=10`, "5"), true, []time.Duration{0, 5 * s, 5 * s, 5 * s}},
		"Retry-After is missing":  {said(429, `"a";r=0;t=10`, ""), true, []time.Duration{0, 10 * s, 10 * s, 10 * s}},
		"none is left of five":    {said(200, `"a";r=0;t=10`, "", `"a";q=5`), true, []time.Duration{0, 10 * s, 10 * s, 10 * s}},
		"refused, of five":        {said(429, `"a";r=0;t=10`, "20", `"a";q=5`), true, []time.Duration{0, 20 * s, 20 * s, 20 * s}},
		"none is left of none":    {said(200, `"a";r=0;t=10`, "", `"a";q=0`), true, []time.Duration{0, 10 * s, 10 * s, 10 * s}},
		"refused for an age": {
			said(429, `"a";r=0;t=10`, "99999999999", `"a";q=5`), true,
			[]time.Duration{0, 24 * time.Hour, 24 * time.Hour, 24 * time.Hour},
		},
		"plenty of nine":       {said(200, `"a";r=2;t=10`, "", `"a";q=9`), true, []time.Duration{0, 0, 5 * s, 10 * s}},
		"little of nine":       {said(200, `"a";r=1;t=10`, "", `"a";q=9`), true, []time.Duration{0, 5 * s, 10 * s, 10 * s}},
		"none is left of two":  {said(200, `"a";r=0;t=10`, "", `"a";q=2`), true, []time.Duration{0, 10 * s, 10 * s, 20 * s}},
		"from a cache":         {aged("1"), true, []time.Duration{0, 0, 0, 0}},
		"just cached":          {aged("0"), true, []time.Duration{0, 0, 0, 0}},
		"cached, no age":       {aged(""), true, []time.Duration{0, 0, 0, 0}},
		"cached, not a number": {aged("1 second"), true, []time.Duration{0, 0, 0, 0}},
		"cached, twice":        {aged("0", "9"), true, []time.Duration{0, 0, 0, 0}},
		"cached, for ages":     {aged("99999999999999999999"), true, []time.Duration{0, 0, 0, 0}},
		"cached, negative":     {aged("-1"), true, []time.Duration{0, 0, 0, 0}},
		"an error":             {said(500, `"a";r=4;t=10`, ""), true, []time.Duration{0, 2 * s, 4 * s, 6 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &scripted{start: time.Now(), answers: []*http.Response{tt.answer}}
				tr := &client.Transport{Limiter: unlimited, Quota: heeding(tt.heed), Base: server}
				ask := func(host string) {
					_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://"+host, nil))
					assert.NoError(t, err)
				}
				ask("example.com")
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() { ask("example.com") })
				}
				wg.Wait()
				assert.Equal(t, tt.want, server.asked)
				at := time.Now()
				ask("other.example")
				assert.Equal(t, at, time.Now(), "another server")
			})
		})
	}
}

// TestHeedDeadline checks that a request whose deadline is before its turn fails at once, and
// takes no other request's turn.
func TestHeedDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{start: time.Now(), answers: []*http.Response{said(200, `"a";r=4;t=10`, "")}}
		tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: server}
		ask := func(ctx context.Context) error {
			_, err := tr.RoundTrip(httptest.NewRequestWithContext(ctx, "GET", "http://example.com", nil))
			return err
		}
		require.NoError(t, ask(t.Context()))
		near, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 3 {
			require.ErrorIs(t, ask(near), context.DeadlineExceeded)
		}
		leaving, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		require.Zero(t, time.Since(server.start))
		require.NoError(t, ask(t.Context()))
		require.ErrorIs(t, ask(leaving), context.Canceled)
		require.ErrorIs(t, ask(near), context.DeadlineExceeded)
		assert.Equal(t, []time.Duration{0, 2 * time.Second}, server.asked)

		// Those that failed are not under way.
		leaving, leave = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		require.ErrorIs(t, ask(leaving), context.Canceled)
		server.answers = []*http.Response{said(200, `"a";r=1;t=10`, "")}
		require.NoError(t, ask(t.Context()))
		start := time.Now()
		require.NoError(t, ask(t.Context()))
		assert.Equal(t, 5*time.Second, time.Since(start))
	})
}

// TestHeedCountsUnderWay has a server that answers only the first request: those under way may use
// up what is left for a window after they were sent, also when the quota should be back.
func TestHeedCountsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{start: time.Now(), answers: []*http.Response{said(200, `"a";r=4;t=10`, "", `"a";q=4`)}}
		tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: lagging{server, time.Hour + 3*time.Second}}
		ask := func() {
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			assert.NoError(t, err)
		}
		ask()
		var wg sync.WaitGroup
		for range 7 {
			wg.Go(ask)
		}
		wg.Wait()
		assert.Equal(t, []time.Duration{0, 0, 0, 0, 0, 10500 * time.Millisecond, 10500 * time.Millisecond, 10500 * time.Millisecond}, server.asked)
	})
}

// TestHeedNoWait has a server that says that none is left, and to wait for no time.
func TestHeedNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{start: time.Now(), answers: []*http.Response{said(200, `"a";r=0;t=0`, "", `"a";q=1`)}}
		tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: lagging{server, time.Second}}
		var wg sync.WaitGroup
		for range 4 {
			_, err := tr.RoundTrip(httptest.NewRequest("HEAD", "http://example.com", nil))
			require.NoError(t, err)
			wg.Go(func() {
				_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
				assert.NoError(t, err)
			})
			synctest.Wait()
		}
		wg.Wait()
		const s = time.Second
		assert.Equal(t, []time.Duration{0, 0, 0, s, s, 2 * s, 2 * s, 3 * s}, server.asked)
	})
}

// A lagging RoundTripper takes its time for all requests but the first.
type lagging struct {
	server  *scripted
	latency time.Duration
}

func (s lagging) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.server.RoundTrip(r)
	if s.server.count() > 1 {
		time.Sleep(s.latency)
	}
	return resp, err
}

// TestHeedNews checks that a later response changes the pace of requests to come.
func TestHeedNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{start: time.Now(), answers: []*http.Response{
			said(200, `"a";r=4;t=10`, ""), // 2 s
			said(200, `"a";r=9;t=10`, ""), // 1 s
			said(200, `"a";r=0;t=30`, ""),
			said(200, `"a";r=1;t=2`, ""), // 1 s, twice
			answered(200, ""),
		}}
		tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: server}
		for range 8 {
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			require.NoError(t, err)
		}
		const s = time.Second
		assert.Equal(t, []time.Duration{0, 2 * s, 3 * s, 33 * s, 34 * s, 35 * s, 35 * s, 35 * s}, server.asked)
	})
}

// TestHeedSameInstant has two responses at one instant, as a coarse clock tells them: the server may
// have sent the one that comes second first, unless its request was sent after the other response.
func TestHeedSameInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, left, late := true, 0, make(chan struct{})
		tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: roundTripper(func(*http.Request) *http.Response {
			if first {
				first = false
				<-late
				return said(200, `"a";r=4;t=10`, "")
			}
			return said(200, fmt.Sprintf(`"a";r=%d;t=10`, left), "", `"a";q=100`)
		})}
		ask := func() {
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			assert.NoError(t, err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(ask)
		synctest.Wait()
		ask()
		close(late)
		wg.Wait()
		ask()
		assert.Equal(t, 10*time.Second, time.Since(start))

		time.Sleep(time.Minute)
		start = time.Now()
		for _, left = range []int{13, 100, 99} {
			ask()
		}
		assert.Equal(t, start, time.Now(), "more is left than the first of these responses says")
	})
}

// TestTransportBacksOff has a server that refuses requests, and does not say when to retry.
func TestTransportBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 429
		tr := &client.Transport{Limiter: unlimited, Base: roundTripper(func(*http.Request) *http.Response { return answered(status, "soon") })}
		lengthened := false // at random, by up to a half
		ask := func(want time.Duration) {
			t.Helper()
			start := time.Now()
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			require.NoError(t, err)
			waited := time.Since(start)
			require.GreaterOrEqual(t, waited, want)
			require.Less(t, waited, want+want/2+1)
			lengthened = lengthened || waited > want
		}
		for _, want := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60, 60} {
			ask(want * time.Second)
		}
		require.True(t, lengthened)
		status = 200
		ask(time.Minute)
		ask(0)
		status = 429
		ask(0)
		ask(time.Minute) // it does not end with two successes
		status = 200
		for range 40 { // but with many
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			require.NoError(t, err)
		}
		status = 429
		ask(0)
		ask(time.Second)
		time.Sleep(20 * time.Minute) // longer than it is remembered
		ask(0)
		status = 200
		ask(time.Second)
	})
}

// TestTransportBacksOffDespiteCache has responses from a cache between refusals: they do not say that
// the server grants requests again.
func TestTransportBacksOffDespiteCache(t *testing.T) {
	for _, heed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cached := answered(200, "")
			cached.Header.Set("Age", "1")
			server := &scripted{answers: []*http.Response{
				answered(429, ""), cached, answered(429, ""), cached, answered(429, ""),
			}}
			tr := &client.Transport{Limiter: unlimited, Quota: heeding(heed), Base: server}
			for _, want := range []time.Duration{0, time.Second, 0, 2 * time.Second, 0, 4 * time.Second} {
				start := time.Now()
				_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
				require.NoError(t, err)
				assert.GreaterOrEqual(t, time.Since(start), want)
				assert.LessOrEqual(t, time.Since(start), want+want/2)
			}
		})
	}
}

// TestTransportBacksOffOnce refuses many requests that are under way together: that is no reason
// to back off for longer.
func TestTransportBacksOffOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &client.Transport{Limiter: unlimited, Base: roundTripper(func(*http.Request) *http.Response {
			time.Sleep(time.Second)
			return answered(429, "")
		})}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		start := time.Now()
		_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
		require.NoError(t, err)
		assert.Less(t, time.Since(start), time.Second+2*time.Second)
	})
}

// TestHeedForgetsServers has more servers than are remembered.
func TestHeedForgetsServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit,
			Base: roundTripper(func(*http.Request) *http.Response { return said(200, `"a";r=1;t=60`, "") })}
		ask := func(i int) (waited time.Duration) {
			start := time.Now()
			_, err := tr.RoundTrip(httptest.NewRequest("GET", fmt.Sprintf("http://%d.example", i), nil))
			require.NoError(t, err)
			return time.Since(start)
		}
		for i := range 5000 {
			require.Zero(t, ask(i))
		}
		assert.Zero(t, ask(4999), "there is no room for it")
		assert.Equal(t, 30*time.Second, ask(0))
		time.Sleep(time.Minute)
		assert.Zero(t, ask(4999))
		assert.Equal(t, 30*time.Second, ask(4999), "now there is")
	})
}
