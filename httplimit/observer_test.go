package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// observed returns a limiter of one event an hour, and what its observer has seen.
func observed() (l ratelimit.Limiter, seen *[]string) {
	seen = new([]string)
	l = ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithObserver(
		func(_ context.Context, o ratelimit.Observation) {
			*seen = append(*seen, fmt.Sprint(o.Call, " ", o.Outcome))
		})))
	return l, seen
}

// TestObserverSeesRequests checks that an observer sees what a middleware decides, in each of the
// ways in which it asks the limiter, and so also what WithShadow lets pass.
func TestObserverSeesRequests(t *testing.T) {
	ignore := func(*http.Request, ratelimit.Decision) {}
	for name, tt := range map[string]struct {
		opts []httplimit.Option
		want []string
	}{
		"plain":   {nil, []string{"take granted", "take denied"}},
		"shadow":  {[]httplimit.Option{httplimit.WithShadow(1, ignore)}, []string{"take granted", "take denied"}},
		"shaping": {[]httplimit.Option{httplimit.WithShaping(time.Second)}, []string{"wait granted", "wait denied"}},
		"settled": {
			[]httplimit.Option{httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 1 })},
			[]string{"hold granted", "settle counted", "hold denied"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, seen := observed()
			h := httplimit.Middleware(l, tt.opts...)(http.NotFoundHandler())
			for range 2 {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			}
			assert.Equal(t, tt.want, *seen)
		})
	}
}

// TestObserverSeesShapingOnce checks that a request which waits for others to end, and is refused,
// is seen once.
func TestObserverSeesShapingOnce(t *testing.T) {
	flight := ratelimit.InFlight{Limit: 1, Timeout: time.Hour}
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		cost int
	}{
		"in flight":  {flight, 1},
		"of an All":  {ratelimit.All{ratelimit.FixedWindow{Limit: 9, Window: time.Hour}, flight}, 1},
		"never":      {flight, 2},
		"a window":   {ratelimit.All{ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.InFlight{Limit: 9, Timeout: time.Second}}, 1},
		"of its own": {nil, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			var seen []string
			options := []ratelimit.Option{ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
				seen = append(seen, fmt.Sprint(o.Call, " ", o.Outcome))
			})}
			if tt.alg == nil {
				tt.alg = flight
				options = append(options, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
					return ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, nil
				}))
			}
			cost := 1
			var h http.Handler
			h = httplimit.Middleware(ratelimit.Must(ratelimit.New(tt.alg, options...)), httplimit.WithShaping(time.Second), httplimit.WithInFlight(),
				httplimit.WithCost(func(*http.Request) int { return cost }))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				cost = tt.cost
				assert.Equal(t, 429, serve(h, from("192.0.2.1:1")).StatusCode, name)
			}))
			assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode, name)
			assert.Equal(t, []string{"wait granted", "wait denied", "settle counted"}, seen, name)
		})
	}
}

// TestObserverSeesFullLineOnce checks that a request which is refused because too many wait is told
// when to retry, and seen once.
func TestObserverSeesFullLineOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		alg         ratelimit.Algorithm
		retry, told string
	}{
		"bucket":    {ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)}, "120", "2m0s"},
		"in flight": {ratelimit.InFlight{Limit: 1, Timeout: time.Minute}, "1", "1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := make(chan string, 9)
				l := ratelimit.Must(ratelimit.New(tt.alg, ratelimit.WithMaxWaiters(1), ratelimit.WithObserver(
					func(_ context.Context, o ratelimit.Observation) {
						seen <- fmt.Sprint(o.Call, " ", o.Outcome, " ", o.Decision.RetryAfter)
					})))
				require.True(t, l.Allow("192.0.2.1"))
				<-seen
				h := httplimit.Middleware(l, httplimit.WithShaping(time.Hour))(http.NotFoundHandler())
				go serve(h, from("192.0.2.1:1"))
				synctest.Wait()
				resp := serve(h, from("192.0.2.1:1"))
				assert.Equal(t, 429, resp.StatusCode)
				assert.Equal(t, tt.retry, resp.Header.Get("Retry-After"))
				assert.Equal(t, "wait denied "+tt.told, <-seen)
				assert.Empty(t, seen)
				time.Sleep(2 * time.Minute)
			})
		})
	}
}
