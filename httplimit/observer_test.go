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
		ratelimit.ObserverFunc(func(_ context.Context, o ratelimit.Observation) {
			*seen = append(*seen, fmt.Sprint(o.Call, " ", o.Outcome))
		}))))
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
		"shadow":  {[]httplimit.Option{httplimit.WithShadow(ignore)}, []string{"take granted", "take denied"}},
		"shaping": {[]httplimit.Option{httplimit.WithShaping(time.Second)}, []string{"reserve granted", "reserve denied"}},
		"settled": {
			[]httplimit.Option{httplimit.WithSettle(func(*http.Request, int, int64) int { return 1 })},
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

// TestObserverSeesTransport checks that an observer sees the waits of a client for its turns, and
// not those that the server asks for.
func TestObserverSeesTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, seen := observed()
		tr := &httplimit.Transport{Limiter: l, Base: &scripted{answers: []*http.Response{answered(429, "7200"), answered(200, "")}}}
		for range 3 {
			resp, err := tr.RoundTrip(httptest.NewRequest(http.MethodGet, "http://example.com/", http.NoBody))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		assert.Equal(t, []string{"wait granted", "wait granted", "wait delayed"}, *seen)
	})
}
