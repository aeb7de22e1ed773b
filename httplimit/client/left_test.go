package client_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/httplimit/client"
)

// saying is a server whose responses to the paths /0, /1 and so on say what is left after the given
// times. Other responses say nothing.
type saying []struct {
	after     time.Duration
	rateLimit string
}

func (s saying) RoundTrip(r *http.Request) (*http.Response, error) {
	for i, says := range s {
		if r.URL.Path == fmt.Sprintf("/%d", i) {
			time.Sleep(says.after)
			return said(200, says.rateLimit, ""), nil
		}
	}
	return answered(200, ""), nil
}

// TestHeedPairs has requests that are under way together, and whose responses say what is left of
// several windows or resources: what is left of the one never counts until the reset of the other.
func TestHeedPairs(t *testing.T) {
	const first, second = 100 * time.Millisecond, 200 * time.Millisecond
	for name, tt := range map[string]struct {
		server saying
		want   []time.Duration // when more requests are sent, after the first ones
	}{
		"the old window first": {saying{{first, `limit=5000, remaining=0, reset=1`}, {second, `limit=5000, remaining=4999, reset=3600`}},
			[]time.Duration{1050 * time.Millisecond, 1050 * time.Millisecond}},
		"the new window first": {saying{{second, `limit=5000, remaining=0, reset=1`}, {first, `limit=5000, remaining=4999, reset=3600`}},
			[]time.Duration{1050 * time.Millisecond, 1050 * time.Millisecond}},
		"two resources": {saying{{first, `limit=30, remaining=0, reset=20`}, {second, `limit=5000, remaining=4990, reset=3000`}},
			[]time.Duration{20*time.Second + first, 20*time.Second + first}},
		"two resources, the other first": {saying{{second, `limit=30, remaining=0, reset=20`}, {first, `limit=5000, remaining=4990, reset=3000`}},
			[]time.Duration{20*time.Second + second, 20*time.Second + second}},
		"no limit is known": {saying{{first, `remaining=0, reset=20`}, {second, `remaining=2999, reset=3000`}},
			[]time.Duration{20*time.Second + first, 20*time.Second + first + 2980100*time.Millisecond/2999}},
		"both are used up": {saying{{first, `remaining=0, reset=20`}, {second, `remaining=0, reset=30`}},
			[]time.Duration{30*time.Second + second, 30*time.Second + second}},
		"of one window": {saying{{second, `limit=5, remaining=3, reset=60`}, {first, `limit=5, remaining=0, reset=60`}},
			[]time.Duration{60*time.Second + first, 60*time.Second + first}},
		"older than its reset": {saying{{30 * time.Second, `limit=5, remaining=0, reset=20`}, {first, `limit=5, remaining=3, reset=60`}},
			[]time.Duration{30 * time.Second, 30 * time.Second}},
		"only one, older than its reset": {saying{{30 * time.Second, `limit=5, remaining=0, reset=20`}},
			[]time.Duration{30 * time.Second, 30 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: tt.server}
				get := func(path string) {
					_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com/"+path, nil))
					assert.NoError(t, err)
				}
				var wg sync.WaitGroup
				for i := range tt.server {
					wg.Go(func() { get(fmt.Sprint(i)) })
				}
				wg.Wait()
				var at []time.Duration
				for range tt.want {
					get("more")
					at = append(at, time.Since(begin))
				}
				assert.Equal(t, tt.want, at)
			})
		})
	}
}

// TestHeedRemembersLimits has a client that was idle when the reset came: the limit is still known.
func TestHeedRemembersLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{start: time.Now(), answers: []*http.Response{said(200, `"a";r=4;t=10`, "", `"a";q=5;w=10`)}}
		tr := &client.Transport{Limiter: unlimited, Quota: client.RateLimit, Base: lagging{server, time.Second}}
		ask := func() {
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			assert.NoError(t, err)
		}
		ask()
		for _, want := range []struct {
			idle   time.Duration
			atOnce int
		}{{5 * time.Minute, 5}, {20 * time.Minute, 12}} { // longer than it is remembered
			time.Sleep(want.idle)
			var wg sync.WaitGroup
			before := server.count()
			for range 12 {
				wg.Go(ask)
			}
			synctest.Wait()
			assert.Equal(t, want.atOnce, server.count()-before, "after %v", want.idle)
			wg.Wait()
		}
	})
}
