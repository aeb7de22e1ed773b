package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/internal/policy"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// gateOf returns a Gate of l.
func gateOf(t *testing.T, l ratelimit.Limiter, opts ...httplimit.Option) *httplimit.Gate {
	t.Helper()
	gate, err := httplimit.NewGate(l, opts...)
	require.NoError(t, err)
	return gate
}

// TestGateDecidesAsMiddleware compares Admissions with the responses of a Middleware that has an
// equal limiter.
func TestGateDecidesAsMiddleware(t *testing.T) {
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
			gate := gateOf(t, b, tt.opts...)
			for range 3 {
				want := serve(h, from("192.0.2.1:1"))
				got := gate.Admit(from("192.0.2.1:1"))
				w := httptest.NewRecorder()
				if got.Passed {
					got.SetHeader(w.Header())
					ok.ServeHTTP(w, from("192.0.2.1:1"))
				} else {
					got.Refuse(w, from("192.0.2.1:1"))
				}
				assert.Equal(t, want.Header, w.Result().Header)
				assert.Equal(t, want.StatusCode, w.Code)
				assert.Equal(t, got.Passed, got.Decision.Allowed)
				assert.Equal(t, got.Passed, got.Detail == "")
				assert.Equal(t, got.Decision.RetryAfter, got.RetryAfter)
				if !got.Passed {
					assert.Equal(t, tt.policy, got.Policy)
				}
			}
		})
	}
}

// TestGateWithoutDecision has requests that no limit is asked about.
func TestGateWithoutDecision(t *testing.T) {
	l, _ := limiter(t, ratelimit.Blocked{})
	noKey := httplimit.WithKey(key.Header("User"))
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for name, tt := range map[string]struct {
		opts   []httplimit.Option
		ctx    context.Context
		passed bool
		err    error
		status int // of the refusal, or 0
	}{
		"skipped": {[]httplimit.Option{noKey, httplimit.WithSkip(func(*http.Request) bool { return true })}, t.Context(), true, nil, 0},
		"free":    {[]httplimit.Option{noKey, httplimit.WithCost(func(*http.Request) int { return 0 })}, t.Context(), true, nil, 0},
		"no key":  {[]httplimit.Option{noKey}, t.Context(), false, key.ErrNone, 400},
		"ended":   {nil, ended, false, context.DeadlineExceeded, 503},
		"shaped":  {[]httplimit.Option{httplimit.WithShaping(time.Hour)}, ended, false, context.DeadlineExceeded, 503},
		"no key, shadow": {[]httplimit.Option{noKey, httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) {})}, t.Context(),
			true, nil, 0},
		"ended, shadow": {[]httplimit.Option{httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) {})}, ended, true, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := from("192.0.2.1:1").WithContext(tt.ctx)
			a := gateOf(t, l, tt.opts...).Admit(r)
			assert.Equal(t, tt.passed, a.Passed)
			assert.ErrorIs(t, a.Err, tt.err)
			assert.Equal(t, tt.status, a.Status())
			assert.Zero(t, a.Decision)
			w := httptest.NewRecorder()
			a.SetHeader(w.Header())
			assert.Empty(t, w.Header())
			a.Refuse(w, r)
			a.Done(200, 0)
			if tt.passed {
				assert.Equal(t, 200, w.Code)
				assert.Zero(t, w.Body.Len())
				assert.Empty(t, w.Header())
			} else {
				assert.Equal(t, tt.status, w.Code)
				assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
			}
		})
	}
}

// TestGateInsideHandler decides when the handler has read the form, settles what the handler tells
// Cost, and refuses as Middleware does.
func TestGateInsideHandler(t *testing.T) {
	l, _ := limiter(t, ratelimit.FixedWindow{Limit: 10, Window: time.Hour})
	gate := gateOf(t, l,
		httplimit.WithKey(func(r *http.Request) (string, error) { return r.PostFormValue("name"), nil }),
		httplimit.WithSettleAtEnd(httplimit.ByCost))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := gate.Admit(r)
		if !a.Passed {
			a.Refuse(w, r)
			return
		}
		defer a.Done(200, 0)
		a.SetHeader(w.Header())
		httplimit.Cost(a.Context(), 4)
	})
	login := func(name string) *http.Response {
		r := httptest.NewRequest("POST", "/", http.NoBody)
		r.PostForm = map[string][]string{"name": {name}}
		return serve(h, r)
	}
	for i, step := range []struct {
		name   string
		status int
		field  string
	}{
		{"ann", 200, `"default";r=9;t=3600`},
		{"ann", 200, `"default";r=5;t=3600`},
		{"ben", 200, `"default";r=9;t=3600`},
		{"ann", 200, `"default";r=1;t=3600`},
		{"ann", 429, `"default";r=0;t=3600`},
		{"", 400, ""},
	} {
		resp := login(step.name)
		assert.Equal(t, step.status, resp.StatusCode, i)
		assert.Equal(t, step.field, resp.Header.Get("RateLimit"), i)
	}
}

// TestGateHoldsUntilDone has requests in flight until Done, which may be called more than once.
func TestGateHoldsUntilDone(t *testing.T) {
	l, _ := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	gate := gateOf(t, l)
	r := from("192.0.2.1:1")
	first, second := gate.Admit(r), gate.Admit(r)
	assert.True(t, first.Passed)
	assert.False(t, second.Passed)
	second.Done(200, 0)
	third := gate.Admit(r)
	assert.False(t, third.Passed)
	first.Done(200, 0)
	first.Done(200, 0)
	fourth := gate.Admit(r)
	assert.True(t, fourth.Passed)
}

// TestDoneTwice checks that a request is settled once, with what the first Done says, although
// another one follows, also if the first has failed or a copy of the Admission is done.
func TestDoneTwice(t *testing.T) {
	for name, tt := range map[string]struct {
		alg   ratelimit.Algorithm
		costs int // or -1 if WithSettleAtEnd's function panics
		left  int
		err   error
	}{
		"settled":           {ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, 4, 6, nil},
		"too great a debt":  {ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, math.MaxInt, 9, ratelimit.ErrDebt},
		"panics":            {ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, -1, 9, nil},
		"in flight as well": {ratelimit.InFlight{Limit: 10, Timeout: time.Hour}, 4, 10, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := limiter(t, tt.alg)
			var told []int
			var reported []error
			gate := gateOf(t, l, httplimit.WithSettleAtEnd(func(_ *http.Request, status int, _ int64) int {
				told = append(told, status)
				if tt.costs < 0 {
					panic("a bug")
				}
				return tt.costs
			}), httplimit.WithStoreError(func(_ *http.Request, err error) { reported = append(reported, err) }))
			a := gate.Admit(from("192.0.2.1:1"))
			done := func() {
				defer func() { _ = recover() }()
				a.Done(200, 0)
			}
			done()
			again := a
			a.Done(500, 0)
			again.Done(500, 0)
			assert.Equal(t, []int{200}, told)
			assert.Equal(t, tt.left, remaining(t, l))
			if tt.err == nil {
				assert.Empty(t, reported)
			} else {
				require.Len(t, reported, 1)
				assert.ErrorIs(t, reported[0], tt.err)
			}
		})
	}
}

// TestZeroAdmission calls the methods of an Admission that no Gate has made.
func TestZeroAdmission(t *testing.T) {
	for _, a := range []httplimit.Admission{{}, {Verdict: httplimit.Verdict{Passed: true}}, {Verdict: httplimit.Verdict{Err: errors.New("secret")}}} {
		w := httptest.NewRecorder()
		a.SetHeader(w.Header())
		a.Refuse(w, from("192.0.2.1:1"))
		a.Done(200, 0)
		assert.Empty(t, w.Header())
		assert.Zero(t, w.Body.Len())
		assert.Equal(t, context.Background(), a.Context())
		assert.Equal(t, "cannot determine the client of this request", a.Explain())
		assert.Zero(t, a.Status())
	}
}

// TestGateGivesBackWhenItPanics checks that a function of the program that panics, when events are
// held, leaves nothing held.
func TestGateGivesBackWhenItPanics(t *testing.T) {
	lookups := 0
	l := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
		if lookups++; lookups == 2 { // to report the decision
			panic("a bug in a lookup")
		}
		return ratelimit.InFlight{Limit: 1, Timeout: time.Hour}, nil
	})))
	gate := gateOf(t, l, httplimit.WithInFlight())
	for range 3 {
		lookups = 0
		assert.PanicsWithValue(t, "a bug in a lookup", func() { gate.Admit(from("192.0.2.1:1")) })
	}
	assert.Equal(t, 1, remaining(t, l))
}

// TestVerdictOfRefusal checks that the handler of WithRefusal learns which limit has refused.
func TestVerdictOfRefusal(t *testing.T) {
	l, _ := limiter(t, ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)}, ratelimit.FixedWindow{Limit: 1, Window: time.Hour}})
	var got httplimit.Verdict
	h := httplimit.Middleware(l, httplimit.WithPolicyName("api"), httplimit.WithRefusal(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var found bool
		got, found = httplimit.VerdictOf(r.Context())
		assert.True(t, found)
	})))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, found := httplimit.VerdictOf(r.Context())
		assert.False(t, found)
	}))
	serve(h, from("192.0.2.1:1"))
	serve(h, from("192.0.2.1:1"))
	assert.Equal(t, "api-2", got.Policy)
	assert.Equal(t, time.Hour, got.RetryAfter)
	assert.Equal(t, "Not enough of the limit is left for now.", got.Detail)
	assert.Equal(t, 1, got.Decision.Part)
}

// TestGateOf has requests that count in limits which depend on the request.
func TestGateOf(t *testing.T) {
	reads, _ := limiter(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	writes, _ := limiter(t, ratelimit.FixedWindow{Limit: 1, Window: time.Minute})
	site, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Hour})
	audit, _ := limiter(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	shadowed := 0
	gate, err := httplimit.NewGateOf(func(r *http.Request, key string) ([]httplimit.Limit, error) {
		of := map[string][]httplimit.Limit{
			"/reads":  {{Name: "reads", Limiter: reads, Key: key}},
			"/both":   {{Name: "reads", Limiter: reads, Key: key}, {Name: "writes", Limiter: writes, Key: key}},
			"/shadow": {{Name: "audit", Limiter: audit, Key: key, Shadow: func(ratelimit.Decision) { shadowed++ }}},
			"/site":   {{Name: "site", Limiter: reads, Key: key}, {Name: "\n", Limiter: writes, Key: key}},
		}
		if r.URL.Path == "/fails" {
			return nil, errors.New("the database is down")
		}
		return of[r.URL.Path], nil
	}, httplimit.WithAlso(site, func(*http.Request) (string, error) { return "all", nil }, "site"))
	require.NoError(t, err)
	h := gate.Middleware(ok)
	left := func(l ratelimit.Limiter, key string) int {
		d, err := l.Peek(t.Context(), key)
		require.NoError(t, err)
		return d.Remaining
	}
	for i, step := range []struct {
		path                string
		status              int
		policy, field       string
		reads, writes, site int // what is left afterwards
	}{
		{"/none", 200, "", "", 3, 1, 100},
		{"/reads", 200, `"reads";q=3;w=3600, "site";q=100;w=3600`, `"reads";r=2;t=3600`, 2, 1, 99},
		{"/both", 200, `"reads";q=3;w=3600, "writes";q=1;w=60, "site";q=100;w=3600`, `"writes";r=0;t=60`, 1, 0, 98},
		{"/both", 429, `"reads";q=3;w=3600, "writes";q=1;w=60, "site";q=100;w=3600`, `"writes";r=0;t=60`, 1, 0, 98},
		{"/shadow", 200, `"site";q=100;w=3600`, `"site";r=97;t=3600`, 1, 0, 97},
		{"/shadow", 200, `"site";q=100;w=3600`, `"site";r=96;t=3600`, 1, 0, 96},
		{"/site", 429, `"site-2";q=3;w=3600, "default";q=1;w=60, "site";q=100;w=3600`, `"default";r=0;t=60`, 1, 0, 96},
		{"/fails", 400, "", "", 1, 0, 96},
	} {
		r := from("192.0.2.1:1")
		r.URL.Path = step.path
		resp := serve(h, r)
		assert.Equal(t, step.status, resp.StatusCode, i)
		assert.Equal(t, step.policy, resp.Header.Get("RateLimit-Policy"), i)
		assert.Equal(t, step.field, resp.Header.Get("RateLimit"), i)
		assert.Equal(t, []int{step.reads, step.writes, step.site},
			[]int{left(reads, "192.0.2.1"), left(writes, "192.0.2.1"), left(site, "all")}, i)
	}
	assert.Equal(t, 1, shadowed)
}

// TestGateOfForgetsLimiters: a Gate whose limiters are made for a request, or a tenant, does not keep
// them all in memory.
func TestGateOfForgetsLimiters(t *testing.T) {
	type made struct{ ratelimit.Limiter }
	shared, _ := limiter(t, ratelimit.Unlimited{})
	var now *made
	gate, err := httplimit.NewGateOf(func(_ *http.Request, key string) ([]httplimit.Limit, error) {
		return []httplimit.Limit{{Name: "own", Limiter: now, Key: key}}, nil
	})
	require.NoError(t, err)
	const mostKept = policy.MostCached
	var all []weak.Pointer[made]
	for range 5 * mostKept / 2 {
		now = &made{shared}
		all = append(all, weak.Make(now))
		a := gate.Admit(from("192.0.2.1:1"))
		require.True(t, a.Passed)
	}
	runtime.GC()
	kept := 0
	for _, one := range all {
		if one.Value() != nil {
			kept++
		}
	}
	assert.LessOrEqual(t, kept, mostKept)
	runtime.KeepAlive(gate)
}

// TestGateOfNames checks that clients can tell the limits of a request, and the parts of these,
// from each other, whatever their names are.
func TestGateOfNames(t *testing.T) {
	plain, _ := limiter(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	all, _ := limiter(t, ratelimit.All{ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.FixedWindow{Limit: 2, Window: time.Hour}})
	for want, limits := range map[string][]httplimit.Limit{
		`"api-1";q=1;w=3600, "api-2";q=2;w=3600, "api-3";q=3;w=3600`:     {{Name: "api", Limiter: all}, {Name: "api", Limiter: plain}},
		`"api-1";q=1;w=3600, "api-2";q=2;w=3600, "api-1-2";q=3;w=3600`:   {{Name: "api", Limiter: all}, {Name: "api-1", Limiter: plain}},
		`"api-2";q=3;w=3600, "api-3-1";q=1;w=3600, "api-3-2";q=2;w=3600`: {{Name: "api-2", Limiter: plain}, {Name: "api", Limiter: all}},
		`"api";q=3;w=3600, "api-2-1";q=1;w=3600, "api-2-2";q=2;w=3600`:   {{Name: "api", Limiter: plain}, {Name: "api", Limiter: all}},
	} {
		gate, err := httplimit.NewGateOf(func(*http.Request, string) ([]httplimit.Limit, error) { return limits, nil })
		require.NoError(t, err)
		for range 2 { // known, the second time
			assert.Equal(t, want, serve(gate.Middleware(ok), from("192.0.2.1:1")).Header.Get("RateLimit-Policy"))
		}
	}
}

// TestGateOfSettles settles a request in each of its limits, and releases those in flight.
func TestGateOfSettles(t *testing.T) {
	tokens, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Hour})
	trial, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Hour})
	flight := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithLimits(
		func(context.Context, string) (ratelimit.Algorithm, error) {
			return ratelimit.InFlight{Limit: 10, Timeout: time.Hour}, nil
		})))
	gate, err := httplimit.NewGateOf(func(_ *http.Request, key string) ([]httplimit.Limit, error) {
		return []httplimit.Limit{
			{Name: "tokens", Limiter: tokens, Key: key},
			{Name: "flight", Limiter: flight, Key: key, InFlight: true},
			{Name: "trial", Limiter: trial, Key: key, Shadow: func(ratelimit.Decision) {}},
		}, nil
	}, httplimit.WithSettleAtEnd(httplimit.ByCost))
	require.NoError(t, err)
	var inside int
	h := gate.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		inside = remaining(t, flight)
		httplimit.Cost(r.Context(), 7)
	}))
	serve(h, from("192.0.2.1:1"))
	assert.Equal(t, 9, inside)
	assert.Equal(t, 93, remaining(t, tokens))
	assert.Equal(t, 93, remaining(t, trial))
	assert.Equal(t, 10, remaining(t, flight))
}

// TestGateOfKnowsWhatFlies releases requests of limiters with one algorithm, although their Limits
// do not say InFlight, enforced or not.
func TestGateOfKnowsWhatFlies(t *testing.T) {
	flight := ratelimit.InFlight{Limit: 1, Timeout: time.Hour}
	trial := func(ratelimit.Decision) {}
	for name, tt := range map[string]struct {
		alg    ratelimit.Algorithm
		shadow func(ratelimit.Decision)
	}{
		"enforced":         {flight, nil},
		"shadow":           {flight, trial},
		"shadow in an All": {ratelimit.All{ratelimit.FixedWindow{Limit: 9, Window: time.Hour}, flight}, trial},
	} {
		for _, others := range []int{0, 1} {
			l, _ := limiter(t, tt.alg)
			plain, _ := limiter(t, ratelimit.FixedWindow{Limit: 9, Window: time.Hour})
			gate, err := httplimit.NewGateOf(func(_ *http.Request, key string) ([]httplimit.Limit, error) {
				return []httplimit.Limit{
					{Name: "flight", Limiter: l, Key: key, Shadow: tt.shadow},
					{Name: "plain", Limiter: plain, Key: key},
				}[:1+others], nil
			})
			require.NoError(t, err)
			inside := -1
			h := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside = remaining(t, l) }))
			for range 3 {
				assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode, name)
				assert.Zero(t, inside, name)
				assert.Equal(t, 1, remaining(t, l), name)
			}
			assert.Equal(t, 9-3*others, remaining(t, plain), name)
		}
	}
}

// TestGateOfSpendsNothingWhenItRefuses has many requests at once in two limits: the one that
// refuses keeps none of them from spending exactly what is left in the other.
func TestGateOfSpendsNothingWhenItRefuses(t *testing.T) {
	wide, _ := limiter(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
	narrow, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Hour})
	gate, err := httplimit.NewGateOf(func(_ *http.Request, key string) ([]httplimit.Limit, error) {
		return []httplimit.Limit{{Name: "wide", Limiter: wide, Key: key}, {Name: "narrow", Limiter: narrow, Key: key}}, nil
	})
	require.NoError(t, err)
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 10 {
				if a := gate.Admit(from("192.0.2.1:1")); a.Passed {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, 100, passed.Load())
	assert.Equal(t, 900, remaining(t, wide))
	assert.Equal(t, 0, remaining(t, narrow))
}

// TestGateMisuse checks that a mistake in the arguments is an error.
func TestGateMisuse(t *testing.T) {
	l, _ := limiter(t, ratelimit.Unlimited{})
	for want, try := range map[string]func() (*httplimit.Gate, error){
		"the limiter is nil":               func() (*httplimit.Gate, error) { return httplimit.NewGate(nil) },
		`WithPolicyName's name is ""`:      func() (*httplimit.Gate, error) { return httplimit.NewGate(l, httplimit.WithPolicyName("")) },
		"the function of NewGateOf is nil": func() (*httplimit.Gate, error) { return httplimit.NewGateOf(nil) },
		"WithStatus's code is 42": func() (*httplimit.Gate, error) {
			return httplimit.NewGateOf(func(*http.Request, string) ([]httplimit.Limit, error) { return nil, nil }, httplimit.WithStatus(42))
		},
	} {
		gate, err := try()
		assert.Nil(t, gate)
		assert.ErrorContains(t, err, want)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
	gate, err := httplimit.NewGateOf(func(*http.Request, string) ([]httplimit.Limit, error) { return make([]httplimit.Limit, 1), nil })
	require.NoError(t, err)
	a := gate.Admit(from("192.0.2.1:1"))
	assert.False(t, a.Passed)
	assert.ErrorContains(t, a.Err, "the Limiter of a Limit is nil")
}

// TestShadowShare checks that so large a share of the keys passes, that a key which is limited
// stays so when the share gets smaller, and that the others pass and are reported.
func TestShadowShare(t *testing.T) {
	blocked, _ := limiter(t, ratelimit.Blocked{})
	const keys = 10_000
	before := make(map[int]bool)
	for _, share := range []float64{0, 0.05, 0.5, 1} {
		reported := 0
		gate := gateOf(t, blocked, httplimit.WithKey(key.Header("User")),
			httplimit.WithShadow(1-share, func(*http.Request, ratelimit.Decision) { reported++ }))
		refused := 0
		for key := range keys {
			r := from("192.0.2.1:1", "User", fmt.Sprint(key))
			a, again := gate.Admit(r), gate.Admit(r)
			assert.Equal(t, a.Passed, again.Passed)
			assert.False(t, a.Passed && before[key], "enforced with a greater share in shadow")
			if !a.Passed {
				refused++
				before[key] = true
				assert.Equal(t, ratelimit.Never, a.RetryAfter)
			}
		}
		assert.InDelta(t, share*keys, refused, 0.02*keys) // hashes of the keys choose
		assert.Equal(t, 2*(keys-refused), reported)
		a := gate.Admit(from("192.0.2.1:1"))
		assert.Equal(t, share < 1, a.Passed, "without a key")
	}
}
