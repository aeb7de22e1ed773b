package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// TestPerClient checks that each client has the rate, in all handlers that the same function
// wraps, and that options apply.
func TestPerClient(t *testing.T) {
	limited := httplimit.PerClient(ratelimit.PerHour(2))
	a, b := limited(ok), limited(ok)
	for i, step := range []struct {
		h      http.Handler
		peer   string
		status int
	}{
		{a, "192.0.2.1:1", 200},
		{b, "192.0.2.1:2", 200},
		{a, "192.0.2.1:1", 429},
		{b, "192.0.2.2:1", 200},
		{httplimit.PerClient(ratelimit.PerHour(2))(ok), "192.0.2.1:1", 200}, // another limit
	} {
		resp := serve(step.h, from(step.peer))
		assert.Equal(t, step.status, resp.StatusCode, "step %d", i)
		assert.Equal(t, `"default";q=2;w=3600`, resp.Header.Get("RateLimit-Policy"), "step %d", i)
	}
	named := httplimit.PerClient(ratelimit.PerHour(2), httplimit.WithPolicyName("hourly"))(ok)
	assert.Equal(t, `"hourly";q=2;w=3600`, serve(named, from("192.0.2.1:1")).Header.Get("RateLimit-Policy"))
}

// TestPerClientMisuse checks that a mistake is in the log when it is made, once, however often the
// function wraps a handler (Echo wraps one for each request), and in every response.
func TestPerClientMisuse(t *testing.T) {
	l, _ := limiter(t, ratelimit.Unlimited{})
	for want, limited := range map[string]func() func(http.Handler) http.Handler{
		"TokenBucket.Rate.Events is 0": func() func(http.Handler) http.Handler { return httplimit.PerClient(ratelimit.PerSecond(0)) },
		"TokenBucket.Rate.Per is 0s":   func() func(http.Handler) http.Handler { return httplimit.PerClient(ratelimit.Rate{Events: 1}) },
		"WithStatus's code is 42": func() func(http.Handler) http.Handler {
			return httplimit.PerClient(ratelimit.PerMinute(1), httplimit.WithStatus(42))
		},
		"the limiter is nil": func() func(http.Handler) http.Handler { return httplimit.Middleware(nil) },
		"the handler is nil": func() func(http.Handler) http.Handler {
			h := httplimit.Middleware(l)(nil)
			return func(http.Handler) http.Handler { return h }
		},
	} {
		logged := quiet(t)
		limited := limited()
		assert.Contains(t, logged.String(), want)
		assert.Contains(t, logged.String(), "level=ERROR")
		for range 3 {
			resp := serve(limited(ok), from("192.0.2.1:1"))
			assert.Equal(t, 500, resp.StatusCode, want)
			assert.Contains(t, body(t, resp), want)
		}
		assert.Equal(t, 1, strings.Count(logged.String(), "\n"), logged.String())
	}
}

// TestNew checks that New returns the mistakes that Middleware answers requests with.
func TestNew(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	limited, err := httplimit.New(l, httplimit.WithStatus(503))
	require.NoError(t, err)
	assert.Equal(t, 200, serve(limited(ok), from("192.0.2.1:1")).StatusCode)
	assert.Equal(t, 503, serve(limited(ok), from("192.0.2.1:1")).StatusCode)

	two, err := ratelimit.New(ratelimit.All{ratelimit.Unlimited{}, ratelimit.RollingWindow{Quota: 9, Window: 2, Period: 1, PeriodLimit: 5}, ratelimit.InFlight{Limit: 1, Timeout: 1}})
	require.NoError(t, err)
	for want, opts := range map[string][]httplimit.Option{
		"WithStatus's code is 42":          {httplimit.WithStatus(42)},
		"option 0 of Middleware is nil":    {nil},
		"TrustedHops's number is -1":       {httplimit.WithKey(httplimit.ClientIP(httplimit.TrustedHops(-1)))},
		"key 1 of Join is nil":             {httplimit.WithKey(httplimit.Join(nil))},
		`Header's name is ""`:              {httplimit.WithKey(httplimit.Header(""))},
		`Header's name is "API key"`:       {httplimit.WithAlso(l, httplimit.Join(httplimit.Header("API key")), "x")},
		"IPv6Prefix's number of bits is 0": {httplimit.WithAlso(l, httplimit.Join(httplimit.ClientIP(httplimit.IPv6Prefix(0))), "x")},

		`a limit's name is "default": it must not be that of another limit`: {httplimit.WithAlso(l, httplimit.Everybody(), "default")},
		`a limit's name is "a"`:   {httplimit.WithAlso(l, httplimit.Everybody(), "a"), httplimit.WithAlso(l, httplimit.Everybody(), "a")},
		`a limit's name is "b"`:   {httplimit.WithAlso(l, httplimit.Everybody(), "b"), httplimit.WithPolicyName("b")},
		`a limit's name is "c-2"`: {httplimit.WithAlso(l, httplimit.Everybody(), "c-2"), httplimit.WithAlso(two, httplimit.Everybody(), "c")},
		"an option of WithAlso is another one: it must be the result of WithCost or WithSettle": {httplimit.WithAlso(l, httplimit.Everybody(), "x", httplimit.WithCost(func(*http.Request) int { return 1 }), httplimit.WithStatus(503))},
		"an option of WithAlso is another": {httplimit.WithAlso(l, httplimit.Everybody(), "x", nil, httplimit.WithCost(nil))},
		"WithCost's function is nil":       {httplimit.WithAlso(l, httplimit.Everybody(), "x", httplimit.WithCost(nil))},
		"WithSettle's function is nil":     {httplimit.WithAlso(l, httplimit.Everybody(), "x", httplimit.WithSettle(nil))},
		"WithSettle.option 0 of a hold":    {httplimit.WithAlso(l, httplimit.Everybody(), "x", httplimit.WithSettle(httplimit.ByCost, nil))},
		`a limit's name is "d-2-period"`:   {httplimit.WithAlso(two, httplimit.Everybody(), "d"), httplimit.WithPolicyName("d-2-period")},
	} {
		limited, err := httplimit.New(l, opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalid, want)
		assert.ErrorContains(t, err, want)
		assert.Nil(t, limited)
	}
	_, err = httplimit.New((*nilLimiter)(nil))
	assert.ErrorContains(t, err, "the limiter is nil")
}

// TestNewDoesNotCallKeys checks that a KeyFunc is called for requests only.
func TestNewDoesNotCallKeys(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	called := 0
	key := func(r *http.Request) (string, error) { called++; return r.Host, nil }
	limited, err := httplimit.New(l, httplimit.WithKey(httplimit.Join(key, key)))
	require.NoError(t, err)
	assert.Zero(t, called)
	limited(ok).ServeHTTP(httptest.NewRecorder(), from("192.0.2.1:1"))
	assert.Equal(t, 2, called)
}
