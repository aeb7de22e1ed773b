package client_test

import (
	"net/http"
	"net/http/httptest"
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

// TestTransportAfterRests has 100 callers of a server with a limit, who retry until each has had ten
// successes. Few of the requests that they send are refused, those of the first instant included, when
// nothing is known of the server, and the limit is used.
func TestTransportAfterRests(t *testing.T) {
	window := ratelimit.FixedWindow{Limit: 10, Window: time.Minute, Start: ratelimit.StartOnFirstEvent}
	second := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1}
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		heed bool
		says bool // whether refusals have Retry-After
		most float64
		slow time.Duration // the most that all may take
	}{
		"Retry-After, 10 a minute": {window, false, true, 1.6, 110 * time.Minute},
		"Retry-After, 1 a second":  {second, false, true, 1.6, 30 * time.Minute},
		"RateLimit, 10 a minute":   {window, true, true, 1.15, 115 * time.Minute},
		"RateLimit, 1 a second":    {second, true, true, 1.15, 30 * time.Minute},
		"nothing, 10 a minute":     {window, false, false, 2.5, 200 * time.Minute},
		"nothing, 1 a second":      {second, false, false, 2.5, 40 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				denied := httplimit.WithRefusal(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if !tt.says {
						w.Header().Del("Retry-After")
					}
					w.WriteHeader(429)
				}))
				server := httplimit.Middleware(ratelimit.Must(ratelimit.New(tt.alg)), httplimit.WithKey(key.Everybody()), denied)(ok)
				tr := &client.Transport{Limiter: unlimited, Quota: heeding(tt.heed), Base: handled{server, 100 * time.Millisecond}}
				var mu sync.Mutex // protects sent
				sent, begin := 0, time.Now()
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						for succeeded := 0; succeeded < 10; {
							resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
							if !assert.NoError(t, err) {
								return
							}
							if resp.StatusCode == 200 {
								succeeded++
							}
							mu.Lock()
							sent++
							mu.Unlock()
						}
					})
				}
				wg.Wait()
				took := time.Since(begin)
				t.Logf("%.2f sent for each success, in %v", float64(sent)/1000, took)
				assert.LessOrEqual(t, float64(sent)/1000, tt.most)
				assert.Less(t, took, tt.slow)
			})
		})
	}
}

// TestTransportReturnsByTwosAndFours checks how many requests are under way after a rest, also after one
// that follows a way back which has ended: what was granted since then is no quota.
func TestTransportReturnsByTwosAndFours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{start: time.Now()}
		end := make(chan struct{})
		tr := &client.Transport{Limiter: unlimited, Base: roundTripper(func(r *http.Request) *http.Response {
			if r.URL.Path == "/stream" {
				<-end
				return answered(200, "")
			}
			resp, _ := lagging{server, time.Second}.RoundTrip(r)
			return resp
		})}
		request := func(path string) {
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com"+path, nil))
			assert.NoError(t, err)
		}
		ask := func() { request("/") }
		const s = time.Second
		var stream sync.WaitGroup // because of it, the server is not forgotten
		for round := range 2 {
			server.answers = []*http.Response{answered(429, "60")}
			refused := server.count()
			ask()
			var wg sync.WaitGroup
			for range 300 {
				wg.Go(ask)
			}
			if round == 0 {
				time.Sleep(time.Minute + 6*s + s/2) // until all are under way
				stream.Go(func() { request("/stream") })
			}
			wg.Wait()
			first := server.asked[refused+1]
			assert.GreaterOrEqual(t, first-server.asked[refused], time.Minute)
			at := make(map[time.Duration]int)
			for _, asked := range server.asked[refused+1:] {
				at[asked-first]++
			}
			assert.Equal(t, map[time.Duration]int{0: 1, s: 2, 2 * s: 4, 3 * s: 8, 4 * s: 16, 5 * s: 32, 6 * s: 237}, at)
		}
		close(end)
		stream.Wait()
	})
}

// TestTransportFirstHangs has a server that does not answer the first request after a rest: others go when
// another rest of that length has passed.
func TestTransportFirstHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, n := time.Now(), 0
		var mu sync.Mutex // protects n
		tr := &client.Transport{Limiter: unlimited, Base: roundTripper(func(*http.Request) *http.Response {
			mu.Lock()
			n++
			i := n
			mu.Unlock()
			switch i {
			case 1:
				return answered(429, "10")
			case 2:
				time.Sleep(time.Hour)
			}
			return answered(200, "")
		})}
		ask := func() {
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			assert.NoError(t, err)
		}
		ask()
		go ask()
		synctest.Wait()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		ask()
		require.Equal(t, 20*time.Second, time.Since(start))
		time.Sleep(2 * time.Hour)
	})
}
