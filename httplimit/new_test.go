package httplimit_test

import (
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
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

// TestMistakes checks that Middleware panics with the error that NewGate returns for a mistake in
// its arguments, and that an option which is right does not hide one before it.
func TestMistakes(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	two, err := ratelimit.New(ratelimit.All{
		ratelimit.Unlimited{},
		ratelimit.RollingWindow{Quota: 9, Window: 2, Period: 1, PeriodLimit: 5},
		ratelimit.InFlight{Limit: 1, Timeout: 1},
	})
	require.NoError(t, err)
	everybody := key.Everybody()
	also := func(name string, own ...httplimit.CostOption) httplimit.Option {
		return httplimit.WithAlso(l, everybody, name, own...)
	}
	one := httplimit.WithCost(func(*http.Request) int { return 1 })
	shadow := httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) {})
	type options = []httplimit.Option
	for want, opts := range map[string]options{
		"option 0 of Middleware is nil: it must be the result of a With function": {nil},
		"option 1 of Middleware is nil":                                           {httplimit.WithStatus(429), nil},

		"WithKey's function is nil: it must be a function, such as clientip.Of() returns": {httplimit.WithKey(nil)},
		"WithCost's function is nil: it must return how many events a request counts as":  {httplimit.WithCost(nil)},
		"WithStatus's code is 42: it must be from 400 to 599":                             {httplimit.WithStatus(42)},
		"WithStatus's code is 399":                                                          {httplimit.WithStatus(399), httplimit.WithStatus(429)},
		"WithStatus's code is 600":                                                          {httplimit.WithStatus(600), httplimit.WithStatus(42)},
		"WithRefusal's handler is nil: it must be a handler":                                {httplimit.WithRefusal(nil)},
		"WithRefusal's handler is nil":                                                      {httplimit.WithRefusal(http.HandlerFunc(nil))},
		"WithRefusal's handler is nil: it":                                                  {httplimit.WithRefusal((*http.ServeMux)(nil))},
		"WithStoreError's function is nil: it must be a function to call with the error":    {httplimit.WithStoreError(nil)},
		"WithSkip's function is nil: it must report which requests pass":                    {httplimit.WithSkip(nil)},
		"WithHeaders's choice is 7: it must be Standard, Draft7, Legacy or None":            {httplimit.WithHeaders(7)},
		"WithHeaders's choice is -1":                                                        {httplimit.WithHeaders(-1)},
		"WithHeaders's choice is 4":                                                         {httplimit.WithHeaders(4)},
		"WithJitter's maximum is -1ns: it must not be negative":                             {httplimit.WithJitter(-1)},
		`WithPolicyName's name is "ü": it must be one or more printable ASCII characters`:   {httplimit.WithPolicyName("ü")},
		`WithPolicyName's name is ""`:                                                       {httplimit.WithPolicyName("")},
		"WithShadow's share is 5: it must be from 0 to 1":                                   {httplimit.WithShadow(5, func(*http.Request, ratelimit.Decision) {})},
		"WithShadow's share is NaN":                                                         {httplimit.WithShadow(math.NaN(), func(*http.Request, ratelimit.Decision) {})},
		"WithShadow's function is nil: it must be a function to call":                       {httplimit.WithShadow(1, nil)},
		"WithShaping's delay is -1ns: it must not be negative":                              {httplimit.WithShaping(-1)},
		"WithSettle's function is nil: it must return how many events":                      {httplimit.WithSettle(nil)},
		"WithSettle.HoldFor's d is -1ns":                                                    {httplimit.WithSettle(func(*http.Request, int) int { return 0 }, ratelimit.HoldFor(-1))},
		"WithSettleAtEnd.HoldFor's d is -1ns":                                               {httplimit.WithSettleAtEnd(httplimit.ByCost, ratelimit.HoldFor(-1))},
		"WithShaping's delay is 1ns: it must be 0 with WithShadow: remove one of the two":   {httplimit.WithShaping(1), shadow},
		"WithShaping's delay is 1ns: it must be 0 with WithAlso: remove one of the two":     {httplimit.WithShaping(1), also("x")},
		"WithAlso's function is nil: it must be a function":                                 {httplimit.WithAlso(l, nil, "x")},
		`WithAlso's name is "": it must be one or more printable ASCII characters`:          {also("")},
		"WithCost's function is nil":                                                        {also("x", httplimit.WithCost(nil))},
		"WithSettleAtEnd's function is nil":                                                 {also("x", httplimit.WithSettleAtEnd(nil))},
		"WithSettleAtEnd.option 0 of a hold is nil":                                         {also("x", httplimit.WithSettleAtEnd(httplimit.ByCost, nil))},
		`a limit's name is "default": it must not be that of another limit: give WithPolic`: {also("default")},
		`a limit's name is "a"`:                                                             {also("a"), also("a")},
		`a limit's name is "b"`:                                                             {also("b"), httplimit.WithPolicyName("b")},
		`a limit's name is "c-2"`:                                                           {also("c-2"), httplimit.WithAlso(two, everybody, "c")},
		`a limit's name is "d-2-period"`: {
			httplimit.WithAlso(two, everybody, "d"), httplimit.WithPolicyName("d-2-period"),
		},

		"WithSettleAtEnd's function is nil: it must return how many events a request has cost":          {httplimit.WithSettleAtEnd(nil)},
		"WithAlso's limiter is nil: it must be a Limiter, such as ratelimit.New returns":                {httplimit.WithAlso((*nilLimiter)(nil), everybody, "x")},
		"option 0 of WithAlso is nil: it must be the result of WithCost, WithSettle or WithSettleAtEnd": {also("x", nil, one)},
	} {
		gate, err := httplimit.NewGate(l, opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalid, want)
		assert.ErrorContains(t, err, want)
		assert.Nil(t, gate)
		assertPanics(t, err.Error(), func() { httplimit.Middleware(l, opts...) })
		assertPanics(t, err.Error(), func() { httplimit.PerClient(ratelimit.PerHour(1), opts...) })
	}
}

// TestNilArguments checks the limiter, the rate and the handler.
func TestNilArguments(t *testing.T) {
	l, _ := limiter(t, ratelimit.Unlimited{})
	for _, none := range []ratelimit.Limiter{nil, (*nilLimiter)(nil)} {
		const want = "httplimit: the limiter is nil: it must be a Limiter, such as ratelimit.New returns"
		gate, err := httplimit.NewGate(none)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.EqualError(t, err, want)
		assert.Nil(t, gate)
		assertPanics(t, want, func() { httplimit.Middleware(none) })
	}
	for _, none := range []http.Handler{nil, http.HandlerFunc(nil), (*http.ServeMux)(nil)} {
		const want = "httplimit: the handler is nil: it must be the handler whose requests are limited"
		assertPanics(t, want, func() { httplimit.Middleware(l)(none) })
		assertPanics(t, want, func() { gateOf(t, l).Middleware(none) })
	}
	_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(0)})
	assertPanics(t, err.Error(), func() { httplimit.PerClient(ratelimit.PerSecond(0)) })
	_, err = ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1}})
	assertPanics(t, err.Error(), func() { httplimit.PerClient(ratelimit.Rate{Events: 1}) })
}

// assertPanics checks that f panics with an [ratelimit.ErrInvalid] of the given text.
func assertPanics(t *testing.T, text string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		err, _ := recover().(error)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid, text)
		assert.EqualError(t, err, text)
	}()
	f()
}

// TestMiddlewareDoesNotCallKeys checks that the function of a key is called for requests only.
func TestMiddlewareDoesNotCallKeys(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	called := 0
	host := func(r *http.Request) (string, error) { called++; return r.Host, nil }
	limited := httplimit.Middleware(l, httplimit.WithKey(key.Join(host, host)))
	assert.Zero(t, called)
	limited(ok).ServeHTTP(httptest.NewRecorder(), from("192.0.2.1:1"))
	assert.Equal(t, 2, called)
}
