package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// TestInFlightShaping lets requests wait for others to end, in the order of arrival, and no
// longer than they may.
func TestInFlightShaping(t *testing.T) {
	flight := ratelimit.InFlight{Limit: 2, Timeout: time.Hour}
	for name, l := range map[string]func() (ratelimit.Limiter, error){
		"InFlight": func() (ratelimit.Limiter, error) { return ratelimit.New(flight) },
		"All": func() (ratelimit.Limiter, error) {
			return ratelimit.New(ratelimit.All{flight, ratelimit.FixedWindow{Limit: 100, Window: time.Hour}})
		},
		"WithLimits": func() (ratelimit.Limiter, error) {
			return ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
				ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return flight, nil }))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, err := l()
			require.NoError(t, err)
			var mu sync.Mutex // protects order
			var order []string
			h := httplimit.Middleware(l, httplimit.WithShaping(3*time.Second), httplimit.WithInFlight())(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					order = append(order, r.Header.Get("Name"))
					mu.Unlock()
					if r.Header.Get("Name") == "2" { // so that 3 and 4 do not begin at the same time
						time.Sleep(time.Second / 2)
					}
					time.Sleep(2 * time.Second)
				}))
			start := time.Now()
			var wg sync.WaitGroup
			for _, who := range []struct {
				name   string
				status int
				after  time.Duration
				fields string
			}{
				{"1", 200, 2 * time.Second, "r=1"},
				{"2", 200, 2500 * time.Millisecond, "r=0"},
				{"3", 200, 4 * time.Second, "r=0"},
				{"4", 200, 4500 * time.Millisecond, "r=0"},
				{"5", 429, 3 * time.Second, "r=0;t=1"},
				{"6", 429, 3 * time.Second, "r=0;t=1"},
			} {
				wg.Go(func() {
					resp := serve(h, from("192.0.2.1:1", "Name", who.name))
					assert.Equal(t, who.status, resp.StatusCode, "%s: %s", name, who.name)
					assert.Equal(t, who.after, time.Since(start), "%s: %s", name, who.name)
					assert.Contains(t, resp.Header.Get("RateLimit"), who.fields, "%s: %s", name, who.name)
				})
				synctest.Wait()
			}
			wg.Wait()
			assert.Equal(t, []string{"1", "2", "3", "4"}, order, name)

			// A client that leaves while it waits takes no place. If it has only closed its side of
			// the connection, it reads that it is refused, unless there is a lookup.
			wg.Go(func() { serve(h, from("192.0.2.1:1", "Name", "7")) })
			wg.Go(func() { serve(h, from("192.0.2.1:1", "Name", "7")) })
			synctest.Wait()
			ctx, leave := context.WithCancel(t.Context())
			wg.Go(func() {
				want := map[bool]int{true: 503, false: 429}[name == "WithLimits"]
				assert.Equal(t, want, serve(h, from("192.0.2.1:1", "Name", "left").WithContext(ctx)).StatusCode, name)
			})
			synctest.Wait()
			leave()
			wg.Wait()
			assert.NotContains(t, order, "left")
			d, err := l.Peek(t.Context(), "192.0.2.1")
			require.NoError(t, err)
			assert.Equal(t, 2, d.Remaining, name)

			// One that costs more than the limit does not wait.
			start = time.Now()
			many := httplimit.Middleware(l, httplimit.WithShaping(3*time.Second), httplimit.WithInFlight(),
				httplimit.WithCost(func(*http.Request) int { return 3 }))(ok)
			resp := serve(many, from("192.0.2.1:1"))
			assert.Equal(t, 429, resp.StatusCode)
			assert.Empty(t, resp.Header.Get("Retry-After"))
			assert.Zero(t, time.Since(start))
		})
	}
}

// TestInFlightShapingOfOthers checks that WithInFlight changes no turn of a key with another
// limit.
func TestInFlightShapingOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Hour},
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
				return ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 6}, nil
			})))
		h := httplimit.Middleware(l, httplimit.WithShaping(3500*time.Millisecond), httplimit.WithInFlight())(ok)
		start := time.Now()
		var wg sync.WaitGroup
		for i, want := range []time.Duration{0, 1, 2, 3} {
			wg.Go(func() {
				resp := serve(h, from("192.0.2.1:1"))
				assert.Equal(t, 200, resp.StatusCode, i)
				assert.Equal(t, want*time.Second, time.Since(start), i)
				if i > 0 { // all had come before, and nothing remains while one stands in line
					assert.Contains(t, resp.Header.Get("RateLimit"), fmt.Sprintf(";t=%d", 4-i), i)
				}
			})
			synctest.Wait()
		}
		resp := serve(h, from("192.0.2.1:1"))
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "1", resp.Header.Get("Retry-After"), "in a second, the wait is within three again")
		wg.Wait()
	})
}

// TestInFlightShapingFollowsTheLimitersClock checks that the longest delay passes by that clock.
func TestInFlightShapingFollowsTheLimitersClock(t *testing.T) {
	l, clk := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	_, _, err := l.Hold(t.Context(), "192.0.2.1", 1)
	require.NoError(t, err)
	start := clk.Now()
	status := make(chan int, 1)
	h := httplimit.Middleware(l, httplimit.WithShaping(2*time.Second))(ok)
	go func() { status <- serve(h, from("192.0.2.1:1")).StatusCode }()
	for {
		select {
		case got := <-status:
			assert.Equal(t, 429, got)
			assert.GreaterOrEqual(t, clk.Since(start), 2*time.Second)
			return
		default:
			require.Less(t, clk.Since(start), 30*time.Minute, "it waits for ever")
			clk.Add(100 * time.Millisecond)
		}
	}
}

// A client that leaves at the very moment at which it is served takes no place, unless the limiter
// is known to decide in memory: then it may be waiting for its answer.
func TestInFlightServedTooLate(t *testing.T) {
	l, _ := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	ctx, leave := context.WithCancel(t.Context())
	h := httplimit.Middleware(leavingLate{fakes.Hidden{Limiter: l}, leave}, httplimit.WithInFlight(), httplimit.WithShaping(time.Second))(ok)
	assert.Equal(t, 503, serve(h, from("192.0.2.1:1").WithContext(ctx)).StatusCode)
	assert.Equal(t, 1, remaining(t, l))
}

// A leavingLate limiter lets the client leave as soon as it has waited.
type leavingLate struct {
	ratelimit.Limiter
	leave context.CancelFunc
}

func (l leavingLate) Hold(ctx context.Context, key string, n int, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	defer l.leave()
	r, d, err := l.Limiter.Hold(ctx, key, n, opts...)
	return r, ratelimit.Decision{Allowed: d.Allowed}, err // as after a wait
}
