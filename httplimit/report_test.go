package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
)

// TestReportIsThatOfMiddleware compares reports with the responses of a Middleware with an equal
// limiter.
func TestReportIsThatOfMiddleware(t *testing.T) {
	own := func(_ context.Context, key string) (ratelimit.Algorithm, error) {
		if key == "192.0.2.1" {
			return ratelimit.FixedWindow{Limit: 1, Window: time.Minute}, nil
		}
		return ratelimit.TokenBucket{}, errors.New("no such key")
	}
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(2)}
	for i, tt := range []struct {
		alg     ratelimit.Algorithm
		limiter []ratelimit.Option
		opts    []httplimit.Option
		policy  string // of the refusal
	}{
		{bucket, nil, nil, "default"},
		{bucket, nil, []httplimit.Option{httplimit.WithHeaders(httplimit.Legacy)}, "default"},
		{bucket, nil, []httplimit.Option{httplimit.WithHeaders(httplimit.None)}, "default"},
		{bucket, nil, []httplimit.Option{httplimit.WithPolicyName("calls")}, "calls"},
		{ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 1, Window: time.Hour}}, nil, nil, "default-2"},
		{bucket, []ratelimit.Option{ratelimit.WithLimits(own)}, nil, "default"},
		{ratelimit.Blocked{}, nil, nil, "default"},
		{ratelimit.Unlimited{}, nil, nil, ""},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			clk := clock.NewMock()
			a, err := ratelimit.New(tt.alg, append(tt.limiter, ratelimit.WithClock(clk))...)
			require.NoError(t, err)
			b, err := ratelimit.New(tt.alg, append(tt.limiter, ratelimit.WithClock(clk))...)
			require.NoError(t, err)
			h := httplimit.Middleware(a, tt.opts...)(ok)
			p, err := httplimit.NewReporter(b, tt.opts...)
			require.NoError(t, err)
			for range 3 {
				want := serve(h, from("192.0.2.1:1")).Header
				d, err := b.Take(t.Context(), "192.0.2.1", 1)
				require.NoError(t, err)
				got := p.Report(t.Context(), "192.0.2.1", d)
				for _, field := range []string{"Ratelimit", "Ratelimit-Policy", "Retry-After", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"} {
					assert.Equal(t, want[field], got.Header[field], field)
				}
				assert.Equal(t, d.Allowed, got.Detail == "")
				assert.Equal(t, d.RetryAfter, got.RetryAfter)
				if !d.Allowed {
					assert.Equal(t, tt.policy, got.Policy)
				}
			}
		})
	}
}

func TestReporterMisuse(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	for want, try := range map[string]func() (*httplimit.Reporter, error){
		"the limiter is nil":          func() (*httplimit.Reporter, error) { return httplimit.NewReporter(nil) },
		`WithPolicyName's name is ""`: func() (*httplimit.Reporter, error) { return httplimit.NewReporter(l, httplimit.WithPolicyName("")) },
		"the number of NewReporter's limiters is 2": func() (*httplimit.Reporter, error) {
			return httplimit.NewReporter(l, httplimit.WithAlso(l, clientip.Of(), "x"))
		},
	} {
		p, err := try()
		assert.Nil(t, p)
		assert.ErrorContains(t, err, want)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
}

// TestReportOf checks that the handler of WithDenied learns which limit has refused.
func TestReportOf(t *testing.T) {
	l, _ := limiter(t, ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)}, ratelimit.FixedWindow{Limit: 1, Window: time.Hour}})
	var got httplimit.Report
	h := httplimit.Middleware(l, httplimit.WithPolicyName("api"), httplimit.WithDenied(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var found bool
		got, found = httplimit.ReportOf(r)
		assert.True(t, found)
	})))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, found := httplimit.ReportOf(r)
		assert.False(t, found)
	}))
	serve(h, from("192.0.2.1:1"))
	serve(h, from("192.0.2.1:1"))
	assert.Equal(t, httplimit.Report{Policy: "api-2", RetryAfter: time.Hour, Detail: "Not enough of the limit is left for now."}, got)
}

// TestReportOfFailure checks that no client is told to retry at once.
func TestReportOfFailure(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	p, err := httplimit.NewReporter(l)
	require.NoError(t, err)
	r := p.Report(t.Context(), "a", ratelimit.Decision{Degraded: true})
	assert.Equal(t, time.Second, r.RetryAfter)
	assert.Equal(t, "1", r.Header.Get("Retry-After"))
}
